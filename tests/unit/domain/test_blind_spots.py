"""What people are shown of objects that can't be read: a line and a cure, in place of a failure."""

from typing import Any

import msgspec

from deviceshare.cli.inspect_view import troubles
from deviceshare.doctor.nodes import judge_unreadable
from deviceshare.domain import contract
from deviceshare.domain.answers.explanation import Case, explain_group, explain_pod
from deviceshare.domain.answers.picture import draw
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.object_decoder import decoder_of
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import ReasonKind
from deviceshare.domain.placement.join_obstacles import Namespaces, UnreadableObject, pod_obstacle, unreadable
from deviceshare.domain.placement.replacement import pod_changes
from tests.unit.domain.objects import GPU, a_fleet, a_group, a_ledger, a_node, a_pod, gpus

POD = {"metadata": {"name": "odd", "namespace": "ns", "uid": "u", "labels": {contract.GROUP: "team"}}}


def odd_pod(**changes: Any) -> Pod:
    """A pod of the group whose annotations, and with them its devices, can't be read."""
    body = {"metadata": {**POD["metadata"], "annotations": 3}, "spec": {"nodeName": "n1"}, **changes}
    return decoder_of(Pod).salvage(msgspec.json.encode(body))


def odd_group() -> Group:
    body = {"metadata": {"name": "team", "uid": "g"}, "spec": {"resources": {GPU: "2"}, "nodeSelector": {"a": "b"}}}
    return decoder_of(Group).salvage(msgspec.json.encode(body))


def test_the_picture_has_a_line_for_each_with_its_cure() -> None:
    """Nodes, ledgers, groups and pods; the rest of the picture is drawn as ever."""
    node = decoder_of(Node).salvage(b'{"metadata": {"name": "n2"}, "status": {"conditions": {}}}')
    fleet = a_fleet(a_node("n1"), node, ledgers=(a_ledger("n1"),))
    picture = draw(fleet, [odd_group()], iter([odd_pod(), a_pod()]))
    assert [(each.kind, each.name) for each in picture.unreadable] == [
        ("SharedDeviceGroup", "team"),
        ("Node", "n2"),
        ("Pod", "ns/odd"),
    ]
    assert [each.name for each in picture.nodes] == ["n1", "n2"]
    assert "can't be read (status.conditions: Expected `array`, got `object`)" in picture.nodes[1].obstacle
    first, second, third = [*troubles(picture)][:3]
    assert first[1] == f"can't be read: spec.resources[{GPU}]: Expected `int`, got `str`"
    assert [cure.partition(", or ")[0] for _, _, cure in (first, second, third)] == [
        "correct that field with kubectl edit sdg team",
        "correct that field with kubectl edit node n2",
        "correct that field with kubectl edit pod -n ns odd",
    ]
    of_node = picture.of("n2")
    assert of_node is not None
    assert [each.name for each in of_node.unreadable] == ["n2"]


def test_explain_tells_what_cannot_be_read() -> None:
    """As a fact beside what can: of a group that waits, of its pod, of a pod that lives."""
    fleet, group = a_fleet(a_node(), ledgers=(a_ledger(),)), odd_group()
    said = f"spec.resources[{GPU}]: Expected `int`, got `str`"
    told = explain_group(Case(fleet, group, None, []))
    assert told.facts["can't be read"] == said
    assert told.message == f"group team can't be read ({said}): kubectl edit sdg team"
    assert not any(node.fits for node in told.nodes)
    told = explain_pod(Case(fleet, a_group(node="n1"), a_node(), []), odd_pod())
    assert told.facts["can't be read"] == "metadata.annotations: Expected `object`, got `int`"


def test_a_pod_whose_containers_are_hidden_is_not_said_to_be_past_the_webhook() -> None:
    """Deleting and recreating it, the cure for that, would cure nothing."""
    body = {**POD, "spec": {"containers": 3}}
    body["metadata"] = {**POD["metadata"], "annotations": {contract.GROUP: "team"}}
    pod = decoder_of(Pod).salvage(msgspec.json.encode(body))
    obstacle = pod_obstacle(pod, a_group(), Namespaces())
    assert obstacle is not None and obstacle.kind is ReasonKind.UNREADABLE
    assert obstacle.text == "the pod can't be read (spec.containers: Expected `array`, got `int`)"
    assert "kubectl edit pod -n ns odd" in obstacle.cure


def test_a_pod_whose_identity_is_hidden_is_no_impostor() -> None:
    """An impostor is deleted."""
    metadata = {**POD["metadata"], "uid": 3, "annotations": {contract.POD_UID: "u"}}
    assert not decoder_of(Pod).salvage(msgspec.json.encode({"metadata": metadata})).impostor
    assert decoder_of(Pod).salvage(msgspec.json.encode({"metadata": {**metadata, "uid": "v"}})).impostor


def test_a_pod_whose_annotations_are_hidden_is_not_told_of_other_devices() -> None:
    """What it had before would be lost: it stands in its annotations."""
    ledger = a_ledger(team=gpus(0, 1))
    (claim,) = ledger.claims.values()
    assert pod_changes(odd_pod(), ledger, claim) == {}
    shown = decoder_of(Pod).salvage(msgspec.json.encode({**POD, "spec": {"nodeName": "n1"}}))
    assert pod_changes(shown, ledger, claim)


def test_the_doctor_names_each_and_the_way_out() -> None:
    """A problem, since something waits for it."""
    found = unreadable("Pod", (pod.metadata for pod in (a_pod(), odd_pod())))
    assert found == [UnreadableObject("Pod", "ns/odd", "metadata.annotations: Expected `object`, got `int`")]
    (finding,) = judge_unreadable(found)
    assert finding.mark == "problem"
    assert finding.what == "Pod ns/odd can't be read: metadata.annotations: Expected `object`, got `int`"
    assert "kubectl edit pod -n ns odd" in finding.cure
