"""The answer to scrapes of /metrics: rendered once a second at most, however many scrape.

Reading the numbers takes the event loop a moment; writing them out, which takes most of the time where nodes are many,
is done in a thread.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from deviceshare.telemetry import ServerMetrics

FRESH: Final = 1.0
"""Seconds for which one rendering answers everybody."""
_FORMATS: Final = 16
"""Kept at once: more than any scraper can tell apart in earnest."""


def _encoder(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):  # a version that is none
        return choose_encoder("")


class _Taken(Collector):
    """The numbers of one moment."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


class Scrapes:
    """Of one process's metrics."""

    def __init__(self, metrics: ServerMetrics, fresh: float = FRESH) -> None:
        self._metrics = metrics
        self._fresh = fresh
        self._at = float("-inf")
        self._taken = _Taken(())
        self._renderings: dict[str, asyncio.Task[bytes]] = {}

    async def answer(self, accept: str) -> tuple[bytes, str]:
        """The body and its Content-Type, in the format that the header `Accept` asks for."""
        encode, content_type = _encoder(accept)
        now = asyncio.get_running_loop().time()
        if now - self._at >= self._fresh:
            self._at, self._taken = now, _Taken(self._metrics.registry.collect())
            self._renderings = {}
        if content_type not in self._renderings and len(self._renderings) >= _FORMATS:
            encode, content_type = choose_encoder("")
        rendering = self._renderings.get(content_type)
        if rendering is None:
            rendering = asyncio.create_task(asyncio.to_thread(encode, self._taken), name="render metrics")
            self._renderings[content_type] = rendering
        # Shielded: others wait for the same, and one of them may give up.
        return await asyncio.shield(rendering), content_type
