"""How a connection finds the way to its server."""

import asyncio
import json
import os
import select
import socket
import ssl
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aiohttp import web

from deviceshare.certificates import issuance
from deviceshare.kube.api import Api
from deviceshare.kube.connection import connect
from deviceshare.loops.kinds import NODES
from deviceshare.loops.ports import Unavailable
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


async def test_a_stream_that_is_left_is_cut_off_whatever_the_server_does(tmp_path: Path) -> None:
    """A server that hangs answers no goodbye; the connection must not outlive who opened it."""
    authority, listener = write_certificates(tmp_path), socket.create_server(("127.0.0.1", 0))
    server = f"https://127.0.0.1:{listener.getsockname()[1]}"
    hanging = asyncio.create_task(asyncio.to_thread(stream_and_hang, listener, tmp_path))
    async with connect(kubeconfig(tmp_path, server, authority)) as connection:
        async with connection.stream("/", quiet=60) as chunks:
            assert await anext(chunks) == b"abc"
        assert await hanging
    listener.close()


def write_certificates(directory: Path) -> Path:
    """Those of a server at 127.0.0.1; returns where its CA's lies."""
    now, hour, skew = datetime.now(UTC), timedelta(hours=1), timedelta(minutes=5)
    authority = issuance.new_authority("test", now=now, lifetime=hour, skew=skew)
    addresses = ["127.0.0.1"]
    issued = issuance.issue(authority, "server", dns_names=[], addresses=addresses, now=now, lifetime=hour, skew=skew)
    (directory / "tls.crt").write_text(issued.certificate)
    (directory / "tls.key").write_text(issued.key)
    (directory / "ca.crt").write_text(authority.certificate)
    return directory / "ca.crt"


def stream_and_hang(listener: socket.socket, directory: Path) -> bool:
    """Begins an answer and then only looks on; whether the connection was ended by the other side, within 20 s.

    For the answer to a goodbye, asyncio waits 30.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "tls.crt", directory / "tls.key")
    with context.wrap_socket(listener.accept()[0], server_side=True) as peer:
        peer.recv(65536)
        peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nabc")
        deadline = time.monotonic() + 20
        while select.select([peer], [], [], max(deadline - time.monotonic(), 0))[0]:
            try:
                if os.read(peer.fileno(), 65536) == b"":
                    return True
            except ConnectionResetError:
                return True
        return False


def test_nothing_in_a_cluster_runs_the_kubernetes_client() -> None:
    """It would take a sixth of an agent's memory, and every command's help a third of a second."""
    program = "import sys, deviceshare.daemon, deviceshare.cli.inspect_view; print('kubernetes' in sys.modules)"
    modules = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=modules, check=True)

    assert done.stdout.strip() == "False"


async def test_a_descriptor_that_uvloop_still_uses_is_a_broken_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt that was given up a moment ago: it ended the process, which retries what is unavailable."""

    async def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("File descriptor 20 is used by transport <TCPTransport closed=False>")

    async with serving(answer({}), tmp_path) as connection:
        with monkeypatch.context() as patched:
            patched.setattr("aiohappyeyeballs.start_connection", refuse)
            with pytest.raises(Unavailable, match="File descriptor 20"):
                await connection.call("GET", "/", timeout=5)
        assert await connection.call("GET", "/", timeout=5) == b"{}"
