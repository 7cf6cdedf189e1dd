"""Strangers on a group's device: told of once they stayed, and evicted only where that is asked for."""

from deviceshare.agent.violations import TRESPASS, Violations
from deviceshare.domain.device_health.containers import ControlGroup, NodeContainer, NodeProcess, ProcessUse
from deviceshare.domain.device_health.violations import MEMORY
from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.hardware import Hardware, Trespass
from tests.unit.agent.node import NODE, TEAM, EvictionWishes, Node, part, pod_subject, uuid
from tests.unit.domain.objects import GPU


def on(index: int, name: str, pod: str = "", holder_uid: str = "", *, pid: int = 1, started: int = 100) -> NodeProcess:
    """A process; its pod's UID is made of its name."""
    uid = f"uid-of-{pod.rpartition('/')[2]}" if pod else ""
    use = ProcessUse(pid, 0, name, started, ControlGroup(uid) if pod else None)
    return NodeProcess(Device(GPU, index, uuid(index)), use, NodeContainer(pod, uid, holder_uid=holder_uid))


STRANGER = on(0, "python", "ns/stranger")
SYSTEM = on(0, "dcgm", "kube-system/dcgm")
HOST = on(0, "miner")
MEMBER = on(0, "train", "ns/member", TEAM)


class Post(Node):
    """A node whose device 0 a group holds."""

    def __init__(self, *, evicts: bool = False) -> None:
        super().__init__()
        self.evictions = EvictionWishes()
        self.violations = Violations(self.own, self.evictions, enforced=[TRESPASS] if evicts else [])
        self.set_ledger(Hardware(devices=[part(0), part(1)]))
        self.hold(0)

    def look(self, *processes: NodeProcess) -> list[Trespass]:
        self.violations.take(self.ledger, processes, self.time)
        return self.violations.trespasses.rows


def test_who_stays_is_told_of_once() -> None:
    """On the pod, or on the node for a process of none."""
    post = Post()
    assert post.look(STRANGER, HOST, MEMBER) == []
    rows = [Trespass(GPU, 0, "miner"), Trespass(GPU, 0, "python", "ns/stranger")]
    assert post.look(STRANGER, HOST, MEMBER) == rows
    assert post.look(STRANGER, HOST) == rows

    assert [(kind, name, reason) for kind, name, reason, _ in post.recorder.events] == [
        ("Pod", "stranger", "Trespass"),
        ("Node", NODE, "Trespass"),
    ]
    assert "nvidia.com/gpu 0 of node n1, which SharedDeviceGroup team holds" in post.recorder.events[0][3]
    assert post.evictions.wanted == []


def test_who_is_just_going_is_not() -> None:
    """Nor who comes again after a long while."""
    post = Post()
    for _ in range(3):
        assert post.look(STRANGER) == []
        for _ in range(MEMORY):
            assert post.look() == []
    assert post.recorder.events == []


def test_who_pauses_between_two_looks_stays_known_and_is_told_of_once() -> None:
    """When the agent looks is no secret, and a device more or less makes nobody a stranger."""
    post = Post()
    post.hold(0, 1)
    assert post.look(STRANGER) == []
    assert post.look() == []
    assert post.look(on(1, "python", "ns/stranger")) == [Trespass(GPU, 1, "python", "ns/stranger")]
    for processes in ([], [STRANGER], [], [STRANGER]):
        post.look(*processes)
    assert [message[:42] for *_, message in post.recorder.events] == [
        "process 'python' (PID 1) uses nvidia.com/gpu 1"[:42],
        "process 'python' (PID 1) uses nvidia.com/gpu 0"[:42],
    ]


def test_another_name_is_no_news_and_no_second_finding() -> None:
    """Of a process of the node, and of a pod that starts new processes instead."""
    post = Post()
    rows: list[Trespass] = []
    for look in range(5):
        renamed = on(0, f"miner-{look}")
        again = on(0, f"python-{look}", "ns/stranger", pid=100 + look, started=1000 + look)
        rows = post.look(renamed, again)
    assert rows == [Trespass(GPU, 0, "miner-0"), Trespass(GPU, 0, "python-0", "ns/stranger")]
    assert len(post.recorder.events) == 2


def test_a_pid_that_another_process_has_now_accuses_nobody() -> None:
    """Start times tell the two apart."""
    post = Post()
    post.look(HOST)
    assert post.look(on(0, "miner", started=101)) == []


def test_a_name_is_told_in_quotes_and_without_commands() -> None:
    """kubectl shows events as they are."""
    post = Post()
    for _ in range(2):
        post.look(on(0, "\x1b]0;mine\x07\u202e"))
    assert "process '\\x1b]0;mine\\x07\\u202e' (PID 1)" in post.recorder.events[0][3]


def test_who_comes_back_after_a_while_is_told_of_again() -> None:
    """Equal events are counted."""
    post = Post()
    for processes in ([HOST], [HOST], *[[]] * MEMORY, [HOST], [HOST]):
        post.look(*processes)
    assert post.recorder.reasons(NODE) == ["Trespass", "Trespass"]


def test_what_an_earlier_agent_reported_is_known_and_no_news() -> None:
    """A restart neither takes the report back for a moment nor tells it anew."""
    post = Post()
    post.violations.trespasses.remember([Trespass(GPU, 0, "miner")])

    assert post.look(HOST) == [Trespass(GPU, 0, "miner")]
    assert post.recorder.events == []


def test_a_report_by_name_alone_evicts_nobody() -> None:
    """Another pod may have the name by now; this agent looks twice itself."""
    post = Post(evicts=True)
    post.violations.trespasses.remember([Trespass(GPU, 0, "python", "ns/stranger")])

    assert post.look(STRANGER) == [Trespass(GPU, 0, "python", "ns/stranger")]
    assert post.evictions.wanted == []
    post.look(STRANGER)
    assert post.evictions.wanted == [pod_subject("stranger")]


def test_pods_are_to_go_where_that_is_asked_for() -> None:
    """At each look again; the cluster's own never, and processes of the node can't."""
    post = Post(evicts=True)
    for _ in range(3):
        post.look(STRANGER, SYSTEM, HOST)

    assert post.evictions.wanted == [pod_subject("stranger")] * 2
