"""Probes and metrics over HTTP."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from prometheus_client import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from deviceshare.metrics import ServerMetrics
from deviceshare.web.messages import Handler, HttpRequest, Response, Route, plain

# The answer to scrapes of /metrics, rendered at most once a second for all scrapers.
# Collecting the metrics takes the event loop, one family at a time; rendering, which takes most of the time where
# nodes are many, runs in a thread.

FRESH: Final = 1.0
"""Seconds for which one rendering answers all scrapes."""
_FORMATS: Final = 16
"""Renderings kept at once; real scrapers use two or three formats."""


class _Taken(list[Metric], Collector):
    """The metrics of one moment."""

    def collect(self) -> Iterable[Metric]:
        return self


class Scrapes:
    """The renderings of one process's metrics."""

    def __init__(self, metrics: ServerMetrics, fresh: float = FRESH) -> None:
        self._metrics = metrics
        self._fresh = fresh
        self._at = float("-inf")
        self._taking: asyncio.Task[_Taken] | None = None
        self._renderings: dict[str, asyncio.Task[bytes]] = {}

    async def answer(self, accept: str) -> tuple[bytes, str]:
        """The body and its Content-Type, in the format that the header `Accept` asks for."""
        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # a malformed version
            encode, content_type = choose_encoder("")
        now = asyncio.get_running_loop().time()
        if self._taking is None or now - self._at >= self._fresh:
            self._at, self._renderings = now, {}
            self._taking = asyncio.create_task(self._take(), name="collect metrics")
        if content_type not in self._renderings and len(self._renderings) >= _FORMATS:
            encode, content_type = choose_encoder("")
        rendering = self._renderings.get(content_type)
        if rendering is None:
            rendering = asyncio.create_task(_render(encode, self._taking), name="render metrics")
            self._renderings[content_type] = rendering
        # Shielded: other scrapes wait for the same rendering when one is cancelled.
        return await asyncio.shield(rendering), content_type

    async def _take(self) -> _Taken:
        families = _Taken()
        for family in self._metrics.registry.collect():
            families.append(family)
            await asyncio.sleep(0)  # webhooks are answered on the same loop, and each family may be of all nodes
        return families


async def _render(encode: Callable[[Collector], bytes], taking: asyncio.Task[_Taken]) -> bytes:
    return await asyncio.to_thread(encode, await asyncio.shield(taking))


# Liveness and readiness probes, and the metrics endpoint.

Check = Callable[[], str]
"""Returns why the check fails, or "". Called on the event loop: it must neither block nor raise."""


def probe_routes(live: Mapping[str, Check], ready: Mapping[str, Check], metrics: ServerMetrics) -> list[Route]:
    """`/livez`, `/readyz` (200, or 500 when a check fails; `?verbose` lists all of them) and `/metrics`."""

    scrapes = Scrapes(metrics)

    async def scrape(request: HttpRequest) -> Response:
        body, content_type = await scrapes.answer(request.headers.get("accept", ""))
        return Response(body, headers={"Content-Type": content_type})

    return [
        Route("GET", "/livez", _handler("livez", live)),
        Route("GET", "/readyz", _handler("readyz", ready)),
        Route("GET", "/metrics", scrape),
    ]


def _handler(name: str, checks: Mapping[str, Check]) -> Handler:
    async def answer(request: HttpRequest) -> Response:
        faults = {check: ask() for check, ask in checks.items()}
        failed = any(faults.values())
        if not failed and "verbose" not in request.query:
            return plain("ok")
        lines = [f"[-]{check}: {fault}" if fault else f"[+]{check} ok" for check, fault in faults.items()]
        lines.append(f"{name} check {'failed' if failed else 'passed'}")
        return plain("\n".join(lines) + "\n", 500 if failed else 200)

    return answer
