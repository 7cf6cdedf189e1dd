"""The webhooks over HTTP: what the API server sends of groups and NodeDevices, and what it is answered."""

from functools import partial
from typing import Any

import pytest

from deviceshare.domain import contract
from deviceshare.domain.objects.device_quota import DeviceQuota, DeviceQuotaSpec
from deviceshare.domain.objects.devices import as_json
from deviceshare.domain.objects.groups import REFUSE, GroupLife, LabelSelector
from deviceshare.domain.objects.ledger import Claim, claim_bytes
from deviceshare.domain.objects.object_decoder import ObjectMeta
from deviceshare.domain.objects.shares import Share
from deviceshare.domain.placement.fleet import Quotas
from deviceshare.domain.placement.ledger_budget import BUDGET
from tests.unit.web.webhooks import Json, Webhooks, patched

# Groups.


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
    """Whoever may write it may have to repair it."""
    response = await ask_group(webhooks, "UPDATE", subResource="status", object=a_group(), oldObject=a_group())

    assert response["allowed"]


@pytest.mark.parametrize("count", [1.5, "2", [1]])
async def test_a_count_that_is_no_whole_number_is_refused_by_field(webhooks: Webhooks, count: Any) -> None:
    """The CRD's schema catches it first; the webhook doesn't depend on that."""
    response = await ask_group(webhooks, "CREATE", object=a_group(resources={"nvidia.com/gpu": count}))

    assert response["status"]["code"] == 400
    assert "$.spec.resources" in response["status"]["message"]


# Quotas.


async def test_a_group_that_alone_exceeds_a_quota_is_refused() -> None:
    """When it is created, and when what it wants or how it is labelled changes; a bound one stays as it is."""
    quotas = Quotas()
    spec = DeviceQuotaSpec(LabelSelector({"team": "vision"}), {"nvidia.com/gpu": 2})
    quotas.put("team", DeviceQuota(ObjectMeta(name="team"), spec))

    def group(count: int, label: str = "vision", node: str = "") -> Json:
        meta = {"name": "g", "labels": {"team": label}}
        return {"metadata": meta, "spec": {"resources": {"nvidia.com/gpu": count}}, "status": {"nodeName": node}}

    async with Webhooks(quotas=quotas) as webhooks:
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
    assert [each["allowed"] for each in answers] == [False, False, False, True, True, True, True]
    text = "quota team allows 2 nvidia.com/gpu in all; group g wants 3: request fewer, or change the quota"
    assert answers[0]["status"]["message"].startswith(text)


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
