"""The webhooks over HTTP: what the API server sends and what it is answered."""

import base64
import io
import json
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import msgspec
import pytest
from aiohttp import ClientSession
from structlog.testing import capture_logs

from deviceshare.domain import contract
from deviceshare.domain.admission.drafts import Draft
from deviceshare.domain.admission.pod_injection import inject
from deviceshare.domain.admission.settings import InjectionSettings
from deviceshare.domain.objects.device_quota import DeviceQuota, DeviceQuotaSpec
from deviceshare.domain.objects.devices import as_json
from deviceshare.domain.objects.groups import (
    REFUSE,
    AllowedNamespaces,
    Group,
    GroupLife,
    GroupMeta,
    GroupSpec,
    GroupStatus,
    LabelSelector,
)
from deviceshare.domain.objects.ledger import Claim, claim_bytes
from deviceshare.domain.objects.object_decoder import ObjectMeta
from deviceshare.domain.objects.pod_spec import PodSpec
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import Share
from deviceshare.domain.placement.fleet import Quotas
from deviceshare.domain.placement.join_obstacles import Namespaces
from deviceshare.domain.placement.ledger_budget import BUDGET
from deviceshare.metrics import Metrics
from deviceshare.web.admission import MAX_BODY, Admission, namespace_of
from deviceshare.web.server import Server
from tests.unit.domain.jsonpatch import applied
from tests.unit.web.mirrors import FixedMirror

Json = dict[str, Any]
IDENTITY = "system:serviceaccount:deviceshare-system:deviceshare"
GROUP = Group(GroupMeta(name="team", uid="1"), GroupSpec({"nvidia.com/gpu": 1}), GroupStatus(node_name="node-1"))
USER = Pod(ObjectMeta(name="user", namespace="a", annotations={"deviceshare.io/group": "team"}), PodSpec("node-1"))


class Webhooks:
    """The three webhooks, served, with the mirrors they look at."""

    def __init__(self, *pods: Pod, group: Group = GROUP, **settings: Any) -> None:
        self.groups = FixedMirror(group)
        self.pods = FixedMirror(*(pods or (USER,)))
        self.metrics = Metrics()
        routes = Admission(self.groups, self.pods, IDENTITY, **settings).routes()
        bounds: Json = {"max_body": MAX_BODY, "timeout": 2, "tenant": namespace_of}
        self.server = Server("webhook", "127.0.0.1", 0, routes, self.metrics, **bounds)
        self.session: ClientSession

    async def post(self, path: str, body: bytes) -> tuple[int, str]:
        async with self.session.post(f"http://127.0.0.1:{self.server.port}{path}", data=io.BytesIO(body)) as response:
            return response.status, await response.text()

    async def ask(self, path: str, kind: str = "Pod", **request: Any) -> Json:
        """The `response` to a review; `user` names who asks."""
        user = {"username": request.pop("user", "alice"), "groups": ["system:authenticated"], **request.pop("who", {})}
        review = {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {
                "uid": "42",
                "kind": {"group": "", "version": "v1", "kind": kind},
                "userInfo": user,
                "operation": "CREATE",
                "object": None,
                "oldObject": None,
                "dryRun": False,
                "options": {"kind": "CreateOptions"},
                **request,
            },
        }
        status, text = await self.post(path, json.dumps(review).encode())
        assert status == 200, text
        answer = json.loads(text)
        assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
        assert answer["response"]["uid"] == "42"
        response: Json = answer["response"]
        return response


@pytest.fixture
async def webhooks(request: pytest.FixtureRequest) -> AsyncIterator[Webhooks]:
    """Settings may be given by an indirect parameter; a word is what is done about ways around the hand-over."""
    given = getattr(request, "param", {})
    webhooks = Webhooks(**(given if isinstance(given, dict) else {"bypasses": given}))
    await webhooks.server.start()
    async with ClientSession() as webhooks.session:
        yield webhooks
    await webhooks.server.stop()


def a_pod(*, group: str | None = "team", label: str | None = None, **spec: Any) -> Json:
    annotations = {} if group is None else {"deviceshare.io/group": group}
    labels = {} if label is None else {"deviceshare.io/group": label}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "pod", "creationTimestamp": None, "annotations": annotations, "labels": labels},
        "spec": {"containers": [{"name": "main", "image": "busybox", "resources": {}}], **spec},
        "status": {},
    }


def patched(pod: Json, response: Json) -> Json:
    assert response["patchType"] == "JSONPatch"
    result: Json = applied(pod, json.loads(base64.b64decode(response["patch"])))
    return result


