"""What the doctor finds wrong with policies, and what it finds left over from the other way to admit pods."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest

from charts import helm
from deviceshare import __version__
from deviceshare.doctor import admission, findings, installation
from deviceshare.doctor.admission import POLICIES
from deviceshare.doctor.findings import OK, PROBLEM, UNTESTED, WARNING, Check
from deviceshare.doctor.kinds import Installation, Rollout
from deviceshare.kube.connection import Unserved
from deviceshare.loops.kinds import WEBHOOK_CONFIGURATIONS
from deviceshare.loops.ports import ApiError, Forbidden, Kind, NotFound

Json = dict[str, Any]

RELEASE = "deviceshare-system"
AGENTS = ("daemonsets", "deviceshare-agent")
WEBHOOKS = [(kind.plural, "deviceshare") for kind in WEBHOOK_CONFIGURATIONS]


def deployed(*args: str) -> Rollout:
    """deviceshare's Deployment of this release, with these flags."""
    container = {"name": "deviceshare", "args": ["run", "--excluded-namespaces=kube-system", *args]}
    meta = {"name": "deviceshare", "labels": {"app.kubernetes.io/version": __version__}}
    return msgspec.convert({"metadata": meta, "spec": {"template": {"spec": {"containers": [container]}}}}, Rollout)


def selecting(*names: str) -> Json:
    """All namespaces but these."""
    expression = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": list(names)}
    return {"namespaceSelector": {"matchExpressions": [expression]}}


def policies() -> dict[tuple[str, str], Json]:
    """The objects of a healthy release with agents, by plural and name."""
    found: dict[tuple[str, str], Json] = {AGENTS: {"metadata": {"name": AGENTS[1]}}}
    for name, kinds in POLICIES.items():
        meta = {"name": name, "labels": {"app.kubernetes.io/version": __version__}}
        constraints = selecting("kube-system", RELEASE) if "pods" in name or "bypasses" in name else {}
        spec = {"failurePolicy": "Fail", "matchConstraints": constraints}
        found[kinds.policies.plural, name] = {"metadata": meta, "spec": spec}
        actions = {} if "Mutating" in kinds.policies.kind else {"validationActions": ["Deny"]}
        found[kinds.bindings.plural, name] = {"metadata": meta, "spec": {"policyName": name, **actions}}
    return found


class Holding:
    """An API server that has these objects; what it doesn't know it answers with `otherwise`."""

    def __init__(self, objects: Mapping[tuple[str, str], Json], otherwise: ApiError | None = None) -> None:
        self._objects = objects
        self._otherwise = otherwise or NotFound("none")

    async def get(self, kind: Kind[Any], name: str, _: str = "") -> Any:
        try:
            return msgspec.convert(self._objects[kind.plural, name], kind.type)
        except KeyError:
            raise self._otherwise from None

    async def list(self, kind: Kind[Any], *, label_selector: str, **_more: str) -> list[Any]:
        if not isinstance(self._otherwise, NotFound):
            raise self._otherwise
        _, name = label_selector.split("=")
        found = [self._objects[key] for key in self._objects if key == (kind.plural, name)]
        return [msgspec.convert(each, kind.type) for each in found]


async def told(objects: Mapping[tuple[str, str], Json], *args: str, otherwise: ApiError | None = None) -> Check:
    """What the doctor says where deviceshare has these flags."""
    api: Any = Holding(objects, otherwise)
    found = await installation.installation(api, RELEASE)
    ours = found._replace(deployment=deployed(*args))
    mode = await admission.mode(api, ours)
    return findings.check(mode, *await admission.examine(api, ours, mode))


def text(check: Check) -> str:
    """Of its only finding."""
    [finding] = check.findings
    return f"{finding.what}; {finding.cure}"


async def test_policies_that_are_whole_are_well() -> None:
    """With agents and without."""
    whole = policies()
    assert (await told(whole, "--admission=policies")).mark == OK
    without = {key: each for key, each in whole.items() if "node-devices" not in key[1] and key != AGENTS}
    check = await told(without, "--admission=policies")
    assert (check.name, check.mark) == ("policies", OK)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("part", ["policies", "bindings"])
async def test_each_policy_and_each_binding_is_missed(name: str, part: str) -> None:
    """One without the other does nothing."""
    objects = policies()
    del objects[getattr(POLICIES[name], part).plural, name]
    check = await told(objects, "--admission=policies")
    assert check.mark == PROBLEM
    assert f"{name} or its binding of the same name is missing: " in text(check)


def _lenient(policy: Json, _: Json) -> None:
    policy["spec"]["failurePolicy"] = "Ignore"


def _old(policy: Json, _: Json) -> None:
    policy["metadata"]["labels"]["app.kubernetes.io/version"] = "0.0.1"


def _anonymous(policy: Json, _: Json) -> None:
    del policy["metadata"]["labels"]


