"""One node as its agent meets it: its NodeDevices, its pods, and an API server that takes what is written."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from deviceshare.agent.own_node import OwnNode
from deviceshare.agent.violations import Evictions
from deviceshare.domain import contract
from deviceshare.domain.device_health.containers import NodePod
from deviceshare.domain.device_health.examination import DeviceUse, Inventory, Reading
from deviceshare.domain.objects.hardware import Hardware, Part
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.loops.kinds import PODS
from deviceshare.loops.ports import ApiError, Kind, NotFound, Subject
from tests.unit.domain.objects import GPU
from tests.unit.loops.live import MemoryMirror, MemoryRecorder

NODE = "n1"
NOW = "2026-11-21T03:00:00Z"
TEAM = "uid-of-team"
HOST_IP = "192.0.2.1"
"""The node's own address."""


def uuid(index: int) -> str:
    return f"GPU-{index}"


def part(index: int, **changes: Any) -> Part:
    return Part(GPU, index, uuid(index), "H100", 81559, **changes)


def reading(*indices: int, silent: Mapping[int, str] | None = None, **changes: Any) -> Reading:
    """The GPUs with these indices."""
    parts = [part(index) for index in indices]
    uses = [DeviceUse(each.index, each.uuid, 0, each.memory_mib, 0) for each in parts]
    read = Reading(Inventory("550", parts, [], silent or {}), uses, boot_id="boot-1")
    return msgspec.structs.replace(read, **changes)


class EvictionWishes(Evictions):
    """Evicts nobody."""

    def __init__(self) -> None:
        self.wanted: list[Subject] = []
        self.spared: list[Subject] = []

    def want(self, pod: Subject, cause: str) -> None:
        self.wanted.append(pod)

    def spare(self, cause: str, *, but: Collection[Subject] = ()) -> None:
        self.spared += [pod for pod in dict.fromkeys(self.wanted) if pod not in but]


def pod_subject(name: str) -> Subject:
    """Of the pod `ns/name`, whose UID is made of its name."""
    return Subject(PODS, name, "ns", f"uid-of-{name}")


class Node:
    """Implements the Writer port, too."""

    def __init__(self, *, left_out: Collection[str] = ()) -> None:
        self.ledgers = MemoryMirror()
        self.pods = MemoryMirror()
        self.recorder = MemoryRecorder()
        self.time = 0.0
        self.own = OwnNode(
            name=NODE,
            ledgers=self.ledgers,
            pods=self.pods,
            recorder=self.recorder,
            writer=self,
            now=lambda: NOW,
            left_out=frozenset(left_out),
            clock=lambda: self.time,
        )
        self.version = 1
        self.writes: list[Hardware] = []
        self.evicted: list[str] = []
        self.fail: Callable[[], ApiError | None] = lambda: None
        self.keep: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda hardware: hardware
        """What the API server's schema leaves of a report."""

    def set_ledger(
        self, hardware: Hardware | None = None, claims: Mapping[str, Any] | None = None, recovered: str = ""
    ) -> None:
        """As the watch tells it; fields that aren't given are empty."""
        self.version += 1
        annotations = {contract.RECOVERED: recovered} if recovered else {}
        body = {
            "metadata": {"name": NODE, "uid": "1", "resourceVersion": str(self.version), "annotations": annotations},
            "spec": {"claims": claims or {}},
            "status": {"hardware": msgspec.to_builtins(hardware or Hardware())},
        }
        self.ledgers.set(NODE, msgspec.convert(body, NodeDevices))

    def hold(self, *indices: int) -> None:
        """The group `team` holds these devices, all of which have been reported."""
        devices = [{"resource": GPU, "index": index, "uuid": uuid(index)} for index in indices]
        self.set_ledger(self.ledger.hardware, {TEAM: {"group": "team", "devices": devices}})

    def add_pod(
        self,
        name: str,
        *,
        group_uid: str = "",
        phase: str = "Running",
        static: str = "",
        ips: Sequence[str] = (),
        host_network: bool = False,
        **more: Any,
    ) -> None:
        """A pod with one container, `main`, whose ID is its name's; `more` is metadata."""
        self.version += 1
        annotations, labels = {}, {}
        if group_uid:
            group = group_uid.removeprefix("uid-of-")
            annotations, labels = {contract.GROUP: group, contract.GROUP_UID: group_uid}, {contract.GROUP: group}
        meta: dict[str, Any] = {
            "name": name,
            "namespace": "ns",
            "uid": f"uid-of-{name}",
            "resourceVersion": str(self.version),
        }
        if static:
            annotations = {"kubernetes.io/config.hash": static, "kubernetes.io/config.mirror": static}
            meta["ownerReferences"] = [{"kind": "Node", "name": NODE, "uid": "uid-of-n1", "controller": True}]
        statuses = [{"name": "main", "containerID": f"containerd://id-of-{name}"}]
        body = {
            "metadata": {**meta, "annotations": annotations, "labels": labels, **more},
            "spec": {"hostNetwork": host_network},
            "status": {
                "phase": phase,
                "hostIP": HOST_IP,
                "podIPs": [{"ip": ip} for ip in ips],
                "containerStatuses": statuses,
            },
        }
        self.pods.set(f"ns/{name}", msgspec.convert(body, NodePod))

    @property
    def ledger(self) -> NodeDevices:
        found: NodeDevices = self.ledgers.objects[NODE]
        return found

    async def apply(
        self, kind: Kind[Any], name: str, body: Mapping[str, Any], *, manager: str, subresource: str = ""
    ) -> Any:
        assert (manager, subresource, name) == (contract.AGENT, "status", NODE)
        if error := self.fail():
            raise error
        if NODE not in self.ledgers.objects:
            raise NotFound(name)
        assert list(body) == ["status"] and list(body["status"]) == ["hardware"]
        self.writes.append(msgspec.convert(body["status"]["hardware"], Hardware))
        kept = msgspec.convert(self.keep(body["status"]["hardware"]), Hardware)
        self.version += 1
        ledger = self.ledger
        metadata = msgspec.structs.replace(ledger.metadata, resource_version=str(self.version))
        status = msgspec.structs.replace(ledger.status, hardware=kept)
        return msgspec.structs.replace(ledger, metadata=metadata, status=status)

    async def evict(self, namespace: str, pod: str, *, uid: str) -> None:
        if error := self.fail():
            raise error
        assert uid == f"uid-of-{pod}"
        self.evicted.append(f"{namespace}/{pod}")