def ready(pod: Json) -> Json:
    """The pod as the mutating webhook leaves it."""
    draft = msgspec.convert(pod, Draft)
    result: Json = applied(pod, inject(draft, GROUP).patch)
    return result


# Namespaces.


async def test_a_pod_of_a_namespace_that_its_group_does_not_allow_is_refused() -> None:
    """By the request's namespace; one whose labels aren't known yet is admitted, and bind decides."""
    allowed = AllowedNamespaces("Selector", LabelSelector({"team": "vision"}), ["a"], "ask ada")
    closed = Group(GroupMeta(name="team", uid="1"), GroupSpec({"nvidia.com/gpu": 1}, allowed_namespaces=allowed))
    namespaces = Namespaces()
    namespaces.set_labels("b", {"team": "speech"})
    webhooks = Webhooks(namespaces=namespaces, group=closed)
    await webhooks.server.start()
    async with ClientSession() as webhooks.session:
        pod = ready(a_pod())
        answers = {name: await webhooks.ask("/validate-pods", object=pod, namespace=name) for name in ("a", "b", "new")}
    await webhooks.server.stop()
    assert [answers[name]["allowed"] for name in ("a", "b", "new")] == [True, False, True]
    said = answers["b"]["status"]["message"]
    assert said.startswith("metadata.annotations[deviceshare.io/group]: group team takes no pods of namespace b, only")
    assert said.endswith("namespace a and those of namespaces with the labels team=vision; its owner says: ask ada")


# Quotas.


async def test_a_group_that_alone_exceeds_a_quota_is_refused() -> None:
    """When it is created, and when what it wants or how it is labelled changes; a bound one stays as it is."""
    quotas = Quotas()
    spec = DeviceQuotaSpec(LabelSelector({"team": "vision"}), {"nvidia.com/gpu": 2})
    quotas.put("team", DeviceQuota(ObjectMeta(name="team"), spec))
    webhooks = Webhooks(quotas=quotas)

    def group(count: int, label: str = "vision", node: str = "") -> Json:
        meta = {"name": "g", "labels": {"team": label}}
        return {"metadata": meta, "spec": {"resources": {"nvidia.com/gpu": count}}, "status": {"nodeName": node}}

    await webhooks.server.start()
    async with ClientSession() as webhooks.session:
        asked = [
            (group(3), None),
            (group(3), group(2)),
            (group(3), group(3, "speech")),
            (group(2), None),
            (group(3, "speech"), None),
            (group(3), group(3)),
            (group(3, node="n1"), group(3, "speech", node="n1")),
        ]
        ask = partial(webhooks.ask, "/validate-groups", "SharedDeviceGroup")
        answers = [await ask(object=new, oldObject=old, operation="UPDATE" if old else "CREATE") for new, old in asked]
    await webhooks.server.stop()
    assert [each["allowed"] for each in answers] == [False, False, False, True, True, True, True]
    text = "quota team allows 2 nvidia.com/gpu in all; group g wants 3: request fewer, or change the quota"
    assert answers[0]["status"]["message"].startswith(text)


# Ways around.


AROUND = {"hostPID": True, "containers": [{"name": "main"}]}


@pytest.mark.parametrize("webhooks", ["warn", "refuse"], indirect=True)
async def test_a_way_around_is_warned_of_or_refused_as_set(webhooks: Webhooks, request: pytest.FixtureRequest) -> None:
    """Of pods of groups only, and of each container that comes later."""
    refuses = request.node.callspec.params["webhooks"] == "refuse"
    pod = ready(a_pod() | {"spec": AROUND})
    debugged = ready(a_pod())
    privileged = {"name": "debug", "securityContext": {"privileged": True}}
    debugging = ready(debugged | {"spec": {**debugged["spec"], "ephemeralContainers": [privileged]}})
    annotated = {**debugged, "metadata": {**debugged["metadata"]}}
    annotated["metadata"]["annotations"] = {**debugged["metadata"]["annotations"], "cdi.k8s.io/x": "x=all"}
    later: Json = {"operation": "UPDATE", "oldObject": debugged}

    answers = [
        await webhooks.ask("/validate-pods", object=pod),
        await webhooks.ask("/validate-pods", object=debugging, subResource="ephemeralcontainers", **later),
        await webhooks.ask("/validate-pods", object=annotated, **later),
    ]
    for answer, word in zip(answers, ("spec.hostPID", "'debug' is privileged", "cdi.k8s.io/x"), strict=True):
        assert answer["allowed"] is not refuses
        assert word in (answer["status"]["message"] if refuses else " ".join(answer["warnings"]))
        assert ("warnings" in answer) is not refuses
    plain = a_pod(group=None) | {"spec": AROUND}
    assert await webhooks.ask("/validate-pods", object=plain) == {"uid": "42", "allowed": True}


