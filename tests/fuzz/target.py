"""A real `deviceshare run`, and `deviceshare agent`, before an API server that has next to nothing to tell.

Roles extender and webhook, over the files of the tree that is named: so that another version's can be attacked as well.
"""

import asyncio
import contextlib
import json
import os
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from deviceshare.certificates import issuance
from deviceshare.domain import contract
from tests.unit.kube.scripted import kubeconfig

ROOT: Final = Path(__file__).parents[2]
SERVERS: Final = ("probe", "extender", "webhook", "ui")
TRUSTING: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""A stranger's: it takes whatever certificate it is shown."""
TRUSTING.check_hostname, TRUSTING.verify_mode = False, ssl.CERT_NONE
POD: Final = "127.0.0.1"
"""The address of a pod of the agent's node."""
STRANGER: Final = "127.0.0.9"
"""The node's own."""
_START_SECONDS: Final = 120.0
_NODES: Final = 300

Json = dict[str, Any]


class Victim:
    """One running process."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.process = process
        self._log = log
        self.ports: dict[str, int] = {}

    def wait_started(self, servers: tuple[str, ...]) -> None:
        """Until it listens everywhere."""
        deadline = time.monotonic() + _START_SECONDS
        while not set(servers) <= set(self.ports):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"deviceshare didn't start:\n{self.log()[-3000:]}")
            time.sleep(0.05)
            for line in self.log().splitlines(keepends=True):
                said = json.loads(line) if line.startswith("{") and line.endswith("\n") else {}
                if said.get("message") == "Started server":
                    self.ports[said["server"]] = said["port"]

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def log_bytes(self) -> int:
        return self._log.stat().st_size

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def memory_mib(self, field: str = "VmRSS") -> float:
        """Now; `VmHWM` is the most that it was."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        [line] = [line for line in status.splitlines() if line.startswith(f"{field}:")]
        return int(line.split()[1]) / 1024

    def forget_peak(self) -> None:
        """From now on `VmHWM` counts anew (proc(5), clear_refs)."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))


@contextlib.contextmanager
def deviceshare(directory: Path, tree: Path = ROOT, *, level: str = "info") -> Iterator[Victim]:
    """All four servers."""
    names = {"dns_names": ["localhost"], "addresses": ["127.0.0.1"]}
    now, day, hour = datetime.now(UTC), timedelta(days=1), timedelta(hours=1)
    authority = issuance.new_authority("target", now=now, lifetime=day, skew=hour)
    issued = issuance.issue(authority, "target", now=now, lifetime=day, skew=hour, **names)  # type: ignore[arg-type]
    (directory / "tls.crt").write_text(issued.certificate)
    (directory / "tls.key").write_text(issued.key)
    flags = [f"--{server}-bind=127.0.0.1:0" for server in SERVERS]
    files = [f"--tls-cert={directory}/tls.crt", f"--tls-key={directory}/tls.key"]
    with _api_server(directory) as config:
        command = ["run", "--roles=extender,webhook", f"--kubeconfig={config}", *flags, *files]
        with _running([*command, f"--log-level={level}"], directory / "log", tree, SERVERS) as target:
            yield target


@contextlib.contextmanager
def agent(directory: Path, tree: Path = ROOT, *, level: str = "info") -> Iterator[Victim]:
    """The agent of a node without GPUs."""
    with _api_server(directory) as config:
        (directory / "proc").mkdir()  # no processes: those of this machine may be of another node's pods
        binds = ["--bind=127.0.0.1:0", "--serve-pods=127.0.0.1:0", f"--proc-root={directory / 'proc'}"]
        command = ["agent", "--node-name=node-0", f"--kubeconfig={config}", *binds, f"--log-level={level}"]
        with _running(command, directory / "agent-log", tree, ("agent", "pods")) as target:
            yield target


@contextlib.contextmanager
def _running(command: list[str], log: Path, tree: Path, servers: tuple[str, ...]) -> Iterator[Victim]:
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "deviceshare", *command, "--log-format=json"],
            env={**os.environ, "PYTHONPATH": str(tree)},
            cwd=tree,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    try:
        target = Victim(process, log)
        target.wait_started(servers)
        yield target
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


# The API server.


def _objects() -> dict[str, list[Json]]:
    names = [f"node-{number}" for number in range(_NODES)]
    devices = [{"resource": "nvidia.com/gpu", "index": index} for index in range(8)]
    labels = {contract.MODE_LABEL: contract.MODE_SHARED}
    group = {"metadata": {"name": "team", "uid": "uid-of-team"}, "spec": {"resources": {"nvidia.com/gpu": 1}}}
    return {
        "nodes": [{"metadata": {"name": name, "uid": f"uid-of-{name}", "labels": labels}} for name in names],
        "nodedevices": [
            {"metadata": {"name": name}, "spec": {"claims": {}}, "status": {"devices": devices}} for name in names
        ],
        "shareddevicegroups": [group],
        "pods": [],
    }


def _node_objects() -> dict[str, list[Json]]:
    """What the agent of node-0 sees: a pod, and the claim of its group."""
    name, uid = "member", "uid-of-team"
    group = {contract.GROUP: "team"}
    meta = {"name": name, "namespace": "ns", "uid": "uid-of-member", "labels": group}
    pod = {
        "metadata": {**meta, "annotations": {**group, contract.GROUP_UID: uid, contract.POD_UID: meta["uid"]}},
        "spec": {"nodeName": "node-0"},
        "status": {"phase": "Running", "hostIP": STRANGER, "podIPs": [{"ip": POD}]},
    }
    [ledger, *_] = _objects()["nodedevices"]
    claim = {"group": "team", "devices": ledger["status"]["devices"][:2]}
    return {"pods": [pod], "nodedevices": [{**ledger, "spec": {"claims": {uid: claim}}}]}


async def _answer(request: web.Request) -> web.StreamResponse:
    if request.method != "GET":
        return web.json_response({"kind": "Status", "code": 409, "reason": "Conflict"}, status=409)
    kind = request.path.rsplit("/", 1)[-1]
    if "watch" in request.query:
        stream = web.StreamResponse()
        await stream.prepare(request)
        while True:
            note = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "1"}}}
            await stream.write(json.dumps(note).encode() + b"\n")
            await asyncio.sleep(5)
    items = (_node_objects() if "fieldSelector" in request.query else _objects()).get(kind)
    if items is None:
        return web.json_response({"major": "1", "minor": "30", "gitVersion": "v1.30.0"})
    for item in items:
        item["metadata"]["resourceVersion"] = "1"
    return web.json_response({"metadata": {"resourceVersion": "1"}, "items": items})


async def _end(runner: web.AppRunner) -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await runner.cleanup()


@contextlib.contextmanager
def _api_server(directory: Path) -> Iterator[str]:
    loop = asyncio.new_event_loop()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", _answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)

    async def begin() -> int:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return int(runner.addresses[0][1])

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        port = asyncio.run_coroutine_threadsafe(begin(), loop).result(30)
        yield kubeconfig(directory, f"http://127.0.0.1:{port}")
    finally:
        asyncio.run_coroutine_threadsafe(_end(runner), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
