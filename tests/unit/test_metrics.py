"""Metrics as Prometheus reads them."""

import asyncio

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from deviceshare import __version__
from deviceshare.domain.answers.census import memory_allocated, memory_capacity
from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.hardware import Hardware, Part
from deviceshare.domain.objects.ledger import Claim, LedgerSpec, LedgerStatus, NodeDevices
from deviceshare.domain.objects.object_decoder import ObjectMeta
from deviceshare.domain.objects.shares import Share
from deviceshare.domain.placement.device_states import Health, Use
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.metrics import Metrics
from docs.generate import gauge_of


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    body = generate_latest(metrics.registry)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def test_a_request_is_counted_by_verb_and_result() -> None:
    """The block names its result; without a word it was fine."""
    metrics = Metrics()
    with metrics.request("filter"):
        pass
    with metrics.request("bind") as request:
        request.result = "conflict"
    seen = samples(metrics)
    assert seen["deviceshare_requests_total", (("result", "ok"), ("verb", "filter"))] == 1
    assert seen["deviceshare_requests_total", (("result", "conflict"), ("verb", "bind"))] == 1
    assert seen["deviceshare_request_duration_seconds_count", (("verb", "bind"),)] == 1


@pytest.mark.parametrize(("error", "result"), [(ValueError("bad"), "error"), (asyncio.CancelledError(), "cancelled")])
def test_a_request_that_fails_is_counted_and_the_error_goes_on(error: BaseException, result: str) -> None:
    """Measuring never swallows an exception, a cancellation least of all."""
    metrics = Metrics()
    with pytest.raises(type(error)), metrics.request("bind"):
        raise error
    seen = samples(metrics)
    assert seen["deviceshare_requests_total", (("result", result), ("verb", "bind"))] == 1
    assert seen["deviceshare_requests_inflight", (("verb", "bind"),)] == 0


def test_a_request_is_in_flight_until_it_is_answered() -> None:
    """Binds overlap: the gauge tells how many wait for the API server now."""
    metrics = Metrics()
    inflight = "deviceshare_requests_inflight", (("verb", "bind"),)
    with metrics.request("bind"):
        with metrics.request("bind"):
            assert samples(metrics)[inflight] == 2
        assert samples(metrics)[inflight] == 1
    assert samples(metrics)[inflight] == 0


def test_cluster_state_is_read_at_each_scrape() -> None:
    """A node or phase that is gone leaves no stale series behind."""
    metrics = Metrics()
    devices = {("n1", "nvidia.com/gpu", Use.FREE, Health.UNKNOWN): 3}
    groups = {"Bound": 2}
    metrics.watch(lambda: [gauge_of("deviceshare_devices", devices)])
    metrics.watch(lambda: [gauge_of("deviceshare_groups", groups)])
    labels = (("health", "unknown"), ("node", "n1"), ("resource", "nvidia.com/gpu"), ("state", "free"))
    free = "deviceshare_devices", labels
    bound = "deviceshare_groups", (("phase", "Bound"),)
    assert samples(metrics)[free] == 3
    assert samples(metrics)[bound] == 2
    devices.clear()
    groups["Bound"] = 1
    assert free not in samples(metrics)
    assert samples(metrics)[bound] == 1


def test_a_process_tells_its_version_leadership_and_conflicts() -> None:
    """What an upgrade, a failover and contention look like on a dashboard."""
    metrics = Metrics()
    metrics.leader.set(1)
    metrics.claim_conflicts.inc()
    seen = samples(metrics)
    assert not [name for name, _ in seen if name.endswith("_created")]
    (build,) = [dict(labels) for name, labels in seen if name == "deviceshare_build_info"]
    assert build["version"] == __version__
    assert seen["deviceshare_leader", ()] == 1
    assert seen["deviceshare_claim_conflicts_total", ()] == 1


def test_two_sets_of_metrics_live_side_by_side() -> None:
    """Nothing hangs on a global registry."""
    one, other = Metrics(), Metrics()
    one.claim_conflicts.inc()
    assert samples(other)["deviceshare_claim_conflicts_total", ()] == 0


def test_objects_that_cannot_be_read_are_counted_by_kind() -> None:
    """At each scrape; a kind of which all can be read is a 0, so that an alert has something to compare."""
    metrics = Metrics()
    counts = {"Pod": 1, "Node": 0}
    metrics.watch(lambda: [gauge_of("deviceshare_unreadable_objects", counts)])
    text = generate_latest(metrics.registry).decode()
    assert 'deviceshare_unreadable_objects{kind="Pod"} 1.0' in text
    assert 'deviceshare_unreadable_objects{kind="Node"} 0.0' in text
    counts["Pod"] = 0
    assert 'deviceshare_unreadable_objects{kind="Pod"} 0.0' in generate_latest(metrics.registry).decode()


def test_memory_is_told_in_bytes_by_device() -> None:
    """With the labels of the agents' metrics, so that the two can be joined."""
    metrics = Metrics()
    ledger = NodeDevices(
        ObjectMeta(name="n1"),
        LedgerSpec({"a": Claim(pod="ns/a", shares=[Share("main", "nvidia.com/gpu", 1, "GPU-1", percent=50)])}),
        LedgerStatus(
            [Device("nvidia.com/gpu", 1, "GPU-1")],
            hardware=Hardware(devices=[Part("nvidia.com/gpu", 1, "GPU-1", memory_mib=16384)]),
        ),
    )
    fleet = Fleet()
    fleet.set_ledger("n1", ledger)
    metrics.watch(lambda: [gauge_of("deviceshare_device_memory_capacity_bytes", memory_capacity(fleet))])
    metrics.watch(lambda: [gauge_of("deviceshare_device_memory_allocated_bytes", memory_allocated(fleet))])
    metrics.watch(lambda: [gauge_of("deviceshare_waiting_pods", {"share": 3})])
    labels = (("index", "1"), ("node", "n1"), ("resource", "nvidia.com/gpu"), ("uuid", "GPU-1"))
    seen = samples(metrics)
    assert seen["deviceshare_device_memory_capacity_bytes", labels] == 16 << 30
    assert seen["deviceshare_device_memory_allocated_bytes", labels] == 8 << 30
    assert seen["deviceshare_waiting_pods", (("wants", "share"),)] == 3