@pytest.mark.parametrize("webhooks", ["refuse"], indirect=True)
async def test_what_was_let_in_before_may_be_changed(webhooks: Webhooks) -> None:
    """A stricter setting must not keep a running pod from being labelled, debugged or given devices."""
    old = ready(a_pod() | {"spec": AROUND})
    old["metadata"]["annotations"]["cdi.k8s.io/x"] = "1"
    new = {**old, "metadata": {**old["metadata"], "labels": {**old["metadata"]["labels"], "tier": "web"}}}
    debugging = ready(old | {"spec": {**old["spec"], "ephemeralContainers": [{"name": "debug"}]}})
    around = {"nvidia.cdi.k8s.io/pod": "x=1"}
    given = {**old, "metadata": {**old["metadata"], "annotations": {**old["metadata"]["annotations"], **around}}}

    for request in (
        {"object": new},
        {"object": debugging, "subResource": "ephemeralcontainers"},
        {"object": given, "user": IDENTITY},
    ):
        assert (await webhooks.ask("/validate-pods", operation="UPDATE", oldObject=old, **request))["allowed"]


# Mutation.


async def test_a_pod_of_a_group_comes_back_ready(webhooks: Webhooks) -> None:
    """And passes the review that stands behind, as in the API server."""
    response = await webhooks.ask("/mutate-pods", object=a_pod())
    pod = patched(a_pod(), response)

    assert response["allowed"]
    assert "warnings" not in response
    assert pod["spec"]["schedulerName"] == "deviceshare-scheduler"
    assert (await webhooks.ask("/validate-pods", object=pod)) == {"uid": "42", "allowed": True}
    assert "patch" not in await webhooks.ask("/mutate-pods", object=pod)


@pytest.mark.parametrize("path", ["/mutate-pods", "/validate-pods"])
async def test_other_pods_pass_whatever_they_hold(webhooks: Webhooks, path: str) -> None:
    """Not even their spec is read."""
    pod = a_pod(group=None) | {"spec": "of a kind that we have never seen"}

    assert await webhooks.ask(path, object=pod) == {"uid": "42", "allowed": True}


SHARE = [{"name": "main", "image": "busybox", "resources": {"limits": {"aliyun.com/gpu-mem": "3", "cpu": None}}}]


async def test_a_pod_that_asks_for_a_share_comes_back_ready(webhooks: Webhooks) -> None:
    """It says so by its limits alone, and passes the review that stands behind."""
    pod = a_pod(group=None, containers=SHARE, initContainers=None)

    ready = patched(pod, await webhooks.ask("/mutate-pods", object=pod))

    assert ready["metadata"]["labels"] == {"deviceshare.io/group": ""}
    assert (await webhooks.ask("/validate-pods", object=ready)) == {"uid": "42", "allowed": True}
    assert "patch" not in await webhooks.ask("/mutate-pods", object=ready)


@pytest.mark.parametrize("resources", [None, {}, {"limits": None}, {"limits": {"cpu": "1"}}])
async def test_who_merely_speaks_of_shares_asks_for_none(webhooks: Webhooks, resources: Json | None) -> None:
    """A pod that was applied by kubectl carries its former manifest, whatever it asks for now; Go writes nulls."""
    pod = a_pod(group=None, containers=[None, {"name": "main", "resources": resources}])
    pod["metadata"]["annotations"]["note"] = json.dumps(SHARE)

    assert await webhooks.ask("/mutate-pods", object=pod) == {"uid": "42", "allowed": True}


@pytest.mark.parametrize(
    "webhooks", [{"injection": InjectionSettings(dialects=frozenset()), "largest": lambda _: 1024}], indirect=True
)
async def test_settings_and_nodes_decide_which_shares_are_served(webhooks: Webhooks) -> None:
    """A dialect that is off is left to its own system; more than any node has is refused at once."""
    pod = a_pod(group=None, containers=SHARE)
    for path in ("/mutate-pods", "/validate-pods"):
        assert await webhooks.ask(path, object=pod) == {"uid": "42", "allowed": True}

    large = [{"name": "main", "resources": {"limits": {"deviceshare.io/gpu-mem": "3"}}}]
    pod = a_pod(group=None, containers=large)
    answer = await webhooks.ask("/validate-pods", object=patched(pod, await webhooks.ask("/mutate-pods", object=pod)))
    assert "ask for at most 1" in answer["status"]["message"]


