"""GPUs of simulated nodes, as their agents see them: NVML by a script, and the programs of pods as files of /proc.

A pod's annotations say what its program does. `sandbox.deviceshare.io/uses-mib: "6000"`: it uses so much memory of each
GPU that it was told of. `sandbox.deviceshare.io/turn-seconds: "20"`: once it has its turn, which it asks the node's
agent for, and so long.
"""

import asyncio
import shutil
import sys
import zlib
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import structlog
from msgspec import Struct

from deviceshare.domain import vendors
from deviceshare.domain.contract import AGENT, AGENT_PORT, NAMESPACE
from deviceshare_sandbox.components import Component
from deviceshare_sandbox.nvml import VARIABLE, Script
from deviceshare_sandbox.simulated_network import Address
from deviceshare_sandbox.simulated_pods import TURN_SECONDS, USES_MIB, KubeletPod, pod_ip, recorded
from deviceshare_sandbox.state import Layout, Options

log = structlog.get_logger(__name__)

MOST_NODES: Final = 16
"""Each agent is a process of some 60 MiB."""
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_INIT: Final = 1
_FIRST_PID: Final = 4_000_000
"""Beyond those of this machine's processes: the agent asks the kernel, too, whether a process group has ended."""
_PIDS: Final = 190_000
_STARTED: Final = 22
_RETRY_SECONDS: Final = 2.0


class SimulatedAgent(Struct, frozen=True):
    """The agent of one simulated node: where it listens, and the directory of its GPUs and processes."""

    node: str
    port: int
    """Of its probes, metrics and usage."""
    pods_port: int
    """Of what it answers pods."""
    directory: str

    @property
    def pod(self) -> str:
        """The name of the pod that stands for it in the cluster."""
        return f"{AGENT}-{self.node}"

    @property
    def proc(self) -> Path:
        """What it takes for /proc."""
        return Path(self.directory) / "proc"

    @property
    def script(self) -> Path:
        """What NVML answers it."""
        return Path(self.directory) / "nvml"


def agents_of(layout: Layout, options: Options, ports: Iterable[int]) -> list[SimulatedAgent]:
    """One for each node, with two of these ports each."""
    free = iter(ports)
    names = [f"node-{number}" for number in range(1, options.nodes + 1)]
    return [SimulatedAgent(name, next(free), next(free), str(layout.data / "gpus" / name)) for name in names]


def agent_component(agent: SimulatedAgent, kubeconfig: Path, library: Path) -> Component:
    """The real agent over the scripted library; it evicts pods that exceed their share for ten seconds."""
    command = ["env", f"LD_LIBRARY_PATH={library.parent}", f"{VARIABLE}={agent.script}"]
    command += [sys.executable, "-m", "deviceshare", "agent", "--node-name", agent.node]
    command += ["--kubeconfig", str(kubeconfig)]
    command += ["--bind", f"127.0.0.1:{agent.port}", "--serve-pods", f"127.0.0.1:{agent.pods_port}"]
    command += ["--proc-root", str(agent.proc), "--sys-root", f"{agent.directory}/sys"]
    command += ["--turns-directory", f"{agent.directory}/turns", "--enforce", "evict", "--overuse-grace", "10"]
    return Component(agent.pod, command, f"http://127.0.0.1:{agent.port}/readyz")


def agent_pod(agent: SimulatedAgent) -> dict[str, Any]:
    """What stands for the agent in the cluster, as the chart's DaemonSet would have created it."""
    container = {"name": "agent", "image": "deviceshare"}
    return {
        "metadata": {"name": agent.pod, "namespace": NAMESPACE, "labels": {"app.kubernetes.io/name": AGENT}},
        "spec": {"nodeName": agent.node, "containers": [container], "tolerations": [{"operator": "Exists"}]},
    }


