"""Prometheus metrics at /metrics: one `Metrics` of the process, passed on by the composition root.

They live on a registry of their own, not on the library's global one, so that several can exist side by side, as in
tests.
"""

import asyncio
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any, Final, Self

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from deviceshare import __version__

# Our scheduler gives the extender 15 s and the API server gives a webhook 2; a filter of 5,000 nodes takes 1 to 2 ms.
REQUEST_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0)


class ServerMetrics:
    """The metrics of any process that serves requests, on one registry.

    As dashboards expect them: a counter by verb and result, a duration histogram and an in-flight gauge by verb
    (https://prometheus.io/docs/practices/naming/).
    """

    def __init__(self) -> None:
        # The library's `…_created` series for every counter would double the scrape; nothing reads them.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        self._requests = counter("deviceshare_requests_total", "Requests answered.", ["verb", "result"])
        took, text = "deviceshare_request_duration_seconds", "Time taken to answer a request."
        self._duration = Histogram(took, text, ["verb"], buckets=REQUEST_BUCKETS, registry=registry)
        self._inflight = gauge("deviceshare_requests_inflight", "Requests being answered now.", ["verb"])
        self._verbs: dict[str, _Verb] = {}
        text = "Requests that weren't HTTP, by the server that was sent them."
        self.malformed = counter("deviceshare_malformed_requests_total", text, ["server"])
        text = (
            "Connections closed by the server: crowded (the limit of connections was reached), overdue (a request"
            " didn't end in time), handshake (TLS failed)."
        )
        self.dropped = counter("deviceshare_connections_dropped_total", text, ["server", "reason"])
        build = gauge("deviceshare_build_info", "Always 1; the labels say.", ["version", "python"])
        build.labels(version=__version__, python=platform.python_version()).set(1)
        tasks = gauge("deviceshare_tasks", "Asyncio tasks that haven't ended; at rest their number doesn't grow.")
        tasks.set_function(_tasks)
        ProcessCollector(registry=registry)

    def watch(self, families: Callable[[], Iterable[GaugeMetricFamily]]) -> None:
        """Adds gauges that are computed at each scrape, on the event loop, which goes on after each family.

        Gauges kept beside the mirrors would still show nodes and phases that are gone.
        """
        self.registry.register(_Computed(families))

    def request(self, verb: str) -> "MeasuredRequest":
        """Measures the `with` block that answers a request; see `MeasuredRequest`."""
        # The library looks a label up under a lock, which takes longer than to count.
        child = self._verbs.get(verb)
        if child is None:
            child = self._verbs[verb] = _Verb(
                verb, self._requests, self._duration.labels(verb), self._inflight.labels(verb)
            )
        return MeasuredRequest(child)


class Metrics(ServerMetrics):
    """The metrics of one `deviceshare run`."""

    def __init__(self) -> None:
        super().__init__()
        counter, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        text = "Conditional writes of a claim or a group that failed because another writer came first."
        self.claim_conflicts = counter("deviceshare_claim_conflicts_total", text)
        text = "Pods that run with devices that their group does not hold; their events say what to do."
        self.uncovered_pods = gauge("deviceshare_uncovered_pods", text)
        text = "Groups that were released since no pod had used them for as long as they say (spec.releaseAfter)."
        self.released_groups = counter("deviceshare_idle_groups_released_total", text)
        text = "Pods that were created while admission was away, and were deleted for their controllers to recreate."
        self.recreated_pods = counter("deviceshare_uninjected_pods_deleted_total", text)
        text = "Writes that the API server refused since the object would be too large to be stored, by its kind."
        self.too_large = counter("deviceshare_too_large_writes_total", text, ["kind"])
        self.leader = gauge("deviceshare_leader", "1 while this process is the leader.")

    def watch_cluster(self, found: Callable[[], Iterable[tuple[str, Mapping[Any, float]]]]) -> None:
        """Adds gauges of `WATCHED`, as `watch` does: their names, and values by a label's or, as a tuple, several."""
        self.watch(lambda: (gauge(name, *WATCHED[name], values.items()) for name, values in found()))


@dataclass(eq=False)
class _Computed(Collector):
    compute: Callable[[], Iterable[GaugeMetricFamily]]

    def collect(self) -> Iterable[GaugeMetricFamily]:
        return self.compute()


