"""Ways in which a trespasser hid: each was tried on a node, and worked."""

from typing import Any

import pytest

from deviceshare.agent.violations import TRESPASS
from deviceshare.domain import contract
from deviceshare.domain.objects.hardware import Hardware, Trespass
from deviceshare.domain.objects.usage import DeviceProcess
from tests.unit.agent.node import NODE, TEAM, part, pod_subject
from tests.unit.agent.test_monitor import MonitoredNode, running, used
from tests.unit.domain.objects import GPU

MEMBER = {contract.GROUP: "team", contract.GROUP_UID: TEAM, contract.POD_UID: "uid-of-member"}
STATIC = "kubernetes.io/config.hash"
MIRROR = "kubernetes.io/config.mirror"
NODES_OWN = [{"kind": "Node", "name": NODE, "uid": "uid-of-n1", "controller": True}]


class Watched(MonitoredNode):
    """A node whose device 0 the team holds and its pod `member` uses; `intruder` uses it, too."""

    def __init__(self, **own: Any) -> None:
        super().__init__(enforced=[TRESPASS], **own)
        self.set_ledger(Hardware(devices=[part(0), part(1)]))
        self.hold(0)

    def look(self, name: str = "steal", pod: str = "intruder") -> list[Trespass]:
        self.monitor.take(used(0, running(1, "train", "member"), running(2, name, pod)))
        assert self.reported is not None
        return self.reported.trespasses

    def processes(self) -> list[DeviceProcess]:
        return self.monitor.usage.devices[0].processes


def labelled(annotations: dict[str, str], **more: Any) -> dict[str, Any]:
    """The metadata of a member, with annotations of its own besides."""
    return {"annotations": {**MEMBER, **annotations}, "labels": {contract.GROUP: "team"}, **more}


@pytest.mark.parametrize(
    ("member", "intruder"),
    [
        ({}, {"annotations": {STATIC: "uid-of-nobody"}}),
        ({}, {"annotations": {STATIC: "uid-of-member", MIRROR: "uid-of-member"}, "ownerReferences": NODES_OWN}),
        ({STATIC: "uid-of-intruder"}, {}),
        ({STATIC: "uid-of-intruder", MIRROR: "uid-of-intruder"}, {}),
        ({}, {"annotations": {contract.GROUP_UID: TEAM}}),
        ({}, {"annotations": MEMBER}),
        ({}, {"annotations": {**MEMBER, contract.POD_UID: "uid-of-intruder"}}),
        ({}, {"annotations": MEMBER, "labels": {contract.GROUP: "team"}}),
    ],
    ids=[
        "another UID on one's own pod",
        "the member's UID on one's own pod",
        "the intruder's UID on a member",
        "the intruder's UID on a member, as a mirror pod has it",
        "a forged group UID",
        "a member's annotations",
        "likewise, with its own UID",
        "the binding of a namesake",
    ],
)
async def test_no_annotation_hides_an_intruder(member: dict[str, str], intruder: dict[str, Any]) -> None:
    """It is named, evicted, and no member is blamed for it."""
    node = Watched()
    node.add_pod("member", **labelled(member))
    node.add_pod("intruder", **intruder)
    node.look()

    assert node.look() == [Trespass(GPU, 0, "steal", "ns/intruder")]
    assert node.processes() == [
        DeviceProcess(1, "train", 1024, "ns/member", "main"),
        DeviceProcess(2, "steal", 1024, "ns/intruder", "main", trespass=True),
    ]
    assert node.evictions.wanted == [pod_subject("intruder")]


async def test_a_namespace_that_the_webhooks_leave_out_is_believed_nothing() -> None:
    """There, anybody may write a member's label and annotations."""
    node = Watched(left_out={"ns"})
    node.add_pod("member", **labelled({}))
    node.look()

    assert [row.pod for row in node.look()] == ["ns/member", "uid-of-intruder"]


async def test_a_member_that_claims_to_be_a_mirror_pod_hides_nobody() -> None:
    """Not even a pod that the API server has forgotten, whose UID is in no pod's metadata any more."""
    node = Watched()
    forged = {STATIC: "uid-of-forgotten", MIRROR: "uid-of-forgotten"}
    node.add_pod("member", **labelled(forged, ownerReferences=NODES_OWN))
    node.look(pod="forgotten")

    assert [row.process for row in node.look(pod="forgotten")] == ["steal"]


async def test_a_process_that_renames_itself_is_one_finding() -> None:
    """It was none, where it changed its name before each look; each name was a row and an event otherwise."""
    node = Watched()
    node.add_pod("member", **labelled({}))
    node.add_pod("intruder")
    rows: list[Trespass] = []
    for look in range(4):
        rows = node.look(name=f"kworker/{look}")

    assert rows == [Trespass(GPU, 0, "kworker/0", "ns/intruder")]
    assert node.processes()[1] == DeviceProcess(2, "kworker/3", 1024, "ns/intruder", "main", trespass=True)
    assert node.recorder.reasons("intruder") == ["Trespass"]
