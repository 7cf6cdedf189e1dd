"""Admission: which of webhooks and policies should review pods, whether just those do, and whether a pod is injected.

What shows the last is a pod created as a dry run: that tests the whole path, API server to replica and back where there
are webhooks, and leaves nothing behind.
"""

import base64
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import yaml
from cryptography import x509

from deviceshare import assets
from deviceshare.certificates import issuance
from deviceshare.doctor import canary
from deviceshare.doctor.findings import PROBLEM, UNTESTED, WARNING, Finding, Verdict, listed, seen, unread
from deviceshare.doctor.kinds import Installation
from deviceshare.domain import contract
from deviceshare.domain.admission import settings
from deviceshare.domain.admission.pod_guard import GUARDING, GUARDING_POLICY, left_out
from deviceshare.domain.objects.pods import Pod
from deviceshare.kube.api import Api
from deviceshare.kube.connection import Unserved
from deviceshare.loops import kinds
from deviceshare.loops.kinds import AdmissionPolicy, PolicyBinding, PolicyKinds, WebhookConfiguration
from deviceshare.loops.ports import ApiError, Cluster, NotFound

SOON: Final = timedelta(days=7)
"""A CA that ends within this time should have been replaced already."""
_INJECTING: Final = "mutate-pods.deviceshare.io"
OF_AGENTS: Final = "validate-node-devices.deviceshare.io"
"""A webhook that is needed only where agents run."""
_POLICY_OF_AGENTS: Final = "deviceshare-node-devices"
"""A policy that is needed only where agents run."""
_BYPASSES: Final = "deviceshare-bypasses"
"""By its setting it warns or denies."""
_UNINJECTED, _CHANGED = "pods of groups get no devices", "anybody may change their devices"
_LATE: Final = "a group can't be deleted for a moment after its first pod was bound"
_WITHOUT: Final = {
    "deviceshare-mutate-pods": _UNINJECTED,
    "deviceshare-mutate-groups": _LATE,
    "deviceshare-pods": _CHANGED,
    _BYPASSES: "nobody is told of ways around the hand-over of devices",
    "deviceshare-groups": "groups are deleted while pods use them",
    "deviceshare-ledger-deletions": "a NodeDevices with claims can be deleted, and is gone with the last of these",
    _POLICY_OF_AGENTS: "an agent may write what other nodes have",
}
"""deviceshare's own policies, and what is so where one of them isn't in force."""
POLICIES: Final = {name: kinds.MUTATING if "-mutate-" in name else kinds.VALIDATING for name in _WITHOUT}
_ALONE: Final = {
    OF_AGENTS: "an agent may write what other nodes have, and people with deviceshare-recover misreport devices",
    "mutate-groups.deviceshare.io": _LATE,
}
"""What is so where one of these webhooks alone is missing."""
_VERSION: Final = "app.kubernetes.io/version"
_UPGRADE: Final = "helm upgrade the release"


async def mode(api: Cluster, ours: Installation) -> str:
    """By which of both deviceshare was told to admit pods; where that isn't known, what is in the cluster."""
    webhooks, _ = await seen(api, kinds.WEBHOOK_CONFIGURATIONS[1], contract.NAME)
    if ours.deployment or webhooks:
        return ours.flag("admission") or settings.WEBHOOKS
    policy, _ = await seen(api, kinds.VALIDATING.policies, GUARDING_POLICY)
    return settings.POLICIES if policy else settings.WEBHOOKS


async def examine(api: Cluster, ours: Installation, by: str) -> Verdict:
    """Checks the webhook configurations or the policies in the cluster."""
    if by == settings.POLICIES:
        left = await _webhooks(api, ours, served=False)
        return "bound, strict, and of this release", [*await _policies(api, ours), *left]
    return "configured, with a CA that is valid", [*await _webhooks(api, ours, served=True), *await _left_policies(api)]


# Webhooks