def gauge(
    name: str, text: str, labels: Sequence[str], rows: Iterable[tuple[str | Iterable[str], float]]
) -> GaugeMetricFamily:
    """One family: what it counts, its labels, and its values by the label's value or those of several."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, value in rows:
        family.add_metric((values,) if isinstance(values, str) else tuple(values), value)
    return family


_DEVICE: Final = ("node", "resource", "index", "uuid")
_QUOTA: Final = ("quota", "resource")
_NAMESPACE: Final = ("group", "namespace")

WATCHED: Final[dict[str, tuple[str, Sequence[str]]]] = {
    "deviceshare_devices": (
        "Devices of the shared nodes, by who uses them (or why nobody gets them) and by their health.",
        ["node", "resource", "state", "health"],
    ),
    "deviceshare_groups": ("SharedDeviceGroups.", ["phase"]),
    "deviceshare_device_memory_capacity_bytes": (
        "The device's memory, where an agent or the node's labels tell it.",
        _DEVICE,
    ),
    "deviceshare_device_memory_allocated_bytes": (
        "How much of it is allocated: of a shared device its pods' shares, of any other allocated one all.",
        _DEVICE,
    ),
    "deviceshare_devices_allocated_twice": (
        "Devices of groups and shares that the device plugin, or DRA for a ResourceClaim, also allocated.",
        ["by"],
    ),
    "deviceshare_devices_claimed_twice": (
        "Devices about which claims of groups or shares contradict each other; a node without any has no series.",
        ["node"],
    ),
    "deviceshare_waiting_pods": (
        "Pods without a node, by what they wait for: their group's devices, or a share; gated ones left out.",
        ["wants"],
    ),
    "deviceshare_unreadable_objects": (
        "Objects that can't be decoded as their kind; their devices count as in use (see deviceshare doctor).",
        ["kind"],
    ),
    "deviceshare_missing_crd_fields": (
        "Fields of this release that the CRD in the cluster lacks; while there are any, nothing is written.",
        ["crd"],
    ),
    "deviceshare_mirrored_objects": ("Objects held in memory, by mirror.", ["mirror"]),
    "deviceshare_certificate_expiry_timestamp_seconds": (
        "When the serving certificate that deviceshare issued to itself, and its authority, expire.",
        ["certificate"],
    ),
    "deviceshare_quota_hard": ("Devices that the groups of the quota may hold together (spec.hard).", _QUOTA),
    "deviceshare_quota_used": ("Devices that they hold, or are about to claim.", _QUOTA),
    "deviceshare_quota_invalid": (
        "1 where the quota can't be read or applied, so that groups that it may count aren't bound.",
        ["quota"],
    ),
    "deviceshare_group_phase": ("Always 1; the label says the group's phase.", ["group", "phase"]),
    "deviceshare_group_devices": ("Devices that the group holds.", ["group", "node", "resource"]),
    "deviceshare_group_pods": ("Pods that have the group's devices, by their namespace.", _NAMESPACE),
    "deviceshare_group_waiting_pods": (
        "Waiting pods of the group; left out are gated ones, and those of namespaces that it does not allow.",
        _NAMESPACE,
    ),
    "deviceshare_group_longest_wait_seconds": ("For how long the oldest of these pods has waited.", ["group"]),
    "deviceshare_group_idle_seconds": ("For how long the group has held devices without a pod.", ["group"]),
    "deviceshare_groups_unlisted": ("Groups beyond the limit, which have no other metrics.", []),
}
"""Gauges that are computed at each scrape: what they count, and their labels."""


def _tasks() -> float:
    """0 where no event loop runs, as when the documentation is generated."""
    try:
        return float(len(asyncio.all_tasks()))
    except RuntimeError:
        return 0.0


@dataclass(slots=True)
class MeasuredRequest:
    """A request being answered: counted in flight inside the `with` block, by duration and result after it.

    `result` is `ok` unless the block sets another; an exception makes it `error`, a client that closed the connection
    `cancelled`.
    """

    verb: "_Verb"
    result: str = "ok"
    started: float = 0.0

    def __enter__(self) -> Self:
        self.verb.inflight.inc()
        self.started = perf_counter()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self.verb.duration.observe(perf_counter() - self.started)
        self.verb.inflight.dec()
        if error is not None:
            self.result = "cancelled" if isinstance(error, asyncio.CancelledError) else "error"
        results = self.verb.results
        if self.result not in results:
            results[self.result] = self.verb.requests.labels(self.verb.name, self.result)
        results[self.result].inc()


@dataclass(slots=True)
class _Verb:
    """The series of one verb."""

    name: str
    requests: Counter
    duration: Histogram
    inflight: Gauge
    results: dict[str, Counter] = field(default_factory=dict)