class SimulatedGpus:
    """The GPUs, and the programs on them, of the nodes that have an agent."""

    def __init__(self, agents: Iterable[SimulatedAgent], options: Options) -> None:
        self._agents = {agent.node: agent for agent in agents}
        self._scripts: dict[str, Script] = {}
        self._uuids: dict[str, list[str]] = {}
        self._running: dict[str, Mapping[str, KubeletPod]] = {}
        """By node and UID: the pods whose annotations say what they do."""
        self._turns: dict[str, asyncio.Task[None]] = {}
        """By UID: the programs that ask for a turn."""
        self._have_turn: set[str] = set()
        self._ended: set[str] = set()
        for node, agent in self._agents.items():
            for part in ("proc/sys/kernel/random", "sys", "turns"):
                (Path(agent.directory) / part).mkdir(parents=True, exist_ok=True)
            shutil.copy(_BOOT_ID, agent.proc / "sys/kernel/random/boot_id")
            _write_process(agent.proc, _INIT, "init", "/init.scope")
            script = self._scripts[node] = Script(agent.script)
            self._uuids[node] = script.gpus(options.devices, memory_mib=options.memory_mib, nvlink_pairs=True)

    def listener_of(self, address: Address, pods: Iterable[KubeletPod]) -> Address:
        """What listens for an address: an agent where it is its pod's, else the address itself."""
        for pod in pods:
            agent = self._agents.get(pod.spec.node_name)
            if agent and pod.metadata.name == agent.pod and address == (pod_ip(pod), AGENT_PORT):
                return "127.0.0.1", agent.port
        return address

    def take(self, group: asyncio.TaskGroup, node: str, pods: Iterable[KubeletPod]) -> None:
        """Runs the programs of the node's pods, which are these, and ends those of others."""
        if node not in self._agents:
            return
        acting = {pod.metadata.uid: pod for pod in pods if pod.status.phase == "Running" and _acts(pod)}
        running = {uid: pod for uid, pod in acting.items() if uid not in self._ended}
        for uid in self._running.get(node, {}).keys() - running.keys():
            self._have_turn.discard(uid)
            if task := self._turns.pop(uid, None):
                task.cancel()
        self._running[node] = running
        self._write(node)
        for uid, pod in running.items():
            if TURN_SECONDS in pod.metadata.annotations and uid not in self._turns:
                self._turns[uid] = group.create_task(self._take_turn(node, pod), name=f"turn of {pod.metadata.key}")

    def _write(self, node: str) -> None:
        proc, script, running = self._agents[node].proc, self._scripts[node], self._running[node]
        pids = {_pid(uid): uid for uid in running}
        for directory in proc.glob("[0-9]*"):
            if int(directory.name) not in {_INIT, *pids}:
                shutil.rmtree(directory)
        used: dict[str, dict[int, int]] = {uuid: {} for uuid in self._uuids[node]}
        for pid, uid in pids.items():
            pod = running[uid]
            # A container's id, which a kubelet would have from the runtime, has 64 digits.
            _write_process(proc, pid, pod.metadata.name, f"/kubepods/burstable/pod{uid}/{_pid(uid):064x}")
            if TURN_SECONDS not in pod.metadata.annotations or uid in self._have_turn:
                for uuid in self._visible(pod, node):
                    used[uuid][pid] = _number(pod, USES_MIB)
        for uuid, processes in used.items():
            script.processes(uuid, processes)
            script.use(uuid, used_mib=sum(processes.values()), percent=90 if processes else 0)

    def _visible(self, pod: KubeletPod, node: str) -> set[str]:
        """The UUIDs of the GPUs that the pod's containers were told."""
        uuids = self._uuids[node]
        numbered = {str(number): uuid for number, uuid in enumerate(uuids)}
        told = chain(*(each.get(vendors.NVIDIA.env, "").split(",") for each in recorded(pod).values()))
        return {numbered.get(each, each) for each in told} & set(uuids)

    async def _take_turn(self, node: str, pod: KubeletPod) -> None:
        """Asks the agent, from the pod's address, until the program has had its turn."""
        while True:
            try:
                if await self._hold_turn(node, pod):
                    return
            except OSError as error:
                log.warning("Lost the agent", pod=pod.metadata.key, error=str(error))
            await asyncio.sleep(_RETRY_SECONDS)

    async def _hold_turn(self, node: str, pod: KubeletPod) -> bool:
        """Returns whether the agent gave the turn; it ends with the connection (docs/turns.md)."""
        port, uid = self._agents[node].pods_port, pod.metadata.uid
        process = f"pid={_pid(uid)}&started={_STARTED}"
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(pod_ip(pod), 0))
        try:
            writer.write(f"GET /turn?token={uuid4()}&{process} HTTP/1.1\r\nHost: agent\r\n\r\n".encode())
            while line := await reader.readline():
                if line.startswith(b"turn"):
                    self._have_turn.add(uid)
                    self._write(node)
                    await asyncio.sleep(_number(pod, TURN_SECONDS))
                    # While a process of it ran, the turn would go on.
                    self._ended.add(uid)
                    self._running[node] = {each: its for each, its in self._running[node].items() if each != uid}
                    self._write(node)
                    return True
        finally:
            writer.close()
        return False


def _acts(pod: KubeletPod) -> bool:
    return not pod.metadata.annotations.keys().isdisjoint({USES_MIB, TURN_SECONDS})


def _number(pod: KubeletPod, annotation: str) -> int:
    text = pod.metadata.annotations.get(annotation, "")
    return int(text) if text.isdecimal() else 0


def _pid(uid: str) -> int:
    return _FIRST_PID + zlib.crc32(uid.encode()) % _PIDS


def _write_process(proc: Path, pid: int, name: str, cgroup: str) -> None:
    """In a process group of its own; field 22 of stat is _STARTED: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html"""
    directory = proc / str(pid)
    directory.mkdir(exist_ok=True)
    (directory / "comm").write_text(f"{name}\n")
    (directory / "cgroup").write_text(f"0::{cgroup}\n")
    (directory / "stat").write_text(f"{pid} ({name}) S {_INIT} {pid} {pid} {' '.join(map(str, range(7, 53)))}\n")
    (directory / "status").write_text(f"NSpid:\t{pid}\n")
