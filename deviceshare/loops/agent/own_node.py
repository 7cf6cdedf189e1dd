"""The agent's own node: its mirrors, its recorder of Events and its clocks."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.pods import holder_uid_of, is_impostor
from deviceshare.domain.placement.device_state import Use
from deviceshare.domain.placement.device_states import device_states
from deviceshare.loops.agent.ports import NodePod
from deviceshare.loops.ports import Mirror, Recorder


@dataclass(frozen=True, kw_only=True)
class OwnNode:
    """What the agent's parts share."""

    name: str
    ledgers: Mirror[NodeDevices]
    """Of this node alone, as `pods` are."""
    pods: Mirror[NodePod]
    recorder: Recorder
    now: Callable[[], str]
    """The time, RFC 3339."""
    left_out: frozenset[str] = frozenset()
    """The namespaces whose pods the webhooks don't review: what those say of themselves is not believed."""
    clock: Callable[[], float] = time.monotonic

    @property
    def ledger(self) -> NodeDevices | None:
        return self.ledgers.get(self.name)

    def groups(self) -> dict[tuple[str, int], str]:
        """The groups that hold its devices, by the devices' resource and number."""
        # A lost device's number may be another's now.
        states = () if self.ledger is None else (each for each in device_states(self.ledger) if not each.lost)
        held = (each for each in states if each.use in (Use.HELD, Use.RELEASING) and each.group)
        return {(each.device.resource, each.device.index): each.group for each in held}

    def holder_uid(self, pod: NodePod) -> str:
        """The UID of the holder whose devices the pod got, or ""; as far as it can be believed."""
        believed = pod.metadata.namespace not in self.left_out and not is_impostor(pod.metadata)
        return holder_uid_of(pod.metadata) if believed else ""
