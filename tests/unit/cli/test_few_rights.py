"""What commands see for people who may not list nodes, or pods outside of one namespace."""

from typing import Any

import pytest

from deviceshare.cli.snapshot import look
from deviceshare.doctor.kinds import AccessReview
from deviceshare.domain.answers.picture import draw
from deviceshare.domain.placement.join_obstacles import pod_obstacle
from deviceshare.kube.api import Collection
from deviceshare.loops.kinds import DEVICE_QUOTAS, GROUPS, NAMESPACES, NODE_DEVICES, NODES, PODS
from deviceshare.loops.ports import Forbidden, Kind
from tests.unit.domain.objects import a_group, a_ledger, a_pod, gpus

STATED = "waiting, as the leader stated"


class FewRights:
    """An API server for somebody who may read groups, ledgers and, unless `blind`, the pods of namespace ns."""

    def __init__(self, *, blind: bool = False) -> None:
        self.blind = blind
        self.allowed: dict[str, Any] | None = None

    async def create(self, _: Kind[Any], body: Any) -> AccessReview:
        asked = body["spec"]["resourceAttributes"]
        return AccessReview({"allowed": asked.get("namespace") == "ns" and not self.blind})

    async def get(self, *_: Any) -> Any:
        raise Forbidden("no")

    async def snapshot(self, of: Collection[Any], *_: Any, **__: Any) -> tuple[list[Any], str]:
        kind = of.kind
        if kind in (NODES, NAMESPACES) or (kind is PODS and (self.blind or of.namespace != "ns")):
            raise Forbidden("no")
        condition = {"type": "Bound", "reason": "Waiting", "message": STATED, "observedGeneration": 3}
        status = {"conditions": [condition]}
        waiting = a_group("waits", 9, status=status, nodeSelector={"zone": "west"}, allowedNamespaces=self.allowed)
        held = a_group("held", 2, node="n1", status={"allocatedPods": ["ns/gone", "other/q"]})
        objects: dict[Kind[Any], list[Any]] = {
            GROUPS: [waiting, held],
            NODE_DEVICES: [a_ledger("n1", held=gpus(0, 1))],
            PODS: [a_pod("p", "waits")],
            DEVICE_QUOTAS: [],
        }
        return objects[kind], "1"


@pytest.mark.parametrize("blind", [False, True])
async def test_ledgers_and_statuses_stand_in_for_what_can_not_be_listed(blind: bool) -> None:
    """Nodes are those with a ledger; pods of other namespaces are those that groups' statuses name."""
    api: Any = FewRights(blind=blind)
    seen = await look(api, "ns")
    picture = draw(seen.fleet, seen.groups.values(), seen.pods.values(), partly_seen=True)

    (node,) = picture.nodes
    held, waits = picture.groups
    assert (node.obstacle, [count.free for count in node.counts]) == ("", [2])
    # Of her own namespace she sees the pods themselves, and so that one has ended.
    assert held.pods == (["ns/gone", "other/q"] if blind else ["other/q"])
    assert (waits.message, waits.waiting) == (STATED, 0 if blind else 1)
    assert [each.what for each in seen.unseen] == ["nodes", "pods", "devices of other pods"]
    assert ("1 of the 2 pods" in seen.unseen[1].text) != blind
    # No label was compared, so the selector must rule out nothing; it is kept for the answer.
    assert seen.groups["waits"].spec.node_selector == {}
    assert seen.selectors == {"waits": {"zone": "west"}}


async def test_labels_of_namespaces_that_can_not_be_listed_keep_nobody_waiting() -> None:
    """The person is told that they were not compared; a namespace by its name is compared all the same."""
    api: Any = FewRights()
    seen = await look(api, "ns")
    pod, by_name = a_pod("p", "g"), {"from": "Selector", "names": ["other"]}
    by_label = {**by_name, "selector": {"matchLabels": {"team": "vision"}}}
    assert not pod_obstacle(pod, a_group("g", allowedNamespaces=by_label), seen.fleet.namespaces)
    assert pod_obstacle(pod, a_group("g", allowedNamespaces=by_name), seen.fleet.namespaces)

    api.allowed = by_label
    (said,) = [each.text for each in (await look(api, "ns")).unseen if each.what == "namespaces"]
    assert "whether their labels let pods join waits (spec.allowedNamespaces)" in said
