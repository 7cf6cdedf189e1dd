"""Agents on simulated nodes: the real program, over a library that answers as a test has scripted it."""

import http.client
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

from deviceshare_sandbox import Sandbox
from deviceshare_sandbox.network import free_ports
from deviceshare_sandbox.nvml.script import Script

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
STOP_SECONDS = 10.0
"""As much as the chart's grace period gives it."""


class Player:
    """A program in a pod with this address that asks an agent for its turn, and holds it until the block ends."""

    def __init__(self, port: int, address: str, more: str = "") -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30, source_address=(address, 0))
        self._path = f"/turn?token={uuid4()}{more}"

    def __enter__(self) -> Self:
        self._connection.request("GET", self._path)
        self._answer = self._connection.getresponse()
        return self

    def __exit__(self, *_: object) -> None:
        self._answer.close()
        self._connection.close()

    def hears(self, word: str) -> None:
        """Reads until the agent says this."""
        while (line := self._answer.readline().decode()).split()[:1] != [word]:
            assert line and line.split()[0] in ("wait", "turn"), line


class AgentProcess:
    """`deviceshare agent` for one node, over all its lives; its log is in `directory`."""

    def __init__(self, sandbox: Sandbox, node: str, directory: Path, *flags: str) -> None:
        [self.port] = free_ports(1)
        self._log = directory / "agent.log"
        self._command = [sys.executable, "-m", "deviceshare", "agent", "--node-name", node]
        self._command += ["--kubeconfig", str(sandbox.agent_kubeconfig(node))]
        self._command += ["--bind", f"127.0.0.1:{self.port}", "--log-format", "json", *flags]
        # It finds modules as this process does: the wheel's before the checkout's.
        self._environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Begins a new life, and waits until it has reported."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment
            )
        deadline = time.monotonic() + 60
        while not self._ready():
            assert self._process.poll() is None and time.monotonic() < deadline, self._log.read_text()[-3000:]
            time.sleep(0.1)

    def stop(self) -> None:
        """Ends it as the kubelet does; fails where that takes too long or isn't clean."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            assert process.wait(STOP_SECONDS) == 0, self._log.read_text()[-3000:]
        finally:
            process.kill()

    def read(self, path: str) -> str:
        """What it answers at a path."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{path}", timeout=20) as answer:
            text: str = answer.read().decode()
            return text

    def usage(self) -> Any:
        return json.loads(self.read("usage"))

    def said(self, message: str) -> list[Any]:
        """Its log's lines with this message, over all its lives."""
        lines = [json.loads(line) for line in self._log.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line["message"] == message]

    def _ready(self) -> bool:
        try:
            return self.read("readyz") == "ok"
        except (urllib.error.URLError, OSError):
            return False


class NodeAgent(AgentProcess):
    """An agent whose devices and processes are files in `directory`."""

    def __init__(self, sandbox: Sandbox, node: str, library: Path, directory: Path, *flags: str) -> None:
        self.script = Script(directory / "nvml")
        self._proc, sysfs = directory / "proc", directory / "sys"
        sysfs.mkdir()
        self.boot(_BOOT_ID.read_text().strip())  # as the simulated nodes have it
        self.process(1, "init", "/init.scope")
        roots = ("--proc-root", str(self._proc), "--sys-root", str(sysfs))
        super().__init__(sandbox, node, directory, *roots, *flags)
        self._environment |= self.script.environment(library)

    def boot(self, boot_id: str) -> None:
        """What the kernel calls its present run; agents read it once."""
        file = self._proc / "sys/kernel/random/boot_id"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{boot_id}\n")

    def process(self, pid: int, name: str, cgroup: str) -> None:
        """A process of the node."""
        directory = self._proc / str(pid)
        directory.mkdir()
        (directory / "comm").write_text(f"{name}\n")
        (directory / "cgroup").write_text(f"0::{cgroup}\n")
        (directory / "stat").write_text(f"{pid} ({name}) S {' '.join(map(str, range(4, 53)))}\n")
