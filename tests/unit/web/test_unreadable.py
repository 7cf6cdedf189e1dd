"""What the webhooks and the extender make of objects with nulls, and of objects that can't be read."""

from typing import Any

import msgspec
import pytest

from deviceshare.domain import contract
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.object_decoder import decoder_of
from deviceshare.domain.objects.pods import Pod
from tests.unit.web.test_extender import GPU, asking, fleet, group, pod, post, whole_node
from tests.unit.web.webhooks import Webhooks

Json = dict[str, Any]
ODD = {"type": "cloud.google.com/load-balancer-neg-ready", "status": "True", "lastTransitionTime": None}
"""As GKE's NEG reflector writes it."""


def salvaged(type_: type[Any], document: Json) -> Any:
    return decoder_of(type_).salvage(msgspec.json.encode(document))


async def test_filter_places_a_pod_whose_condition_has_no_time() -> None:
    """400 would leave it waiting for ever; nodes that come whole may hold nulls, too."""
    odd = {**pod(), "status": {"conditions": [ODD, None], "phase": None}}
    odd["metadata"]["ownerReferences"] = None
    async with asking(fleet({"a": 4}), group()) as client:
        answer = await post(client, "filter", {"Pod": odd, "NodeNames": ["a"], "Nodes": None})
        assert answer["NodeNames"] == ["a"]
        nodes = {"metadata": None, "items": [{**whole_node("a"), "status": {"conditions": [ODD]}}]}
        answer = await post(client, "filter", {"Pod": odd, "Nodes": nodes, "NodeNames": None})
        assert [each["metadata"]["name"] for each in answer["Nodes"]["items"]] == ["a"]
        (score,) = await post(client, "prioritize", {"Pod": odd, "NodeNames": ["a"]})
    assert score["Host"] == "a"


async def test_a_group_that_cannot_be_read_is_the_reason_why_its_pod_waits() -> None:
    """What of it can be read looks like a group that wants less."""
    document = {"metadata": {"name": "team", "uid": "g-1"}, "spec": {"resources": {GPU: 1, "amd.com/gpu": "1"}}}
    async with asking(fleet({"a": 4}), salvaged(Group, document)) as client:
        answer = await post(client, "filter", {"Pod": pod(), "NodeNames": ["a"]})
    assert answer["NodeNames"] == []
    assert answer["FailedNodes"]["a"] == (
        "group team can't be read (spec.resources[amd.com/gpu]: Expected `int`, got `str`): kubectl edit sdg team"
    )


@pytest.mark.parametrize("conditions", [[ODD], [{"type": 3}], "none"])
async def test_a_label_may_change_whatever_else_the_pod_holds(webhooks: Webhooks, conditions: Any) -> None:
    """Its owner can do nothing about what others wrote into its status."""
    old: Json = {
        "metadata": {"labels": {contract.GROUP: "team"}, "annotations": None},
        "status": {"conditions": conditions},
    }
    new = {**old, "metadata": {**old["metadata"], "labels": {contract.GROUP: "team", "app": "x"}}}
    answer = await webhooks.ask("/validate-pods", operation="UPDATE", oldObject=old, object=new)
    assert answer["allowed"], answer
    answer = await webhooks.ask("/mutate-pods", operation="UPDATE", oldObject=old, object=new)
    assert answer["allowed"], answer
    moved = {**old, "metadata": {**old["metadata"], "labels": {contract.GROUP: "other"}}}
    answer = await webhooks.ask("/validate-pods", operation="UPDATE", oldObject=old, object=moved)
    assert not answer["allowed"], "its group is guarded as ever"


@pytest.mark.parametrize(
    "spoilt",
    [
        {"metadata": {"annotations": {contract.GROUP_UID: 1}}},
        {"spec": {"nodeName": 3}},
        {"spec": 3},
        {"spec": {"nodeName": "node-1"}, "status": {"phase": 3}},
    ],
)
async def test_a_group_is_not_deleted_while_a_pod_that_cannot_be_read_may_use_it(spoilt: Json) -> None:
    """The refusal names the pod."""
    meta = {"name": "odd", "namespace": "a", "labels": {contract.GROUP: "team"}}
    document: Json = {"spec": {"nodeName": "node-1"}, **spoilt, "metadata": {**meta, **spoilt.get("metadata", {})}}
    document["metadata"].setdefault("annotations", {contract.GROUP: "team"})
    async with Webhooks(salvaged(Pod, document)) as webhooks:
        group = {"metadata": {"name": "team", "uid": "1"}, "status": {"nodeName": "node-1"}}
        answer = await webhooks.ask("/validate-groups", contract.GROUP_KIND, operation="DELETE", oldObject=group)
    assert not answer["allowed"]
    assert "is used by 1 pod: a/odd" in answer["status"]["message"]


async def test_a_group_that_cannot_be_read_can_be_corrected_labelled_and_deleted(webhooks: Webhooks) -> None:
    """Somebody loosened the CRD's schema; the way out must stay open, and lead nowhere else."""

    async def update(old: Json, new: Json) -> tuple[bool, str]:
        answer = await webhooks.ask(
            "/validate-groups", contract.GROUP_KIND, operation="UPDATE", oldObject=old, object=new
        )
        return answer["allowed"], answer.get("status", {}).get("message", "")

    right: Json = {"metadata": {"name": "g", "uid": "9"}, "spec": {"resources": {GPU: 2}}, "status": {"nodeName": "n"}}
    odd: Json = {**right, "spec": {"resources": {GPU: "2"}}}
    assert await update(odd, {**odd, "metadata": {**odd["metadata"], "labels": {"a": "b"}}}) == (True, "")
    assert await update(odd, right) == (True, "")
    assert (await update(odd, {**odd, "spec": {"resources": {GPU: "2"}, "schedulingStrategy": "spread"}}))[0] is False
    allowed, said = await update(right, odd)
    assert not allowed
    assert f"spec.resources[{GPU}]: Expected `int`, got `str`" in said
    answer = await webhooks.ask("/validate-groups", contract.GROUP_KIND, operation="DELETE", oldObject=odd)
    assert answer["allowed"], answer


async def test_nulls_in_a_review_are_nothing(webhooks: Webhooks) -> None:
    """The user, a label, a variable: Go means nothing by any of them."""
    user = {"username": None, "extra": {"authentication.kubernetes.io/node-name": [None], "x": None}}
    container = {"name": "main", "env": [None, {"name": "A", "value": None}], "resources": None}
    new = {
        "metadata": {"name": None, "labels": {"a": None}, "annotations": {contract.GROUP: "team"}},
        "spec": {"containers": [container], "initContainers": None, "nodeName": None},
    }
    answer = await webhooks.ask("/mutate-pods", who=user, object=new, dryRun=None, subResource=None)
    assert answer["allowed"], answer
    assert answer["patch"]
