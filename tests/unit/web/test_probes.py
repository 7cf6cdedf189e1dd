"""Liveness, readiness and metrics over HTTP."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

import pytest
from aiohttp import ClientSession
from prometheus_client import Metric
from prometheus_client.registry import Collector

from deviceshare.metrics import Metrics
from deviceshare.web.probes import Scrapes, probe_routes
from deviceshare.web.server import Server


class Probes:
    """A served set of checks; `faults` says what each answers."""

    def __init__(self) -> None:
        self.faults = {"pods": "", "groups": ""}
        checks = {name: self._check(name) for name in self.faults}
        metrics = Metrics()
        self.server = Server(
            "probe", "127.0.0.1", 0, probe_routes({}, checks, metrics), metrics, max_body=1024, timeout=5
        )
        self.session: ClientSession

    def _check(self, name: str) -> Callable[[], str]:
        return lambda: self.faults[name]

    async def get(self, path: str) -> tuple[int, str, str]:
        async with self.session.get(f"http://127.0.0.1:{self.server.port}{path}") as response:
            return response.status, await response.text(), response.headers["Content-Type"]


@pytest.fixture
async def probes() -> AsyncIterator[Probes]:
    probes = Probes()
    await probes.server.start()
    async with ClientSession() as probes.session:
        yield probes
    await probes.server.stop()


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
async def test_all_well_is_a_plain_ok(probes: Probes, path: str) -> None:
    """What a kubelet needs."""
    assert (await probes.get(path))[:2] == (200, "ok")


async def test_verbose_lists_every_check(probes: Probes) -> None:
    """What a person wants to see."""
    status, text, _ = await probes.get("/readyz?verbose")

    assert status == 200
    assert text == "[+]pods ok\n[+]groups ok\nreadyz check passed\n"


async def test_a_failed_check_is_named_with_its_reason(probes: Probes) -> None:
    """Without asking for it: `kubectl describe pod` shows the answer of a failed probe."""
    probes.faults["groups"] = "the first list has not come in"

    status, text, _ = await probes.get("/readyz")

    assert status == 500
    assert text == "[+]pods ok\n[-]groups: the first list has not come in\nreadyz check failed\n"


async def test_readiness_does_not_decide_about_life(probes: Probes) -> None:
    """A restart would not bring an API server back."""
    probes.faults["groups"] = "the watch is broken"

    assert (await probes.get("/livez"))[0] == 200


async def test_metrics_are_exposed_in_prometheus_text(probes: Probes) -> None:
    """With the content type that tells the scraper how to read them."""
    status, text, content_type = await probes.get("/metrics")

    assert status == 200
    assert content_type.startswith("text/plain; version=")
    assert "deviceshare_build_info{" in text


async def test_many_scrapes_of_one_second_are_rendered_once() -> None:
    """In each format that is asked for: readiness and reviews don't notice who scrapes."""
    collected = []

    class Counting(Collector):
        def collect(self) -> Iterable[Metric]:
            collected.append(1)
            return ()

    metrics = Metrics()
    metrics.registry.register(Counting())
    collected.clear()  # registering asks once
    scrapes, again = Scrapes(metrics, fresh=3600), Scrapes(metrics, fresh=0)

    answers = await asyncio.gather(*(scrapes.answer("") for _ in range(50)))
    openmetrics = await scrapes.answer("application/openmetrics-text; version=1.0.0")

    assert len(collected) == 1
    assert len({body for body, _ in answers}) == 1
    assert openmetrics[0].endswith(b"# EOF\n")
    assert openmetrics[1].startswith("application/openmetrics-text")
    assert answers[0][1].startswith("text/plain")
    await again.answer("")
    await again.answer("")
    assert len(collected) == 3


@pytest.mark.parametrize("accept", ["application/openmetrics-text; version=x", "text/plain; version=1.x"])
async def test_a_format_that_is_none_is_answered_in_the_usual_one(probes: Probes, accept: str) -> None:
    """Not with a fault of ours."""
    async with probes.session.get(
        f"http://127.0.0.1:{probes.server.port}/metrics", headers={"Accept": accept}
    ) as response:
        assert response.status == 200


async def test_formats_that_nobody_has_do_not_pile_up() -> None:
    """Each of them would be rendered and kept."""
    scrapes = Scrapes(Metrics(), fresh=3600)
    for number in range(100):
        await scrapes.answer(f"application/openmetrics-text; version=1.0.{number}")
    assert len(scrapes._renderings) <= 17
