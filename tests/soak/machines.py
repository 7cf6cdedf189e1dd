"""The simulated nodes of a soak: what their agents would report, nodes that come and go, and one with a real agent."""

import asyncio
import contextlib
from typing import Final

import msgspec

from deviceshare.domain import contract
from deviceshare.domain.objects.hardware import Hardware, Part
from deviceshare.kube.api import Api
from deviceshare.loops.kinds import NODE_DEVICES, NODES
from deviceshare.loops.ports import AlreadyExists
from deviceshare_sandbox import Options
from deviceshare_sandbox.simulated_nodes import node
from tests.controlplane.pool import GPU
from tests.soak.sight import MEMORY_MIB

LABEL: Final = "soak"
"""The node label by which groups and pods select; `STAYS` for the nodes that stay."""
STAYS: Final = "stays"
DEVICES: Final = 4
SINCE: Final = "2026-11-21T03:00:00Z"


class Machines:
    """The nodes, and which of their devices are broken."""

    def __init__(self, api: Api, version: str, *, watched: str) -> None:
        """`watched` is the node of the real agent: nobody else may report its devices."""
        self._api = api
        self._version = version
        self.watched = watched
        self._broken: dict[str, set[int]] = {}
        self._reporting = asyncio.Lock()

    async def keep(self, count: int) -> None:
        """Labels the nodes that stay, and reports that all their devices are well."""
        for number in range(1, count + 1):
            name = f"node-{number}"
            await self._api.patch(NODES, name, {"metadata": {"labels": {LABEL: STAYS}}})
            if name != self.watched:
                self._broken[name] = set()
                await self._report(name)

    async def break_(self, name: str, index: int) -> None:
        """From now on the device is unhealthy."""
        self._broken[name].add(index)
        await self._report(name)

    async def repair(self, name: str, index: int) -> None:
        """From now on it is healthy again."""
        self._broken[name].discard(index)
        await self._report(name)

    async def add(self, name: str) -> None:
        """A node that groups select by its name; ready from the start."""
        document = node(name, Options(devices=DEVICES, memory_mib=MEMORY_MIB), self._version)
        document["metadata"]["labels"][LABEL] = name
        with contextlib.suppress(AlreadyExists):
            await self._api.create(NODES, document)
        await self._api.patch(NODES, name, {"spec": {"taints": None}})

    async def remove(self, name: str) -> None:
        await self._api.delete(NODES, name)

    async def _report(self, name: str) -> None:
        async with self._reporting:
            parts = [
                Part(GPU, n, f"GPU-{name}-{n}", memory_mib=MEMORY_MIB, unhealthy="Xid 79", since=SINCE)
                if n in self._broken[name]
                else Part(GPU, n, f"GPU-{name}-{n}", memory_mib=MEMORY_MIB)
                for n in range(DEVICES)
            ]
            body = {"status": {"hardware": msgspec.to_builtins(Hardware(devices=parts))}}
            await self._api.apply(NODE_DEVICES, name, body, manager=contract.AGENT, subresource="status")
