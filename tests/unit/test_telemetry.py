"""Logs and metrics, as an operator's tools read them."""

import asyncio
import io
import json
import logging
from datetime import UTC, datetime
from typing import Any

import pytest
import structlog
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from deviceshare import __version__, telemetry
from deviceshare.domain.answers.census import DeviceCount, DeviceMemory
from deviceshare.domain.objects.devices import Device
from deviceshare.domain.placement.device_state import Health, Use
from deviceshare.telemetry import Metrics


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    body = generate_latest(metrics.registry)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def test_off_a_terminal_an_event_is_one_line_of_json() -> None:
    """Collectors of logs need no configuration for ours."""
    stream = io.StringIO()
    telemetry.configure(stream=stream)
    structlog.get_logger("deviceshare.loops.replica.binder").info("Bound pod", pod="default/a", node="n1")
    (line,) = lines(stream)
    stamp = line.pop("timestamp")
    assert line == {
        "message": "Bound pod",
        "level": "info",
        "logger": "deviceshare.loops.replica.binder",
        "pod": "default/a",
        "node": "n1",
    }
    assert stamp.endswith("Z")
    assert abs((datetime.now(UTC) - datetime.fromisoformat(stamp)).total_seconds()) < 60


def test_on_a_terminal_an_event_is_for_people() -> None:
    """`auto` looks at the stream, not at the environment."""
    stream = Terminal()
    telemetry.configure(stream=stream)
    structlog.get_logger("deviceshare").info("Bound pod", pod="default/a")
    assert "Bound pod" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


def test_the_format_can_be_forced_either_way() -> None:
    """A person may want JSON on a terminal, and columns in a file."""
    json_on_terminal, console_in_file = Terminal(), io.StringIO()
    telemetry.configure("json", stream=json_on_terminal)
    structlog.get_logger("deviceshare").info("Started")
    telemetry.configure("console", stream=console_in_file)
    structlog.get_logger("deviceshare").info("Started")
    assert lines(json_on_terminal)[0]["message"] == "Started"
    assert "Started" in console_in_file.getvalue()
    assert "\x1b" not in console_in_file.getvalue()


def test_libraries_speak_in_the_same_shape() -> None:
    """aiohttp and the Kubernetes client log through the standard library."""
    stream = io.StringIO()
    telemetry.configure(stream=stream)
    logging.getLogger("aiohttp.server").warning("Slow %s", "client", extra={"peer": "10.0.0.1"})
    (line,) = lines(stream)
    assert (line["message"], line["level"], line["logger"], line["peer"]) == (
        "Slow client",
        "warning",
        "aiohttp.server",
        "10.0.0.1",
    )


def test_debug_is_ours_alone() -> None:
    """The Kubernetes client's debug log holds whole responses, Secrets included."""
    stream = io.StringIO()
    telemetry.configure(level="debug", stream=stream)
    logging.getLogger("kubernetes.aio.client.rest").debug("response body: secret")
    logging.getLogger("aiohttp.access").info("GET /readyz")
    structlog.get_logger("deviceshare.kube").debug("Listed pods")
    assert [line["message"] for line in lines(stream)] == ["Listed pods"]


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_an_exception_is_logged_with_its_traceback(log_format: telemetry.LogFormat) -> None:
    """A traceback in JSON stays inside its one line."""
    stream = io.StringIO()
    telemetry.configure(log_format, stream=stream)
    try:
        raise OSError("disk full")
    except OSError:
        structlog.get_logger("deviceshare").exception("Failed to write file")
    text = lines(stream)[0]["exception"] if log_format == "json" else stream.getvalue()
    assert "Traceback" in text
    assert "OSError: disk full" in text


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_what_others_named_commands_no_terminal(log_format: telemetry.LogFormat) -> None:
    """In fields, in messages of libraries, and in the errors of a traceback."""
    stream = io.StringIO()
    telemetry.configure(log_format, stream=stream)
    hostile = "a\x1b]0;t\x07\x9b2J\u202e"
    structlog.get_logger("deviceshare").info("Found", pod=hostile, pods=[hostile])
    logging.getLogger("aiohttp.server").warning("Slow %s", hostile)
    try:
        raise OSError(hostile)
    except OSError:
        structlog.get_logger("deviceshare").exception("Failed")
    text = stream.getvalue()

    assert text.count("u202e") >= 4
    assert all(line.isprintable() for line in text.split("\n"))


def test_configuring_again_replaces_the_former_output() -> None:
    """No event is written twice."""
    first, second = io.StringIO(), io.StringIO()
    telemetry.configure(stream=first)
    telemetry.configure(stream=second)
    structlog.get_logger("deviceshare").warning("Lost lease")
    assert first.getvalue() == ""
    assert len(lines(second)) == 1


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
    devices = [DeviceCount("n1", "nvidia.com/gpu", Use.FREE, Health.UNKNOWN, 3)]
    groups = {"Bound": 2}
    metrics.watch_cluster(lambda: devices, lambda: groups)
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
    metrics.watch_unreadable(lambda: counts)
    text = generate_latest(metrics.registry).decode()
    assert 'deviceshare_unreadable_objects{kind="Pod"} 1.0' in text
    assert 'deviceshare_unreadable_objects{kind="Node"} 0.0' in text
    counts["Pod"] = 0
    assert 'deviceshare_unreadable_objects{kind="Pod"} 0.0' in generate_latest(metrics.registry).decode()


def test_memory_is_told_in_bytes_by_device() -> None:
    """With the labels of the agents' metrics, so that the two can be joined."""
    metrics = Metrics()
    metrics.watch_memory(lambda: [DeviceMemory("n1", Device("nvidia.com/gpu", 1, "GPU-1"), 16384, 8192)])
    metrics.watch_waiting(lambda: {"share": 3})
    labels = (("index", "1"), ("node", "n1"), ("resource", "nvidia.com/gpu"), ("uuid", "GPU-1"))
    seen = samples(metrics)
    assert seen["deviceshare_device_memory_capacity_bytes", labels] == 16 << 30
    assert seen["deviceshare_device_memory_allocated_bytes", labels] == 8 << 30
    assert seen["deviceshare_waiting_pods", (("wants", "share"),)] == 3