async def test_a_dry_run_gets_the_same_answer(webhooks: Webhooks) -> None:
    """There is nothing to leave out: no webhook does anything but answer."""
    asked = await webhooks.ask("/mutate-pods", object=a_pod())

    assert await webhooks.ask("/mutate-pods", object=a_pod(), dryRun=True) == asked


async def test_a_missing_group_is_warned_about_only_once_the_groups_are_known(webhooks: Webhooks) -> None:
    """Right after the start nothing can be said about it."""
    [warning] = (await webhooks.ask("/mutate-pods", object=a_pod(group="other")))["warnings"]
    assert "'other' doesn't exist yet" in warning

    webhooks.groups.synced = False
    response = await webhooks.ask("/mutate-pods", object=a_pod(group="other"))

    assert "warnings" not in response
    assert "patch" in response


async def test_a_pod_that_names_its_group_wrongly_is_refused(webhooks: Webhooks) -> None:
    """The user's client shows the message."""
    response = await webhooks.ask("/mutate-pods", object=a_pod(group="Team!"))

    assert not response["allowed"]
    assert response["status"]["code"] == 403
    assert response["status"]["message"].startswith("metadata.annotations[deviceshare.io/group]: ")


async def test_warnings_stay_within_what_the_api_server_passes_on(webhooks: Webhooks) -> None:
    """It cuts at 4096 characters; a pod of a hundred containers must not lose the count."""
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    containers = [{"name": f"{number:0300}", "env": env} for number in range(100)]

    warnings = (await webhooks.ask("/mutate-pods", object=a_pod(containers=containers)))["warnings"]

    assert sum(map(len, warnings)) <= 4096
    assert all(len(warning) <= 256 for warning in warnings)
    assert warnings[-1] == "… and 85 more warnings"


async def test_a_debug_container_sees_the_groups_devices_too(webhooks: Webhooks) -> None:
    """`kubectl debug` asks through a subresource; containers that are there already are left alone."""
    old = a_pod(label="team", ephemeralContainers=[{"name": "old"}])
    new = a_pod(label="team", ephemeralContainers=[{"name": "old"}, {"name": "new"}])
    request: Json = {"operation": "UPDATE", "subResource": "ephemeralcontainers", "oldObject": old}

    refused = await webhooks.ask("/validate-pods", object=new, **request)
    pod = patched(new, await webhooks.ask("/mutate-pods", object=new, **request))

    assert not refused["allowed"]
    assert (await webhooks.ask("/validate-pods", object=pod, **request))["allowed"]
    old_container, new_container = pod["spec"].pop("ephemeralContainers")
    assert old_container == {"name": "old"}
    assert new_container["env"][0]["name"] == "NVIDIA_VISIBLE_DEVICES"
    assert pod["spec"] == {key: value for key, value in old["spec"].items() if key != "ephemeralContainers"}


async def test_an_update_of_a_pod_is_not_mutated(webhooks: Webhooks) -> None:
    """Nearly all of a pod is fixed once it exists."""
    response = await webhooks.ask("/mutate-pods", operation="UPDATE", object=a_pod(), oldObject=a_pod())

    assert response == {"uid": "42", "allowed": True}


# Validation of pods.


async def test_only_deviceshare_changes_its_annotations(webhooks: Webhooks) -> None:
    """Who asks is told by the review, and can't be forged by the user."""
    old, new = a_pod(label="team"), a_pod(label="team")
    new["metadata"]["annotations"]["deviceshare.io/nvidia-visible-devices"] = "0,1"
    request: Json = {"operation": "UPDATE", "object": new, "oldObject": old}

    refused = await webhooks.ask("/validate-pods", **request)

    assert "deviceshare.io/nvidia-visible-devices" in refused["status"]["message"]
    assert (await webhooks.ask("/validate-pods", user=IDENTITY, **request))["allowed"]


async def test_taking_a_pod_out_of_its_group_is_refused_though_the_new_object_says_nothing_of_it(
    webhooks: Webhooks,
) -> None:
    """The old object counts as well."""
    response = await webhooks.ask(
        "/validate-pods", operation="UPDATE", object=a_pod(group=None), oldObject=a_pod(label="team")
    )

    assert not response["allowed"]


async def test_deleting_a_pod_is_anybodys_right(webhooks: Webhooks) -> None:
    """A webhook rule that is wider than ours must not trap pods."""
    assert (await webhooks.ask("/validate-pods", operation="DELETE", oldObject=a_pod()))["allowed"]


# Validation of groups.


def a_group(**spec: Any) -> Json:
    return {
        "apiVersion": "deviceshare.io/v1alpha1",
        "kind": "SharedDeviceGroup",
        "metadata": {"name": "team", "uid": "1", "creationTimestamp": None},
        "spec": {"resources": {"nvidia.com/gpu": 1}, **spec},
        "status": {"nodeName": "node-1"},
    }


