"""The devices that vendors' device plugins allocated to pods, as the kubelet says, by the numbers and UIDs of both.

Decisions rely on every pod being in it, so it is all or nothing: unless each device and each pod is identified, the
allocations are unknown, and then only the device plugin allocates devices of the node.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

import structlog

from deviceshare.agent.own_node import OwnNode
from deviceshare.domain import contract, vendors
from deviceshare.domain.objects.hardware import Allocation
from deviceshare.kubelet import Allocated, PodResourcesUnknown

log = structlog.get_logger(__name__)

PERIOD_SECONDS = 5.0
PATIENCE = 3
"""Looks in a row that may be incomplete: the kubelet knows of a pod before its mirror does, or longer."""


class _Incomplete(Exception):
    """Something in the kubelet's answer is of a pod or a device that isn't known here; the text names it."""


@dataclass(eq=False)
class Allocations:
    """Asks the kubelet every few seconds while `run` runs."""

    node: OwnNode
    kubelet: Callable[[], Awaitable[Iterable[Allocated]]] | None
    """Says what plugins allocated, and raises PodResourcesUnknown; None where it isn't to be asked."""
    placeholders: str = ""
    """The namespace of placeholder pods, "" where there are to be none."""

    def __post_init__(self) -> None:
        self._incomplete = 0
        self._trouble = ""
        self.node.report.tell(placeholders=bool(self.placeholders))
        if self.kubelet is None:
            self.node.report.tell(allocations=None)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(PERIOD_SECONDS)

    async def look(self) -> None:
        if self.kubelet is None:
            return
        known, trouble = None, ""
        try:
            known = self._join(await self.kubelet())
            self._incomplete = 0
        except _Incomplete as error:
            self._incomplete += 1
            if self._incomplete >= PATIENCE:
                trouble = str(error)
            else:
                known, trouble = self.node.report.known.allocations, self._trouble
        except PodResourcesUnknown as error:
            trouble = str(error)
        if trouble and trouble != self._trouble:
            log.warning("Agent failed to learn the allocations of device plugins", trouble=trouble)
        elif self._trouble and not trouble:
            log.info("Agent learned the allocations of device plugins", allocations=len(known or ()))
        self._trouble = trouble
        self.node.report.tell(allocations=known)

    def _join(self, answer: Iterable[Allocated]) -> list[Allocation]:
        # NVIDIA's plugin names devices by UUID, AMD's by PCI address.
        numbers = {
            (part.resource, name): part.index
            for part in self.node.report.known.devices
            for name in (part.uuid, part.pci)
            if name
        }
        earlier = {allocation.pod: allocation for allocation in self.node.report.known.allocations or ()}
        joined = []
        for allocated in answer:
            if vendors.vendor_of(vendors.counted_as(allocated.resource)) is None:
                continue
            key = f"{allocated.namespace}/{allocated.name}"
            pod = self.node.pods.get(key)
            if pod and pod.finished:
                continue  # its containers are over, the kubelet lists it until it is deleted
            # In its own namespace only: else anybody could say which devices groups get.
            labels = pod.metadata.labels if pod else {}
            placeholder = allocated.namespace == self.placeholders and contract.PLACEHOLDER in labels
            if placeholder and pod and pod.metadata.deletion_timestamp:
                continue  # it reserves nothing any more, and for readers of the node's pods it is gone
            # A pod that was deleted by force is in no mirror, while its containers may run on.
            uid = pod.metadata.uid if pod else earlier[key].uid if key in earlier else ""
            if not uid:
                raise _Incomplete(f"pod {key} is not known")
            indices = sorted({_number(numbers, allocated.resource, device) for device in allocated.device_ids})
            joined.append(Allocation(key, uid, allocated.resource, indices, placeholder=placeholder))
        return joined


def _number(numbers: Mapping[tuple[str, str], int], resource: str, device: str) -> int:
    """The index of a device by its plugin's name for it: UUID, `UUID::0` for turns on it, PCI address, or index."""
    name = device.partition("::")[0]
    if name.isdecimal():
        return int(name)
    number = numbers.get((vendors.counted_as(resource), name))
    if number is None:
        raise _Incomplete(f"device {device} of {resource} is not known")
    return number
