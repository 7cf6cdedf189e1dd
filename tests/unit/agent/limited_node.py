"""A node whose agent limits device memory, of either vendor."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from deviceshare import amd, nvidia
from deviceshare.agent.memory_limits import LimitDriver, MemoryLimits
from deviceshare.agent.own_node import OwnNode, Report
from deviceshare.domain import contract
from deviceshare.domain.device_health.containers import NodePod
from deviceshare.domain.objects.hardware import BY_AGENT, DMEM, Hardware, LimitReport, Part
from deviceshare_sandbox.nvml import Script
from tests.unit.agent.node import Node
from tests.unit.amd.machine import MIB, DmemKernel, Sysfs
from tests.unit.domain.objects import GPU
from tests.unit.kube.scripted import until

NOTHING = (0, (1 << 64) - 1)


def pod_uid(number: int) -> str:
    return f"3f6c1a52-9d0e-4b8a-8c1d-{number:012x}"


def container_id(number: int) -> str:
    return f"{number:064x}"


class LimitsReport(Report):
    """What an agent reports of limits; the API server has it at once, unless it takes no report."""

    def __init__(self, own: OwnNode, node: "LimitedNode") -> None:
        super().__init__(own)
        self._limited = node
        parts = [Part(node.resource, index, uuid) for index, uuid in enumerate(node.uuids)]
        super().tell(devices=[replace(part, mig=node.split) for part in parts])

    def tell(self, **parts: Any) -> None:
        super().tell(**parts)
        if self._limited.reported is not None:
            self._limited.reported = list(self.known.limits)
            self._limited.publish()

    @property
    def written(self) -> Hardware | None:
        reported = self._limited.reported
        return None if reported is None else Hardware(limits=reported)


class LimitedNode(Node):
    """A node with two GPUs of 80 GiB and control groups of version 2, whose agent can be killed and started."""

    resource: str
    uuids: Sequence[str]
    word: str
    """For how limits are set, where no hook does."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.root = directory / "cgroup"
        self.claims: dict[str, Any] = {}
        self.reported: list[LimitReport] | None = []
        """What the API server has of the agent's report; None while it takes no report."""
        self.described: dict[int, tuple[list[Any], dict[str, str]]] = {}
        self.running: dict[int, dict[str, int]] = {}
        self.repairs, self.delays = 0, list[float]()
        self.hook = self.split = self.intercepts = False
        self.mode = BY_AGENT

    def driver(self) -> LimitDriver:
        raise NotImplementedError

    def make(self, group: Path) -> None:
        raise NotImplementedError

    def set(self, group: Path, soft: int, hard: int, used: int = 0, gpu: int = 0) -> None:
        """As others than the agent do; all in MiB."""
        raise NotImplementedError

    def of(self, group: Path, gpu: int = 0) -> tuple[int, int]:
        """The group's limits in MiB, soft and hard."""
        raise NotImplementedError

    def repaired(self) -> None:
        self.repairs += 1

    def share(self, number: int, mib: dict[str, dict[int, int]], **annotations: str) -> None:
        """A pod whose containers have so many MiB of the GPUs with these numbers; its containers don't run yet."""
        shares = [
            {"container": name, "resource": self.resource, "index": index, "uuid": self.uuids[index], "memoryMib": size}
            for name, parts in mib.items()
            for index, size in parts.items()
        ]
        self.claims[pod_uid(number)] = {"pod": f"ns/p{number}", "shares": shares}
        self.publish()
        self.describe(number, shares, **annotations)

    def describe(self, number: int, shares: list[Any], running: Any = None, **more: str) -> None:
        """The pod as the API server shows it, with the containers that the kubelet has reported, and their IDs."""
        told = {contract.SHARES: msgspec.json.encode(shares).decode()}
        told |= {f"{contract.PREFIX}{name.replace('_', '-')}": value for name, value in more.items()}
        self.described[number] = shares, more
        self.running.setdefault(number, {}).update(running or {})
        running = self.running[number].items()
        statuses = [{"name": name, "containerID": f"containerd://{container_id(each)}"} for name, each in running]
        self.version += 1
        meta: dict[str, Any] = {"name": f"p{number}", "namespace": "ns", "uid": pod_uid(number), "annotations": told}
        meta["resourceVersion"] = str(self.version)
        body = {"metadata": meta, "status": {"phase": "Running", "containerStatuses": statuses}}
        self.pods.set(f"ns/p{number}", msgspec.convert(body, NodePod))

    def publish(self) -> None:
        parts = [Part(self.resource, index, uuid, "H100", 81920) for index, uuid in enumerate(self.uuids)]
        self.set_ledger(Hardware(devices=parts, limits=self.reported or []), self.claims)

    def start(self, number: int, container: int, name: str = "main", *, systemd: bool = False) -> Path:
        """A container's control group, as a runtime makes it; without a name the kubelet doesn't report it."""
        uid = pod_uid(number)
        place = f"kubelet/kubepods/burstable/pod{uid}/{container_id(container)}"
        if systemd:
            slices = f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid.replace('-', '_')}.slice"
            place = f"{slices}/cri-containerd-{container_id(container)}.scope"
        self.make(self.root / place)
        if name and number in self.described:
            shares, more = self.described[number]
            self.describe(number, shares, {name: container}, **more)
        return self.root / place

    @asynccontextmanager
    async def agent(self, *, ready: bool = True) -> AsyncIterator[MemoryLimits]:
        """One life of an agent, from when it is ready."""

        own = dataclasses.replace(self.own)
        vars(own)["report"] = LimitsReport(own, self)
        found = MemoryLimits(
            own,
            self.driver,
            mode=self.mode,
            root=self.root,
            intercepts=self.intercepts,
            hook=lambda: self.hook,
            on_limited=self.delays.append,
            on_repaired=self.repaired,
        )
        task = asyncio.create_task(found.run())
        try:
            if ready:
                await until(lambda: not found.fault)
            yield found
        finally:
            task.cancel()
            await asyncio.wait([task])

    @property
    def events(self) -> list[tuple[str, str]]:
        return [(reason, message) for _, _, reason, message in self.recorder.events]