async def test_a_new_group_gets_the_finalizer_of_its_deletion_policy(webhooks: Webhooks) -> None:
    """Beside those of others; what can't be read is for the validation to refuse."""

    async def finalizers(theirs: list[str], **spec: Any) -> list[str]:
        group = a_group(**spec)
        group["metadata"] |= {"finalizers": theirs} if theirs else {}
        response = await webhooks.ask("/mutate-groups", "SharedDeviceGroup", object=group)
        assert response["allowed"]
        found: list[str] = (patched(group, response) if "patch" in response else group)["metadata"].get(
            "finalizers", []
        )
        return found

    assert await finalizers([]) == [contract.PODS_FINALIZER]
    assert await finalizers(["example.com/backup"]) == ["example.com/backup", contract.PODS_FINALIZER]
    assert await finalizers([contract.PODS_FINALIZER]) == [contract.PODS_FINALIZER]
    assert await finalizers([], deletionPolicy="Refuse") == []
    assert await finalizers([], resources="two") == [contract.PODS_FINALIZER]
    tracked = a_group(deletionPolicy="Refuse")
    tracked["metadata"]["managedFields"] = [{"manager": "kubectl-create", "operation": "Update"}]
    stored = patched(tracked, await webhooks.ask("/mutate-groups", "SharedDeviceGroup", object=tracked))
    assert stored == a_group(deletionPolicy="Refuse")
    tracked["metadata"]["managedFields"][0]["operation"] = "Apply"
    assert "patch" not in await webhooks.ask("/mutate-groups", "SharedDeviceGroup", object=tracked)
    changed = {"operation": "UPDATE", "object": a_group(), "oldObject": a_group()}
    assert "patch" not in await webhooks.ask("/mutate-groups", "SharedDeviceGroup", **changed)


@pytest.mark.parametrize("webhooks", [{"life": GroupLife(deletion_policy=REFUSE)}], indirect=True)
async def test_a_new_group_gets_no_finalizer_where_the_default_refuses_deletions(webhooks: Webhooks) -> None:
    """Unless it says otherwise itself."""
    answers = [
        await webhooks.ask("/mutate-groups", "SharedDeviceGroup", object=a_group(**spec))
        for spec in ({}, {"deletionPolicy": "AfterLastPod"})
    ]
    assert ["patch" in answer for answer in answers] == [False, True]


async def ask_group(webhooks: Webhooks, operation: str, **request: Any) -> Json:
    return await webhooks.ask("/validate-groups", kind="SharedDeviceGroup", operation=operation, **request)


async def test_a_misspelt_field_of_a_group_is_refused(webhooks: Webhooks) -> None:
    """The CRD keeps fields of later releases, so the API server doesn't. What a later release wrote may stay."""
    wrong, inner = a_group(releaseafter="30m"), a_group(allowedNamespaces={"from": "All", "Message": "ask Kim"})
    refused = [
        await ask_group(webhooks, "CREATE", object=wrong),
        await ask_group(webhooks, "UPDATE", object=wrong, oldObject=a_group()),
        await ask_group(webhooks, "UPDATE", object=inner, oldObject=wrong),
    ]
    known = "allowedNamespaces, cordonPolicy, deletionPolicy, handover, nodeLossPolicy, nodeSelector, releaseAfter, "
    said = [response["status"]["message"] for response in refused]
    assert said[:2] == [f"spec: unknown field 'releaseafter'; known are {known}resources and schedulingStrategy"] * 2
    assert said[2] == ("spec.allowedNamespaces: unknown field 'Message'; known are from, message, names and selector")
    assert (await ask_group(webhooks, "UPDATE", object=wrong, oldObject=wrong))["allowed"]
    assert (await ask_group(webhooks, "UPDATE", object=a_group(), oldObject=wrong))["allowed"]


async def test_a_group_in_use_is_not_deleted(webhooks: Webhooks) -> None:
    """The message names the pods."""
    response = await ask_group(webhooks, "DELETE", oldObject=a_group())

    assert not response["allowed"]
    assert "used by 1 pod: a/user;" in response["status"]["message"]


async def test_a_group_that_ends_after_its_last_pod_is_deleted(webhooks: Webhooks) -> None:
    """Its finalizer keeps it until then."""
    group = a_group(deletionPolicy="AfterLastPod")
    early = await ask_group(webhooks, "DELETE", oldObject=group)
    group["metadata"]["finalizers"] = ["deviceshare.io/pods"]

    assert "retry in a moment" in early["status"]["message"]
    assert (await ask_group(webhooks, "DELETE", oldObject=group))["allowed"]


