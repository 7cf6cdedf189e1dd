"""The guard: strangers on a group's device are told of once they stayed, and evicted only where that is asked for."""

from deviceshare.domain.devices import Device
from deviceshare.domain.hardware import Hardware, Trespass
from deviceshare.domain.trespass import Occupant
from deviceshare.loops.agent.evicting import Intruder
from deviceshare.loops.agent.guarding import Guard
from tests.unit.domain.objects import GPU
from tests.unit.loops.agent.node import NODE, TEAM, Node, part, uuid


def on(index: int, name: str, pod: str = "", group_uid: str = "") -> Occupant:
    """A process; its pod's UID is made of its name."""
    uid = f"uid-of-{pod.rpartition('/')[2]}" if pod else ""
    return Occupant(Device(GPU, index, uuid(index)), 1, name, pod, uid, group_uid)


STRANGER = on(0, "python", "ns/stranger")
SYSTEM = on(0, "dcgm", "kube-system/dcgm")
HOST = on(0, "miner")
MEMBER = on(0, "train", "ns/member", TEAM)


class Post(Node):
    """A node whose device 0 a group holds, and its guard."""

    def __init__(self, *, evicts: bool = False) -> None:
        super().__init__()
        self.set_ledger(Hardware(devices=[part(0), part(1)]))
        self.hold(0)
        self.wanted: list[Intruder] = []
        self.guard = Guard(NODE, self.recorder, self.wanted.append if evicts else None)

    def look(self, *occupants: Occupant) -> list[Occupant]:
        return self.guard.look(self.ledger, occupants)


def test_who_stays_is_told_of_once() -> None:
    """On the pod, or on the node for a process of none."""
    post = Post()
    assert post.look(STRANGER, HOST, MEMBER) == []
    assert post.look(STRANGER, HOST, MEMBER) == [STRANGER, HOST]
    assert post.look(STRANGER, HOST) == [STRANGER, HOST]

    assert [(kind, name, reason) for kind, name, reason, _ in post.recorder.events] == [
        ("Pod", "stranger", "Trespass"),
        ("Node", NODE, "Trespass"),
    ]
    assert "nvidia.com/gpu 0 of node n1, which SharedDeviceGroup team holds" in post.recorder.events[0][3]
    assert post.wanted == []


def test_who_is_just_going_is_not() -> None:
    """Nor who comes and goes."""
    post = Post()
    for _ in range(3):
        assert post.look(STRANGER) == []
        assert post.look() == []
    assert post.recorder.events == []


def test_who_comes_back_after_a_while_is_told_of_again() -> None:
    """Equal events are counted."""
    post = Post()
    for occupants in ([HOST], [HOST], [], [HOST], [HOST]):
        post.look(*occupants)
    assert post.recorder.reasons(NODE) == ["Trespass", "Trespass"]


def test_what_an_earlier_agent_reported_is_known_and_no_news() -> None:
    """A restart neither takes the report back for a moment nor tells it anew."""
    post = Post()
    post.guard.remember([Trespass(GPU, 0, "miner")])

    assert post.look(HOST) == [HOST]
    assert post.recorder.events == []


def test_pods_are_to_go_where_that_is_asked_for() -> None:
    """At each look again; the cluster's own never, and processes of the node can't."""
    post = Post(evicts=True)
    for _ in range(3):
        post.look(STRANGER, SYSTEM, HOST)

    assert post.wanted == [Intruder("ns", "stranger", "uid-of-stranger")] * 2
