"""An agent's numbers, as Prometheus reads them."""

from prometheus_client import generate_latest

from deviceshare.agent.metrics import AgentMetrics, of_devices, of_turns
from deviceshare.domain.device_health.examination import Xid
from deviceshare.domain.objects.hardware import Hardware, Part, Trespass
from deviceshare.domain.objects.usage import DeviceProcess, DeviceUsage, ShareMemory, TurnProgram, TurnQueue, Usage

GPU = "nvidia.com/gpu"
HARDWARE = Hardware(
    devices=[Part(GPU, 0, "GPU-a"), Part(GPU, 1, "GPU-b", unhealthy="Xid 79", lost=True)],
    trespasses=[Trespass(GPU, 0, "miner"), Trespass(GPU, 0, "python", "ns/p")],
)
USAGE = Usage(
    "n1",
    devices=[
        DeviceUsage(
            GPU,
            0,
            "GPU-a",
            memory_used_mib=3,
            memory_total_mib=10,
            utilization=37,
            processes=[
                DeviceProcess(1, "a", 1, "ns/p", "main"),
                DeviceProcess(2, "b", 1, "ns/p", "main"),
                DeviceProcess(3, "c", 1),
                DeviceProcess(4, "d", 0),
            ],
            shares=[
                ShareMemory("ns/p", "main", 2, 1, exceeded=True),
                ShareMemory("ns/p", "", 3, 1, exceeded=True),
                ShareMemory("ns/q", "main", 0, 5),
            ],
        ),
        DeviceUsage(GPU, 2, "GPU-c"),
    ],
)
MIB = 1 << 20


def sample(metrics: AgentMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"deviceshare_{name}", labels)


def test_what_the_last_look_saw_is_told_at_each_scrape() -> None:
    """Processes together by container, those of no pod in one line."""
    metrics = AgentMetrics()
    metrics.watch(lambda: of_devices(HARDWARE, USAGE, 3, {(GPU, 0): "team", (GPU, 7): "other"}))
    first = {"resource": GPU, "index": "0", "uuid": "GPU-a"}
    second = {"resource": GPU, "index": "1", "uuid": "GPU-b"}
    main = {**first, "namespace": "ns", "pod": "p", "container": "main"}
    outside = {**first, "namespace": "", "pod": "", "container": ""}

    assert sample(metrics, "device_healthy", **first) == 1
    assert sample(metrics, "device_healthy", **second) == 0
    assert sample(metrics, "device_trespasses", **first) == 2
    assert sample(metrics, "device_memory_used_bytes", **first, group="team") == 3 * MIB
    assert sample(metrics, "device_memory_total_bytes", **first, group="team") == 10 * MIB
    assert sample(metrics, "device_utilization_ratio", **first, group="team") == 0.37
    third = {"resource": GPU, "index": "2", "uuid": "GPU-c", "group": ""}
    assert sample(metrics, "device_memory_used_bytes", **third) == 0
    assert sample(metrics, "device_utilization_ratio", **third) is None
    assert sample(metrics, "device_container_memory_bytes", **main) == 2 * MIB
    assert sample(metrics, "device_container_processes", **main) == 2
    assert sample(metrics, "device_container_processes", **outside) == 2
    assert sample(metrics, "reports") == 3


def test_shares_are_told_with_what_they_allow() -> None:
    """By container; those that are exceeded are counted. Who has gone has no series."""
    metrics = AgentMetrics()
    seen = [USAGE, Usage("n1")]
    metrics.watch(lambda: of_devices(HARDWARE, seen[0], 0, {}))
    first = {"resource": GPU, "index": "0", "uuid": "GPU-a"}
    limits = [{**first, "namespace": "ns", "pod": pod, "container": "main"} for pod in ("p", "q")]

    name = "device_container_memory_limit_bytes"
    assert [sample(metrics, name, **limit) for limit in limits] == [1 * MIB, 5 * MIB]
    assert sample(metrics, "device_shares_exceeded", **first) == 2
    seen.pop(0)
    assert [sample(metrics, name, **limit) for limit in limits] == [None, None]
    assert sample(metrics, "device_shares_exceeded", **first) is None


def test_evictions_are_counted_by_cause() -> None:
    """From zero on, so that the first is an increase."""
    metrics = AgentMetrics()
    assert sample(metrics, "evictions_total", cause="trespass") == 0
    metrics.count_eviction("overuse")
    assert sample(metrics, "evictions_total", cause="overuse") == 1


def test_before_the_first_look_there_are_no_devices() -> None:
    """And the scrape works."""
    metrics = AgentMetrics()
    metrics.watch(lambda: of_devices(None, Usage("n1"), 0, {}))

    assert b"deviceshare_device_healthy{" not in generate_latest(metrics.registry)


def test_errors_are_counted_by_kind_and_labels_stay_few() -> None:
    """A driver that makes numbers up fills no registry."""
    metrics = AgentMetrics()
    for number in (31, 79, 1000, 1001):
        metrics.count_xid(Xid("GPU-a", number, ""))

    counted = {
        (xid, kind): sample(metrics, "xid_errors_total", uuid="GPU-a", xid=xid, kind=kind)
        for xid, kind in (("31", "application"), ("79", "device"), ("other", "device"))
    }
    assert counted == {("31", "application"): 1, ("79", "device"): 1, ("other", "device"): 2}


def test_an_agent_does_not_speak_of_what_only_a_replica_knows() -> None:
    """A zero from each of 5,000 agents would drown the leader's number."""
    assert b"deviceshare_leader" not in generate_latest(AgentMetrics().registry)


def test_turns_are_told_by_group() -> None:
    """Who has one, for how long; how many wait and how long the one that waits longest. Pods are no labels."""
    metrics = AgentMetrics()
    waiting = [TurnProgram("ns/b", 7.0), TurnProgram("ns/c", 30.0)]
    metrics.watch(lambda: of_turns([TurnQueue("team", TurnProgram("ns/a", 12.5), waiting), TurnQueue("idle")]))
    metrics.turn_waits.observe(3.0)
    metrics.turns_lost.inc()

    assert sample(metrics, "turn_held_seconds", group="team") == 12.5
    assert sample(metrics, "turn_held_seconds", group="idle") is None
    assert sample(metrics, "turn_waiting", group="team") == 2
    assert sample(metrics, "turn_waiting", group="idle") == 0
    assert sample(metrics, "turn_longest_wait_seconds", group="team") == 30
    assert sample(metrics, "turn_wait_seconds_sum") == 3
    assert sample(metrics, "turns_lost_total") == 1