async def test_no_group_is_deleted_before_the_pods_are_known(webhooks: Webhooks) -> None:
    """Not to know is no proof that nobody uses it; the user is asked to retry."""
    webhooks.pods.synced = False

    response = await ask_group(webhooks, "DELETE", oldObject=a_group())

    assert response["status"]["code"] == 503
    assert "retry" in response["status"]["message"]


async def test_groups_are_reviewed_when_made_and_changed(webhooks: Webhooks) -> None:
    """Unknown resources at creation, any change of the spec while bound."""
    unknown = a_group(resources={"example.com/fpga": 1})

    assert (await ask_group(webhooks, "CREATE", object=a_group()))["allowed"]
    created = await ask_group(webhooks, "CREATE", object=unknown)
    changed = await ask_group(webhooks, "UPDATE", object=unknown, oldObject=a_group())

    assert "unknown resource 'example.com/fpga'" in created["status"]["message"]
    assert "spec can't be changed while the group is bound to node node-1" in changed["status"]["message"]


async def test_the_status_of_a_group_is_left_to_rbac(webhooks: Webhooks) -> None:
    """Whoever may write it may have to mend it."""
    response = await ask_group(webhooks, "UPDATE", subResource="status", object=a_group(), oldObject=a_group())

    assert response["allowed"]


@pytest.mark.parametrize("count", [1.5, "2", [1]])
async def test_a_count_that_is_no_whole_number_is_refused_by_field(webhooks: Webhooks, count: Any) -> None:
    """The CRD's schema catches it first; the webhook doesn't depend on that."""
    response = await ask_group(webhooks, "CREATE", object=a_group(resources={"nvidia.com/gpu": count}))

    assert response["status"]["code"] == 400
    assert "$.spec.resources" in response["status"]["message"]


# What is no review.


# Agents' reports.

AGENT = "system:serviceaccount:deviceshare-system:deviceshare-agent"
LEDGER: Json = {"metadata": {"name": "node-1"}, "spec": {"claims": {}}, "status": {"total": "1"}}
REPORT = {**LEDGER, "status": {"total": "1", "hardware": {"driver": "550"}}}


SMALL = Claim(pod="a/b", shares=[Share("c", "amd.com/gpu", 0, percent=1)])


async def review_report(webhooks: Webhooks, operation: str = "UPDATE", node: str = "", **request: Any) -> Json:
    extra = {"authentication.kubernetes.io/node-name": [node]} if node else None
    review = {"operation": operation, "subResource": "status", "object": REPORT, "oldObject": LEDGER, "user": AGENT}
    return await webhooks.ask("/validate-node-devices", "NodeDevices", who={"extra": extra}, **{**review, **request})


async def test_an_agent_reports_on_its_own_node(webhooks: Webhooks) -> None:
    """Where its token names no node, any node's object may be its own."""
    assert (await review_report(webhooks))["allowed"]
    assert (await review_report(webhooks, node="node-1"))["allowed"]
    refused = await review_report(webhooks, node="node-2")
    assert refused["status"]["code"] == 403 and "node-2 may report on its own node only" in refused["status"]["message"]


async def test_an_agent_writes_nothing_but_its_report(webhooks: Webhooks) -> None:
    """The leader does, and an administrator who repairs something."""
    grab = {**REPORT, "spec": {"claims": {"uid": {"group": "mine", "devices": []}}}}

    refused = await review_report(webhooks, object=grab)
    assert "status.hardware only, not spec.claims" in refused["status"]["message"]
    assert (await review_report(webhooks, object=grab, user=contract.IDENTITY))["allowed"]
    for operation in ("CREATE", "DELETE"):
        assert not (await review_report(webhooks, operation))["allowed"]


async def test_an_agent_reports_on_a_node_whose_ledger_is_full(webhooks: Webhooks) -> None:
    """Of the smallest claims, with what the API server writes of the managers of each field."""
    count = BUDGET // claim_bytes("u" * 36, SMALL)
    uids = [f"{number:036}" for number in range(count)]
    claims = {uid: {"pod": SMALL.pod, "shares": as_json(SMALL.shares)} for uid in uids}
    fields: Json = {"f:claims": {f"f:{uid}": {".": {}, "f:pod": {}, "f:shares": {}} for uid in uids}}
    managed = [{"manager": name, "fieldsV1": {"f:spec": fields}} for name in ("deviceshare", "kubectl")]
    full: Json = {"metadata": {**LEDGER["metadata"], "managedFields": managed}, "spec": {"claims": claims}}
    assert count > 3_000
    assert (await review_report(webhooks, object={**REPORT, **full}, oldObject={**LEDGER, **full}))["allowed"]