async def _webhooks(api: Cluster, ours: Installation, *, served: bool) -> list[Finding]:
    """What the configurations lack; or, where policies admit pods, which are left, though no replica answers them."""
    findings, ignored = [], _ignored(ours)
    for kind, names in zip(kinds.WEBHOOK_CONFIGURATIONS, _shipped(), strict=True):
        whole = f"{kind.kind} {contract.NAME}"
        found, unseen = await seen(api, kind, contract.NAME, f"the {whole}" if served else f"whether a {whole} is left")
        findings += unseen
        if found and served:
            wanted = [name for name in names if ours.agents or name != OF_AGENTS]
            findings += judge_webhooks(kind.kind, found, wanted, datetime.now(UTC))
            findings += judge_left_out(found, ignored)
        elif found:
            what = f"{whole} is left, but deviceshare serves no webhooks (--admission=policies)"
            cure = f"kubectl delete {kind.plural} {contract.NAME}"
            findings.append(Finding(PROBLEM, f"{what}: the API server refuses what it can't ask them about", cure))
        elif served and not unseen:
            findings.append(_missing_webhooks(f"{whole} is missing", names))
    return findings


def _shipped() -> list[list[str]]:
    """The webhooks' names in the mutating and the validating configuration of this release."""
    text = (assets.manifests() / "webhooks.yaml").read_text()
    return [[webhook["name"] for webhook in each["webhooks"]] for each in yaml.safe_load_all(text)]


def judge_webhooks(kind: str, found: WebhookConfiguration, names: list[str], now: datetime) -> Iterator[Finding]:
    """What is wrong with one configuration that should have the webhooks of these names."""
    present = {webhook.get("name", "") for webhook in found.webhooks}
    missing = [name for name in names if name not in present]
    if missing:
        yield _missing_webhooks(f"{kind} {contract.NAME} lacks {listed(missing)}", missing)
    for webhook in found.webhooks:
        yield from _judge_bundle(f"{kind} {contract.NAME}, webhook {webhook.get('name')}", webhook, now)


def judge_left_out(found: WebhookConfiguration, ignored: set[str] | None) -> Iterator[Finding]:
    """Whether the webhooks leave out just the namespaces whose pods deviceshare ignores."""
    for webhook in found.webhooks:
        if webhook.get("name") in (_INJECTING, GUARDING):
            yield from _judge_namespaces(webhook["name"], left_out(webhook), ignored)


def _missing_webhooks(what: str, names: list[str]) -> Finding:
    away = _UNINJECTED if _INJECTING in names else _CHANGED if len(names) > 1 else _ALONE.get(names[0], _CHANGED)
    file = assets.manifests() / "webhooks.yaml"
    cure = f"{_UPGRADE}, or kubectl apply -f {file} and let deviceshare fill in the caBundle (--ca-secret)"
    return Finding(PROBLEM, f"{what}: {away}", cure)


def _judge_bundle(name: str, webhook: dict[str, Any], now: datetime) -> list[Finding]:
    try:
        text = base64.b64decode(webhook.get("clientConfig", {}).get("caBundle", "")).decode(errors="replace")
    except ValueError:
        text = ""
    authorities = [x509.load_pem_x509_certificate(each.encode()) for each in issuance.split(text)]
    if not authorities:
        what = f"{name}: caBundle holds no certificate, so the API server trusts no certificate"
        cure = "see deviceshare's log for the certificate authority; with cert-manager, check that its CA injector runs"
        return [Finding(PROBLEM, what, cure)]
    until = max(each.not_valid_after_utc for each in authorities)
    if until - now > SOON:
        return []
    what = f"{name}: the CA {'ended' if until < now else 'ends'} on {until:%Y-%m-%d %H:%M} UTC"
    cure = "deviceshare rotates its own CA, so see its log; replace any other CA in the caBundle"
    return [Finding(PROBLEM if until < now else WARNING, what, cure)]


# Policies


