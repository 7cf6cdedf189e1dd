"""Prometheus metrics at /metrics: one `Metrics` of the process, passed on by the composition root.

They live on a registry of their own, not on the library's global one, so that several can exist side by side, as in
tests.
"""

import asyncio
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Self

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from deviceshare import __version__

# Our scheduler gives the extender 15 s and the API server gives a webhook 2; a filter of 5,000 nodes takes 1 to 2 ms.
REQUEST_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0)

Measured = tuple[str, str, Sequence[str], Iterable[tuple[str | Iterable[str], float]]]
"""A gauge: its name, what it counts, its labels, and its values by the label's value or those of several."""


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

    def watch(self, gauges: Callable[[], Iterable[Measured]]) -> None:
        """Adds gauges that are computed at each scrape.

        Gauges kept beside the mirrors would still show nodes and phases that are gone. The event loop goes on after
        each of them; none may block.
        """
        self.registry.register(_Computed(gauges))

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


@dataclass(eq=False)
class _Computed(Collector):
    gauges: Callable[[], Iterable[Measured]]

    def collect(self) -> Iterable[GaugeMetricFamily]:
        for name, text, labels, rows in self.gauges():
            family = GaugeMetricFamily(name, text, labels=labels)
            for values, value in rows:
                family.add_metric((values,) if isinstance(values, str) else tuple(values), value)
            yield family


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