async def test_people_who_may_write_the_status_report_repairs_alone(webhooks: Webhooks) -> None:
    """Before 1.28 the webhook is called for everybody; who is in system:masters may do anything."""
    repaired = {**LEDGER, "status": {"total": "1", "recovered": ["GPU-0@then"]}}
    assert (await review_report(webhooks, object=repaired, user="alice"))["allowed"]
    refused = await review_report(webhooks, user="alice")
    assert refused["status"]["message"].startswith("only deviceshare and its agents write status.hardware: ")
    review = {"operation": "UPDATE", "subResource": "status", "object": REPORT, "oldObject": LEDGER, "user": "root"}
    who = {"groups": ["system:masters", "system:authenticated"]}
    assert (await webhooks.ask("/validate-node-devices", "NodeDevices", who=who, **review))["allowed"]


async def test_a_ledger_with_claims_is_not_deleted(webhooks: Webhooks) -> None:
    """By nobody: deviceshare deletes empty ones only."""
    held = {**LEDGER, "spec": {"claims": {"uid": {"group": "team", "devices": []}}}}
    for user in ("alice", contract.IDENTITY):
        review = {"operation": "DELETE", "object": None, "user": user}
        refused = await webhooks.ask("/validate-node-devices", "NodeDevices", oldObject=held, **review)
        assert "devices of node node-1 are claimed" in refused["status"]["message"]
        assert (await webhooks.ask("/validate-node-devices", "NodeDevices", oldObject=LEDGER, **review))["allowed"]


# What is no review.


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "not a JSON AdmissionReview"),
        (b"{", "not a JSON AdmissionReview"),
        (b"\xff\xfe", "not a JSON AdmissionReview"),
        (b'"' + b"\xff" + b'"', "not a JSON AdmissionReview"),
        (b"[" * 100_000, "not a JSON AdmissionReview"),
        (b"[]", "not a JSON AdmissionReview"),
        (b"{}", "expected an AdmissionReview of admission.k8s.io/v1, got no kind of no apiVersion"),
        (
            b'{"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "request": {"uid": "1"}}',
            "got AdmissionReview of admission.k8s.io/v1beta1; register the webhook with admissionReviewVersions: [v1]",
        ),
        (b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}', "request can't be read"),
        (b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {}}', "`uid`"),
        (
            b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "1", "kind": {}}}',
            "not none; correct the rules of the webhook configuration",
        ),
    ],
)
@pytest.mark.parametrize("path", ["/mutate-pods", "/mutate-groups", "/validate-pods", "/validate-groups"])
async def test_what_is_no_review_is_answered_400_with_what_was_expected(
    webhooks: Webhooks, path: str, body: bytes, text: str
) -> None:
    """Never a 500, and never an answer that looks like a verdict."""
    status, answer = await webhooks.post(path, body)

    assert status == 400
    assert text in answer


async def test_an_object_that_is_missing_or_odd_is_refused_by_name(webhooks: Webhooks) -> None:
    """The review is sound, so the answer is a verdict."""
    missing = await ask_group(webhooks, "DELETE")
    odd = await webhooks.ask("/mutate-pods", object=a_pod(containers={"main": {}}))

    assert missing["status"]["code"] == odd["status"]["code"] == 400
    assert "$.spec.containers" in odd["status"]["message"]


async def test_a_huge_body_is_answered_413(webhooks: Webhooks) -> None:
    """No review of objects that fit into etcd is as long."""
    status, _ = await webhooks.post("/mutate-pods", b" " * (MAX_BODY + 1))

    assert status == 413


async def test_refusals_and_faults_are_told_apart_in_the_metrics(webhooks: Webhooks) -> None:
    """A user's mistake is no failure of ours."""
    await webhooks.ask("/mutate-pods", object=a_pod())
    await webhooks.ask("/mutate-pods", object=a_pod(group="Team!"))
    await webhooks.post("/mutate-pods", b"{")

    for result in ("ok", "refused", "error"):
        labels = {"verb": "mutate-pods", "result": result}
        assert webhooks.metrics.registry.get_sample_value("deviceshare_requests_total", labels) == 1


