"""Simulated nodes: real Node objects with nothing behind them but the simulated kubelet.

https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/node-v1/
"""

import asyncio
from pathlib import Path
from typing import Any

from deviceshare import timestamps
from deviceshare.domain import vendors
from deviceshare.domain.contract import INVENTORY_ANNOTATION, MODE_LABEL, MODE_SHARED
from deviceshare.kube.api import Api
from deviceshare.loops.kinds import NODES
from deviceshare.loops.ports import AlreadyExists, NotFound
from deviceshare_sandbox.errors import SandboxError
from deviceshare_sandbox.simulated.env import host_ip
from deviceshare_sandbox.simulated.pod import SIMULATED
from deviceshare_sandbox.state import Options

_AT_ONCE = 16
_READY_SECONDS = 60.0
_POLL_SECONDS = 0.2
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


async def create_nodes(api: Api, options: Options, version: str) -> None:
    """Creates node-1 to node-N; one that is there already is left as it is."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def create(name: str) -> None:
        async with slots:
            try:
                await api.create(NODES, node(name, options, version))
            except AlreadyExists:
                return
            # Admission taints every new node until a controller has seen its condition; ours are ready from the start.
            await api.patch(NODES, name, {"spec": {"taints": None}})

    async with asyncio.TaskGroup() as group:
        for number in range(1, options.nodes + 1):
            group.create_task(create(f"node-{number}"), name=f"create node-{number}")


async def equip(api: Api, name: str, options: Options) -> None:
    """Waits until a real kubelet has reported its node ready, and annotates it with the devices that it is to have.

    Raises SandboxError when that takes more than a minute.
    """
    try:
        async with asyncio.timeout(_READY_SECONDS):
            while not await _ready(api, name):  # noqa: ASYNC110 - what is waited for is another process's doing
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError:
        raise SandboxError(f"{name} wasn't ready after {_READY_SECONDS:.0f} s; see kubelet.log") from None
    annotations = {INVENTORY_ANNOTATION: f"{options.resource}={options.devices}"}
    await api.patch(NODES, name, {"metadata": {"annotations": annotations, "labels": memory_labels(options)}})


async def _ready(api: Api, name: str) -> bool:
    try:
        return (await api.get(NODES, name)).ready
    except NotFound:
        return False


def node(name: str, options: Options, version: str) -> dict[str, Any]:
    """A shared node with `options.devices` devices, as a kubelet with a device plugin would register it."""
    capacity = {"cpu": "64", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": "500"}
    if options.devices:
        capacity[options.resource] = str(options.devices)
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        MODE_LABEL: MODE_SHARED,
        SIMULATED: "true",
        **memory_labels(options),
    }
    return {
        "metadata": {"name": name, "labels": labels},
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "conditions": conditions(),
            "addresses": [
                {"type": "InternalIP", "address": host_ip(name)},
                {"type": "Hostname", "address": name},
            ],
            "nodeInfo": {"kubeletVersion": version, "operatingSystem": "linux", "architecture": "amd64"}
            | dict.fromkeys(
                ("machineID", "systemUUID", "kernelVersion", "osImage", "containerRuntimeVersion"), "simulated"
            )
            # It booted when this machine did, and an agent that is run for it reports the same.
            | {"kubeProxyVersion": version, "bootID": _BOOT_ID.read_text().strip()},
        },
    }


def memory_labels(options: Options) -> dict[str, str]:
    """How much memory each device has, as GPU feature discovery writes it."""
    if options.resource != vendors.NVIDIA.resource or not options.memory_mib:
        return {}
    return {f"{options.resource}.memory": str(options.memory_mib)}


def conditions() -> list[dict[str, str]]:
    """What a healthy kubelet reports."""
    now = timestamps.now()
    healthy = {"Ready": "True", "MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False"}
    return [
        {
            "type": type_,
            "status": status,
            "reason": "SandboxKubelet",
            "message": "the sandbox simulates this node",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        for type_, status in healthy.items()
    ]
