"""How a connection finds the way to its server."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp import web

from deviceshare.kube.api import Api
from deviceshare.kube.connection import connect
from deviceshare.loops.kinds import NODES
from tests.unit.kube.scripted import Scripted, answer, kubeconfig, node, serving

UNREACHABLE = "http://cluster.invalid:6443"


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


async def test_a_person_behind_a_proxy_reaches_the_server_through_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with kubectl and curl: HTTP_PROXY and HTTPS_PROXY count."""
    asked: list[str] = []

    async def proxy(request: web.Request) -> web.StreamResponse:
        asked.append(request.headers["Host"])
        return await answer(node("a", 1))(request)

    async with serving(proxy, tmp_path):
        served = json.loads((tmp_path / "kubeconfig").read_text())
        monkeypatch.setenv("http_proxy", served["clusters"][0]["cluster"]["server"])
        async with connect(kubeconfig(tmp_path, UNREACHABLE)) as behind:
            assert (await Api(behind).get(NODES, "a")).metadata.name == "a"
    assert asked == ["cluster.invalid:6443"]


async def test_no_proxy_excepts_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster of one's own is rarely behind the proxy that leads out."""
    monkeypatch.setenv("http_proxy", UNREACHABLE)
    monkeypatch.setenv("no_proxy", "example.com,127.0.0.1")
    server = Scripted(answer(node("a", 1)))
    async with serving(server.handle, tmp_path) as connection:
        assert (await Api(connection).get(NODES, "a")).metadata.name == "a"


def test_a_connection_draws_in_no_second_client() -> None:
    """What the Kubernetes client's packages import would take a sixth of an agent's memory."""
    heavy = ("kubernetes.client", "requests", "oauthlib")
    program = f"import sys, deviceshare.kube.connection; print([m for m in {heavy} if m in sys.modules])"
    modules = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=modules, check=True)

    assert done.stdout.strip() == "[]"