@pytest.mark.parametrize("field", ["metadata", "spec", "status"])
@pytest.mark.parametrize("value", ["x", 1, [["a"]]], ids=str)
async def test_maps_that_are_none_are_refused_by_name(webhooks: Webhooks, field: str, value: Any) -> None:
    """Not with a fault of ours."""
    answer = await webhooks.ask(
        "/validate-node-devices",
        contract.NODE_DEVICES_KIND,
        operation="UPDATE",
        user=contract.AGENT_IDENTITY,
        object={"metadata": {"name": "n"}, field: value},
        oldObject={"metadata": {"name": "n"}},
    )
    assert not answer["allowed"]
    assert answer["status"]["code"] == 400
    assert f"{field} is not a map" in answer["status"]["message"]


@pytest.mark.parametrize("claims", ["x", 1, [["a"]]], ids=str)
async def test_a_ledger_whose_claims_are_no_map_is_not_deleted(webhooks: Webhooks, claims: Any) -> None:
    """Nobody can say that it has none."""
    review = {"operation": "DELETE", "object": None, "oldObject": {**LEDGER, "spec": {"claims": claims}}}
    answer = await webhooks.ask("/validate-node-devices", contract.NODE_DEVICES_KIND, user="root", **review)
    assert answer["status"] == {"code": 400, "message": "the object can't be read: spec.claims is not a map"}


@pytest.mark.parametrize("name", [["B"], {"a": 1}, None, 1], ids=str)
async def test_a_variable_whose_name_is_no_text_is_left_to_the_api_server(webhooks: Webhooks, name: Any) -> None:
    """The webhook sees pods before anybody has checked them."""
    answer = await webhooks.ask("/mutate-pods", object=a_pod(containers=[{"name": "c", "env": [{"name": name}]}]))
    assert answer["allowed"]


async def test_costly_reviews_are_refused_before_they_cost(webhooks: Webhooks) -> None:
    """Three bytes a container would become two kilobytes of a patch, while everybody waits."""
    many = await webhooks.ask("/mutate-pods", object=a_pod(containers=[{}] * 501))
    assert "501 containers of a kind in a pod are more than deviceshare accepts" in many["status"]["message"]

    ours = {"deviceshare.io/group": "team", **{f"deviceshare.io/{number}": "" for number in range(100)}}
    copied = await webhooks.ask("/mutate-pods", object={"metadata": {"annotations": ours}, "spec": {}})
    assert "annotations of a pod that begin with deviceshare.io/" in copied["status"]["message"]

    status, text = await webhooks.post("/mutate-pods", b"[" + b"{}," * 30_000 + b"{}]")
    assert (status, "more than 50000 members" in text) == (400, True)


async def test_our_own_updates_of_a_pod_are_never_refused_for_its_size(webhooks: Webhooks) -> None:
    """Its owner may have filled it with what is costly to review; a release must be able to touch it all the same."""
    costly = a_pod(containers=[{"name": "main", "args": [""] * 30_000}])
    several = a_pod(containers=[{"name": f"c{number}"} for number in range(501)])
    for pod in (costly, several):
        asked: Json = {"operation": "UPDATE", "object": pod, "oldObject": pod}
        for path in ("/mutate-pods", "/validate-pods"):
            assert (await webhooks.ask(path, user=contract.IDENTITY, **asked))["allowed"]
    body = {"request": {"userInfo": {"username": "somebody"}, "object": costly, "oldObject": costly}}
    status, _ = await webhooks.post("/validate-pods", json.dumps(body).encode())
    assert status == 400, "of others it is"


def test_the_tenant_of_a_review_is_the_namespace_that_the_api_server_says() -> None:
    """It stands before the object, which may say what it likes."""
    review: Json = {"request": {"uid": "1", "namespace": "team", "object": {"metadata": {"namespace": "other"}}}}
    assert namespace_of(json.dumps(review, separators=(",", ":")).encode()) == "team"
    assert namespace_of(b"{") == ""


async def test_a_pod_with_a_table_in_an_annotation_is_no_costly_review(webhooks: Webhooks) -> None:
    """Only members cost; strings may hold any number of commas, brackets and quotes."""
    table = ",".join(["0.5", '{"a":[\\"b\\\\"'] * 30_000)
    answer = await webhooks.ask("/mutate-pods", object={"metadata": {"annotations": {"table": table}}, "spec": {}})
    assert answer["allowed"]


async def test_what_is_no_review_is_quoted_with_a_bound(webhooks: Webhooks) -> None:
    """In the answer and in the log, where it comes once in a while only."""
    body = json.dumps({"apiVersion": "v1", "kind": "\x1b" + "x" * 1_000_000}).encode()
    with capture_logs() as logs:
        for _ in range(5):
            status, text = await webhooks.post("/mutate-pods", body)
            assert (status, len(text) < 1000, "\x1b" in text) == (400, True, False)
    assert len(logs) == 1
    assert len(str(logs[0])) < 1000
