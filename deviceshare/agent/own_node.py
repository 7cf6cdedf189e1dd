"""The agent's own node: its mirrors, its recorder of Events, its clocks, and the agent's few writes."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from deviceshare.domain.device_health.containers import NodePod, NodePods
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.placement.device_states import Use, device_states
from deviceshare.loops.ports import Kind, Mirror, Recorder

T = TypeVar("T")

NODE_PODS: Final = Kind("v1", "Pod", "pods", NodePod, namespaced=True)


class Writer(Protocol):
    """What agents write, beside events. Every call is bounded in time and raises an `ApiError`."""

    async def apply(
        self, kind: Kind[T], name: str, body: Mapping[str, Any], *, manager: str, subresource: str = ""
    ) -> T:
        """Server-side apply, by force."""
        ...

    async def evict(self, namespace: str, pod: str, *, uid: str) -> None: ...


@dataclass(frozen=True, kw_only=True)
class OwnNode:
    """What the agent's parts share."""

    name: str
    ledgers: Mirror[NodeDevices]
    """Of this node alone, as `pods` are."""
    pods: Mirror[NodePod]
    recorder: Recorder
    writer: Writer
    now: Callable[[], str]
    """The time, RFC 3339."""
    left_out: frozenset[str] = frozenset()
    """The namespaces whose pods the webhooks don't review: what those say of themselves is not believed."""
    clock: Callable[[], float] = time.monotonic

    @property
    def ledger(self) -> NodeDevices | None:
        return self.ledgers.get(self.name)

    def present_pods(self) -> NodePods:
        """Its pods and their containers at this moment."""
        return NodePods(self.name, self.pods.values(), self.left_out)

    def groups(self) -> dict[tuple[str, int], str]:
        """The groups that hold its devices, by the devices' resource and number."""
        # A lost device's number may be another's now.
        states = () if self.ledger is None else (each for each in device_states(self.ledger) if not each.lost)
        held = (each for each in states if each.use in (Use.HELD, Use.RELEASING) and each.group)
        return {(each.device.resource, each.device.index): each.group for each in held}