async def _policies(api: Cluster, ours: Installation) -> list[Finding]:
    ignored = _ignored(ours)
    version = ours.deployment.metadata.labels.get(_VERSION, "") if ours.deployment else ""
    findings: list[Finding] = []
    for name, pair in POLICIES.items():
        if name == _POLICY_OF_AGENTS and not ours.agents:
            continue
        try:
            policy = await api.get(pair.policies, name)
            findings += _judge_policy(pair, policy, version)
            binding = await api.get(pair.bindings, name)
            findings += _judge_binding(pair, binding, name)
        except Unserved:
            kind = pair.policies.kind
            what = f"the API server doesn't serve the kind {kind} (Kubernetes 1.36 does): {_WITHOUT[name]}"
            findings.append(Finding(PROBLEM, what, f"{_UPGRADE} with admission=auto, which chooses webhooks"))
        except NotFound:
            what = f"{pair.policies.kind} {name} or its binding of the same name is missing: {_WITHOUT[name]}"
            cure = f"{_UPGRADE}, or kubectl apply -f {assets.manifests() / 'policies.yaml'}"
            findings.append(Finding(PROBLEM, what, cure))
        except ApiError as error:
            findings.append(unread(f"the {pair.policies.kind} {name} and its binding", error))
        else:
            if name in ("deviceshare-mutate-pods", "deviceshare-pods", _BYPASSES):
                names = left_out(policy.spec.match_constraints) | left_out(binding.spec.match_resources)
                findings += _judge_namespaces(name, names, ignored)
    return findings


async def _left_policies(api: Cluster) -> list[Finding]:
    """Policies that review pods where webhooks do; a person who may not see that is told of the webhooks already."""
    findings = []
    for name, pair in POLICIES.items():
        found, _ = await seen(api, pair.bindings, name)
        if found:
            delete = f"kubectl delete {pair.bindings.plural},{pair.policies.plural} {name}"
            cure = f"{_UPGRADE} once more if that changed admission, so that one of both goes; policies of nobody's go"
            cure = f"{cure} with {delete}"
            findings.append(Finding(WARNING, f"the policy {name} is in force besides the webhooks", cure))
    return findings


def _judge_policy(pair: PolicyKinds, policy: AdmissionPolicy, version: str) -> Iterator[Finding]:
    """What is wrong with a policy that should be of this version, if it is known."""
    name = policy.metadata.name
    whole = f"{pair.policies.kind} {name}"
    if policy.spec.failure_policy != "Fail":
        what = f"{whole} has failurePolicy {policy.spec.failure_policy}: where it can't be evaluated, {_WITHOUT[name]}"
        yield Finding(PROBLEM, what, f"{_UPGRADE}: its failurePolicy is Fail")
    found = policy.metadata.labels.get(_VERSION, "")
    if version and found != version:
        what = f"{whole} is of {f'deviceshare {found}' if found else 'an unknown version'}, not {version}"
        yield Finding(WARNING, what, _UPGRADE)
    if warnings := policy.status.type_checking.expression_warnings:
        said = "; ".join(" ".join(f"{each.field_ref}: {each.warning}".split()) for each in warnings)
        what = f"the API server finds faults in {whole}, which may refuse what it should admit: {said}"
        cure = f"{_UPGRADE}; if it stays, report it with: kubectl get {pair.policies.plural} {name} -o yaml"
        yield Finding(WARNING, what, cure)


def _judge_binding(pair: PolicyKinds, binding: PolicyBinding, name: str) -> list[Finding]:
    """Whether a binding puts the policy of this name in force."""
    whole, spec = f"{pair.bindings.kind} {binding.metadata.name}", binding.spec
    if spec.policy_name != name:
        what = f"{whole} binds {spec.policy_name or 'no policy'}, not {name}: {_WITHOUT[name]}"
        return [Finding(PROBLEM, what, _UPGRADE)]
    wanted = {"Warn", "Deny"} if name == _BYPASSES else {"Deny"}
    if pair is not kinds.MUTATING and wanted.isdisjoint(spec.validation_actions):
        actions = ", ".join(spec.validation_actions) or "none"
        return [Finding(PROBLEM, f"{whole} has validationActions {actions}, not Deny: {_WITHOUT[name]}", _UPGRADE)]
    return []