def _doubted(policy: Json, _: Json) -> None:
    warnings = [{"fieldRef": "spec.validations[0].expression", "warning": "v1, Kind=Pod: ERROR\n undefined field 'x'"}]
    policy["status"] = {"typeChecking": {"expressionWarnings": warnings}}


def _warning(_: Json, binding: Json) -> None:
    binding["spec"]["validationActions"] = ["Warn", "Audit"]


def _elsewhere(_: Json, binding: Json) -> None:
    binding["spec"]["policyName"] = "other"


def _narrowed(_: Json, binding: Json) -> None:
    binding["spec"]["matchResources"] = selecting("team-a")


def _widened(policy: Json, _: Json) -> None:
    policy["spec"]["matchConstraints"] = selecting(RELEASE)


@pytest.mark.parametrize(
    ("change", "mark", "said"),
    [
        (_lenient, PROBLEM, "deviceshare-pods has failurePolicy Ignore: where it can't be evaluated, anybody may"),
        (_old, WARNING, f"ValidatingAdmissionPolicy deviceshare-pods is of deviceshare 0.0.1, not {__version__}"),
        (_anonymous, WARNING, "deviceshare-pods is of an unknown version"),
        (_doubted, WARNING, "spec.validations[0].expression: v1, Kind=Pod: ERROR undefined field 'x'"),
        (_warning, PROBLEM, "deviceshare-pods has validationActions Warn, Audit, not Deny"),
        (_elsewhere, PROBLEM, "ValidatingAdmissionPolicyBinding deviceshare-pods binds other, not deviceshare-pods"),
        (_narrowed, PROBLEM, "deviceshare-pods leaves out team-a, but deviceshare trusts the annotations of pods"),
        (_widened, WARNING, "takes no pod of kube-system into a group, but deviceshare-pods doesn't leave it out"),
    ],
)
async def test_what_is_wrong_with_a_policy_is_said(change: Callable[[Json, Json], None], mark: str, said: str) -> None:
    """With the policy's name and the way out."""
    objects = policies()
    kinds = POLICIES["deviceshare-pods"]
    change(*(objects[kind.plural, "deviceshare-pods"] for kind in (kinds.policies, kinds.bindings)))
    check = await told(objects, "--admission=policies")
    assert check.mark == mark
    assert said in text(check)


async def test_ways_around_may_be_warned_of_only() -> None:
    """webhooks.bypasses decides that."""
    objects = policies()
    objects["validatingadmissionpolicybindings", "deviceshare-bypasses"]["spec"]["validationActions"] = ["Warn"]
    assert (await told(objects, "--admission=policies")).mark == OK


def test_the_policies_are_those_of_the_release() -> None:
    """As the chart has them with agents; those that it only advises aren't missed."""
    objects = helm.render({"agent": {"enabled": True}}, helm.WITH_POLICIES)
    for part in ("policies", "bindings"):
        kinds = {getattr(each, part).kind for each in POLICIES.values()}
        found = {(each["kind"], each["metadata"]["name"]) for each in objects if each["kind"] in kinds}
        assert found == {(getattr(each, part).kind, name) for name, each in POLICIES.items()}


async def test_webhooks_that_nobody_serves_any_more_are_a_problem() -> None:
    """They refuse what they can't be asked about."""
    left: dict[tuple[str, str], Json] = {each: {"metadata": {"name": "deviceshare"}} for each in WEBHOOKS}
    check = await told({**policies(), **left}, "--admission=policies")
    assert [finding.mark for finding in check.findings] == [PROBLEM, PROBLEM]
    assert "kubectl delete validatingwebhookconfigurations deviceshare" in [each.cure for each in check.findings]


async def test_policies_beside_webhooks_are_named() -> None:
    """As in an upgrade from one to the other, or after somebody applied them by hand."""
    check = await told(policies())
    besides = [each.what for each in check.findings if each.mark == WARNING]
    assert (check.name, check.mark) == ("webhooks", PROBLEM)
    assert besides == [f"the policy {name} is in force besides the webhooks" for name in POLICIES]


async def test_an_api_server_without_policies_is_said_to_be() -> None:
    """Deviceshare was told of policies that this server can't have."""
    check = await told({}, "--admission=policies", otherwise=Unserved("404"))
    assert "the API server doesn't serve the kind MutatingAdmissionPolicy " in check.findings[0].what
    assert "admission=auto" in check.findings[0].cure


async def test_who_may_not_see_policies_is_told_so() -> None:
    """Most people may not."""
    check = await told({}, "--admission=policies", otherwise=Forbidden("no"))
    assert {finding.mark for finding in check.findings} == {UNTESTED}


async def test_without_a_deployment_the_cluster_says_what_admits_pods() -> None:
    """deviceshare may run by other means, as in a sandbox."""
    api: Any = Holding(policies())
    assert await admission.mode(api, Installation(RELEASE)) == "policies"
    api = Holding({})
    assert await admission.mode(api, Installation(RELEASE)) == "webhooks"
