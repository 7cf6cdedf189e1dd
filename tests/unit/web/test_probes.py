"""Liveness, readiness and metrics over HTTP."""

from collections.abc import AsyncIterator, Callable

import pytest
from aiohttp import ClientSession

from deviceshare.telemetry import Metrics
from deviceshare.web.probes import probe_routes
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