# Namespaces left out


def _ignored(ours: Installation) -> set[str] | None:
    """The namespaces whose pods deviceshare ignores (pod_guard.py); None where that isn't known."""
    flag = ours.flag("excluded-namespaces")
    return None if flag is None else {*filter(None, flag.split(",")), ours.namespace}


def _judge_namespaces(name: str, names: AbstractSet[str], ignored: set[str] | None) -> Iterator[Finding]:
    """Whether the webhook or policy of this name, which leaves out `names`, leaves out just those."""
    if ignored is None:
        return
    flag = f"--excluded-namespaces={','.join(sorted(names))}"
    cure = f"{_UPGRADE}: webhooks.excludedNamespaces sets both; or give deviceshare run {flag}"
    if loose := sorted(names - ignored):
        what = f"{name} leaves out {listed(loose)}, but deviceshare trusts the annotations of pods there"
        yield Finding(PROBLEM, f"{what}: they can claim devices by them", cure)
    if stuck := sorted(ignored - names):
        what = f"deviceshare takes no pod of {listed(stuck)} into a group, but {name} doesn't leave it out"
        yield Finding(WARNING, what, cure)


# Injection


async def dry_run(api: Api, namespace: str) -> Pod | ApiError:
    """A pod of a group as it would be created, or why it would not."""
    body = canary.pod("deviceshare-canary-dry-run")
    # With the label, validation happens even where injection did not; its answer says why.
    body["metadata"]["labels"][contract.GROUP] = "deviceshare-canary-dry-run"
    try:
        return await api.create(kinds.PODS, body, namespace, dry_run=True)
    except ApiError as error:
        return error


def judge_injection(answer: Pod | ApiError, namespace: str, release: str) -> list[Finding]:
    """What the dry run's answer says about the path to the webhooks."""
    said, mark = str(answer), PROBLEM
    if isinstance(answer, Pod):
        if answer.injected:
            return []
        what = f"a pod of a group in {namespace} is not injected: webhooks or policies are missing or leave it out"
        cure = "name another with --namespace, or take it out of webhooks.excludedNamespaces in the chart's values"
    elif "failed calling webhook" in said:
        what = f"the API server can't call the webhooks: {said}"
        cure = next(cure for sign, cure in _SIGNS.items() if sign in said).format(release=release)
    elif "deviceshare.io" in said and "denied the request" in said:
        what = f"the mutating webhook is not called, the validating one is: {said}"
        cure = f"kubectl get mutatingwebhookconfiguration {contract.NAME} -o yaml"
    elif any(f"olicy '{name}'" in said for name in POLICIES):  # "ValidatingAdmissionPolicy '…'", "policy '…'"
        what = f"a pod of a group is refused, though it is one that should be injected: {said}"
        cure = "kubectl get mutatingadmissionpolicies,mutatingadmissionpolicybindings -o yaml"
    elif "cannot create resource" in said:
        mark, what = UNTESTED, f"you may not create pods in {namespace}"
        cure = "name a namespace with --namespace NAME"
    else:
        mark, what = UNTESTED, f"the pod was refused, but not by deviceshare: {said}"
        cure = "name a namespace whose policies allow a plain pod: --namespace NAME"
    return [Finding(mark, what, cure)]


_SIGNS: Final = {  # parts of Go's connection errors; the first that fits counts
    "x509": "the caBundle isn't the signer's: deviceshare repairs its own in seconds; else see cert-manager",
    "no endpoints": "no replica is ready: kubectl -n {release} get pods",
    "not found": "the webhooks' Service is missing: helm upgrade the release",
    "connection refused": "no replica answers there: kubectl -n {release} get pods,endpoints",
    "": "kubectl -n {release} get pods; if they are ready, let the API server reach their port 9443: firewall, network "
    "plugin, networkPolicy.enabled",
}
