"""Unreadable objects: what can't be decided because of them, and how to correct them."""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from deviceshare.domain import contract
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.object_decoder import ObjectMeta
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.wording import listed

_COMMANDS: Final = {"Pod": "pod", "Node": "node", contract.GROUP_KIND: "sdg", contract.NODE_DEVICES_KIND: "ndev"}


class UnreadableObject(Struct, frozen=True, rename="camel"):
    """An object that is there but isn't what its kind says."""

    kind: str
    name: str
    """`namespace/name`, or the name alone."""
    fault: str
    """The field, and what is wrong with it."""

    @property
    def cure(self) -> str:
        namespace, _, name = self.name.rpartition("/")
        command = f"kubectl edit {_COMMANDS.get(self.kind, self.kind)}{f' -n {namespace}' * bool(namespace)} {name}"
        return f"correct that field with {command}, or delete the object if nothing uses it"


def unreadable(kind: str, objects: Iterable[ObjectMeta]) -> list[UnreadableObject]:
    """Those of one kind that can't be read, by their metadata, sorted by name."""
    found = [UnreadableObject(kind, meta.key, meta.fault) for meta in objects if meta.unreadable]
    return sorted(found, key=lambda each: each.name)


def node_fault(node: Node) -> Reason | None:
    """Why nothing is decided about the node."""
    return _fault("the node", node.metadata, f"kubectl edit node {node.metadata.name}")


def ledger_fault(ledger: NodeDevices) -> Reason | None:
    """Why it is unknown who holds which devices of the node."""
    return _fault("the NodeDevices of the node", ledger.metadata, f"kubectl edit ndev {ledger.metadata.name}")


def pod_fault(pod: Pod) -> Reason | None:
    """Why nothing is decided about the pod."""
    return _fault("the pod", pod.metadata, UnreadableObject("Pod", pod.metadata.key, "").cure)


def _fault(what: str, meta: ObjectMeta, cure: str) -> Reason | None:
    return Reason(ReasonKind.UNREADABLE, f"{what} can't be read ({meta.fault})", cure) if meta.unreadable else None


class BlindSpots:
    """Pods outside of groups whose devices are unknown, by the node that they live on."""

    def __init__(self) -> None:
        self._pods: dict[str, dict[str, UnreadableObject]] = {}

    def note(self, node: str, pod: Pod, *, hidden: bool) -> None:
        """Takes in that a pod on the node hides what it asks for, or that it doesn't or has ended. "" is any node."""
        key = pod.metadata.key
        if hidden:
            self._pods.setdefault(node, {})[key] = UnreadableObject("Pod", key, pod.metadata.fault)
        elif self._pods.get(node, {}).pop(key, None) and not self._pods[node]:
            del self._pods[node]

    def every(self, nodes: Iterable[Node], ledgers: Iterable[NodeDevices]) -> list[UnreadableObject]:
        """All that can't be read of nodes, ledgers and pods outside of groups."""
        return [
            *unreadable("Node", (node.metadata for node in nodes)),
            *unreadable(contract.NODE_DEVICES_KIND, (ledger.metadata for ledger in ledgers)),
            *sorted((pod for pods in self._pods.values() for pod in pods.values()), key=lambda each: each.name),
        ]

    def on(self, node: str) -> list[UnreadableObject]:
        """Those that may be on the node, sorted by name."""
        if not self._pods:
            return []
        found = {**self._pods.get("", {}), **self._pods.get(node, {})}
        return [found[key] for key in sorted(found)]

    def obstacle(
        self, node: str, seen: Node | None, ledger: NodeDevices | None, *, joining: bool = False
    ) -> Reason | None:
        """Why it is unknown which devices of the node are free: its objects, or a pod, which is named.

        Who is `joining` holds devices already; another's claim that can't be read is no obstacle then.
        """
        if joining and ledger and ledger.hidden_claims:
            ledger = None
        fault = (node_fault(seen) if seen else None) or (ledger_fault(ledger) if ledger else None)
        pods = self.on(node)
        if fault or not pods:
            return fault
        names = listed((pod.name for pod in pods), most=1)
        text = f"pod {names} on the node can't be read ({pods[0].fault}) and may hold any of its devices"
        return Reason(ReasonKind.UNREADABLE, text, pods[0].cure)