class NvidiaNode(LimitedNode):
    resource = GPU
    word = BY_AGENT

    def __init__(self, script: Script, directory: Path) -> None:
        super().__init__(directory)
        self.script = script
        self.limits = directory / "limits"
        script.limit_memory(self.limits)
        self.uuids = script.gpus(2, memory_mib=81920)
        self.root.mkdir()
        (self.root / "cgroup.controllers").touch()

    def driver(self) -> LimitDriver:
        return nvidia.Driver(self.root)

    def make(self, group: Path) -> None:
        group.mkdir(parents=True)

    def set(self, group: Path, soft: int, hard: int, used: int = 0, gpu: int = 0) -> None:
        self.limits.mkdir(exist_ok=True)
        self._file(group, gpu).write_text(f"{soft * MIB} {hard * MIB} {used * MIB} {group}\n")

    def of(self, group: Path, gpu: int = 0) -> tuple[int, int]:
        path = self._file(group, gpu)
        soft, hard = [int(word) for word in path.read_text().split()[:2]] if path.exists() else NOTHING
        return soft // MIB, hard // MIB

    def _file(self, group: Path, gpu: int) -> Path:
        return self.limits / f"{self.uuids[gpu]}@{group.stat().st_ino}"


class AmdNode(LimitedNode):
    resource = "amd.com/gpu"
    word = DMEM

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.sysfs = Sysfs(directory / "sys")
        addresses = ["0000:05:00.0", "0000:c1:00.0"]
        for address in addresses:
            self.sysfs.gpu(address, mem_info_vram_total=81920 * MIB)
        self.uuids = [part.uuid for part in amd.read_inventory(self.sysfs.root).devices]
        self.regions = [f"drm/{address}/vram" for address in addresses]
        self.kernel = DmemKernel(self.root, dict.fromkeys(self.regions, 81920 * MIB))

    def driver(self) -> LimitDriver:
        return amd.Dmem(self.sysfs.root, self.root, self.kernel.write)

    def make(self, group: Path) -> None:
        self.kernel.make(group)

    def set(self, group: Path, soft: int, hard: int, used: int = 0, gpu: int = 0) -> None:
        for name, value in (("current", used), ("max", hard), ("min", soft)):
            self.kernel.set(group, name, self.regions[gpu], value * MIB)

    def of(self, group: Path, gpu: int = 0) -> tuple[int, int]:
        soft, hard = (self.kernel.value(group, name, self.regions[gpu]) for name in ("min", "max"))
        return soft // MIB, hard // MIB
