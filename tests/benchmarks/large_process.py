"""`deviceshare run` against a real API server that holds a large cluster: what its start, work and rest take."""

import asyncio
import http.client
import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from deviceshare.kube.api import Api
from deviceshare.kube.connection import Connection
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, NODES, PODS
from tests.benchmarks import large_cluster
from tests.benchmarks.availability import ApiServer
from tests.benchmarks.control_plane import ControlPlane, control_plane
from tests.benchmarks.large_cluster import Raw, Size

AT_ONCE = 24
READY_SECONDS = 120.0
REST_SECONDS = 30.0
MOST_WORK_SECONDS = 240.0
CALM = 0.05
"""Of a core, in ten seconds: then the leader's first work is done."""


class Life(Struct):
    """One process, from its start."""

    ready_s: float
    ready_mib: float
    """Resident when it was ready."""
    longest_webhook_ms: float
    """Of the reviews while the leader worked, 20 a second."""
    p99_webhook_ms: float
    work_s: float
    """Until the leader was done with its first work."""


class Figures(Struct):
    """Of both lives; the second after kill -9."""

    first: Life
    second: Life
    peak_mib: float
    rest_percent: float
    """Of a core, over half a minute at the end."""

    def rows(self) -> Iterator[tuple[str, str]]:
        """For a table."""
        for name, life in (("first start", self.first), ("after kill -9", self.second)):
            yield f"{name}: ready", f"{life.ready_s:.1f} s"
            yield f"{name}: resident when ready", f"{life.ready_mib:.0f} MiB"
            yield f"{name}: the leader's first work", f"{life.work_s:.0f} s"
            yield f"{name}: longest webhook answer in that time", f"{life.longest_webhook_ms:.0f} ms"
            yield f"{name}: 99 of 100 webhook answers within", f"{life.p99_webhook_ms:.0f} ms"
        yield "most resident", f"{self.peak_mib:.0f} MiB"
        yield "at rest", f"{self.rest_percent:.1f} % of a core"


async def measure(size: Size) -> Figures:
    """Fills the API server, which takes minutes, and runs deviceshare twice."""
    async with control_plane(1, 1) as (plane, connection):
        await _fill(connection, size)
        with _running(plane) as process:
            first = await _life(plane, process)
            process.send_signal(signal.SIGKILL)
            process.wait()
        with _running(plane) as process:
            second = await _life(plane, process)
            before = _cpu_seconds(process.pid)
            await asyncio.sleep(REST_SECONDS)
            rest = (_cpu_seconds(process.pid) - before) / REST_SECONDS * 100
            return Figures(first, second, _mib(process.pid, "VmHWM"), rest)


@contextmanager
def _running(plane: ControlPlane) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(plane.parts.deviceshare.command, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def _life(plane: ControlPlane, process: "subprocess.Popen[bytes]") -> Life:
    begun = time.monotonic()
    while not await asyncio.to_thread(_ready, plane.ports.probe):
        assert process.poll() is None and time.monotonic() - begun < READY_SECONDS, "deviceshare doesn't become ready"
        await asyncio.sleep(0.05)
    ready, resident = time.monotonic() - begun, _mib(process.pid, "VmRSS")
    server = ApiServer(plane.ports.webhook)
    with server.asking():
        # A successor waits until the lease of who was killed is over.
        await asyncio.sleep(20)
        while time.monotonic() - begun < MOST_WORK_SECONDS:
            before = _cpu_seconds(process.pid)
            await asyncio.sleep(10)
            if _cpu_seconds(process.pid) - before < CALM * 10 + 200 * _A_REVIEW:
                break
        worked = time.monotonic() - begun
    answers = sorted(server.answers)
    return Life(ready, resident, answers[-1] * 1000, answers[int(len(answers) * 0.99)] * 1000, worked)


_A_REVIEW = 0.001
"""Seconds of processor time that one of the benchmark's own reviews takes at most."""


def _ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=3)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == http.HTTPStatus.OK
    except OSError:
        return False
    finally:
        connection.close()


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _mib(pid: int, what: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{what}:")) / 1024


async def _fill(connection: Connection, size: Size) -> None:
    api = Api(connection, timeout=60.0)
    await api.delete(NODES, "node-1")  # the control plane's own
    await _all(api.create(NODES, raw) for raw in large_cluster.nodes(size))
    uids = [""] * size.groups
    await _all(_group(api, number, raw, uids) for number, raw in enumerate(large_cluster.groups(size)))
    await _all(_ledger(api, raw) for raw in large_cluster.ledgers(size, uids))
    await _all(_pod(api, raw) for raw in large_cluster.pods(size, uids))


async def _all(requests: Iterable[Awaitable[Any]]) -> None:
    remaining = iter(requests)

    async def work() -> None:
        for request in remaining:
            await request

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))


async def _group(api: Api, number: int, raw: Raw, uids: list[str]) -> None:
    uids[number] = (await api.create(GROUPS, raw)).metadata.uid
    if raw["status"]:
        await api.patch(GROUPS, raw["metadata"]["name"], {"status": raw["status"]}, subresource="status")


async def _ledger(api: Api, raw: Raw) -> None:
    await api.create(NODE_DEVICES, {"metadata": raw["metadata"], "spec": raw["spec"]})
    await api.patch(NODE_DEVICES, raw["metadata"]["name"], {"status": raw["status"]}, subresource="status")


async def _pod(api: Api, raw: Raw) -> None:
    await api.create(PODS, {"metadata": raw["metadata"], "spec": raw["spec"]}, "default")
    name, status = raw["metadata"]["name"], {"status": raw["status"]}
    await api.patch(PODS, name, status, namespace="default", subresource="status")
