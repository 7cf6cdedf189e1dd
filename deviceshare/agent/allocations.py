"""The devices that vendors' device plugins allocated to pods, as the kubelet says, by the numbers and UIDs of both.

Decisions rely on every pod being in it, so it is all or nothing: unless each device and each pod is identified, the
allocations are unknown, and then only the device plugin allocates devices of the node.

Only the kubelet knows which devices a pod got from a vendor's device plugin: it requests them itself, and no API object
says it. It serves the list on `/var/lib/kubelet/pod-resources/kubelet.sock`, which root may read, as `v1` since
Kubernetes 1.20 (Kubernetes enhancement 606): its pod-resources API, over gRPC.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClassesForFiles
from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.const import Status
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError
from msgspec import Struct

from deviceshare.agent.own_node import OwnNode
from deviceshare.domain import contract, vendors
from deviceshare.domain.objects.hardware import Allocation

log = structlog.get_logger(__name__)

PERIOD_SECONDS = 5.0
PATIENCE = 3
"""Looks in a row that may be incomplete: the kubelet knows of a pod before its mirror does, or longer."""
ANSWER_SECONDS: Final = 5.0
"""The kubelet answers from memory, several MiB in less than a second."""
METHOD: Final = "/v1.PodResourcesLister/List"
STRING: Final = "string"


class Allocated(Struct, frozen=True):
    """The devices of one resource that plugins allocated to the containers of one pod."""

    namespace: str
    name: str
    resource: str
    device_ids: tuple[str, ...]
    """Sorted, as the plugin names them. NVIDIA's: the UUID; with time slicing or MPS `UUID::0`; for a MIG slice
    `MIG-…`; the index where the plugin runs with `DEVICE_ID_STRATEGY=index`."""


class PodResourcesUnknown(Exception):
    """The plugins' allocations can't be read; the text says why and what to do."""


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


async def ask_kubelet(socket: Path, *, seconds: float = ANSWER_SECONDS) -> list[Allocated]:
    """Every device that the kubelet counts as allocated to a pod, ordered by pod and resource, within `seconds`.

    A pod that has ended may still be listed until it is deleted; pods without devices are left out.
    Raises PodResourcesUnknown.
    """
    try:
        async with asyncio.timeout(seconds), Channel(path=str(socket)) as channel:
            request, reply = MESSAGES["ListPodResourcesRequest"], MESSAGES["ListPodResourcesResponse"]
            method: UnaryUnaryMethod[Any, Any] = UnaryUnaryMethod(channel, METHOD, request, reply)
            answer = await method(request())
    except TimeoutError:
        raise PodResourcesUnknown(
            f"The kubelet accepted the connection on {socket} but did not answer in {seconds:g} s: "
            "see its log on the node (journalctl -u kubelet)."
        ) from None
    except (OSError, GRPCError) as error:
        raise PodResourcesUnknown(_failure(socket, error)) from error
    except (DecodeError, ProtocolError, StreamTerminatedError, AssertionError, NotImplementedError) as error:
        # The last two are grpclib's for an answer without a message, one that is cut off, and one that is compressed.
        raise PodResourcesUnknown(
            f"The process listening on {socket} does not serve the kubelet's pod-resources API "
            f"({str(error) or 'undecodable answer'}): check which directory of the node is mounted there."
        ) from error
    # The kubelet lists containers, and each one's NUMA nodes, separately.
    ids: defaultdict[tuple[str, str, str], set[str]] = defaultdict(set)
    for pod in answer.pod_resources:
        for container in pod.containers:
            for devices in container.devices:
                ids[pod.namespace, pod.name, devices.resource_name].update(devices.device_ids)
    return [Allocated(*key, tuple(sorted(found))) for key, found in sorted(ids.items()) if found]


def _failure(socket: Path, error: OSError | GRPCError) -> str:
    said = f"{error.status.name}: {error.message or 'no reason given'}" if isinstance(error, GRPCError) else ""
    match error:
        case FileNotFoundError():
            return (
                f"The socket {socket} does not exist: mount the kubelet's directory pod-resources from the node "
                "(beneath its --root-dir, usually /var/lib/kubelet) at that path."
            )
        case PermissionError():
            return f"Permission denied to {socket}: it belongs to root, so run the agent as user 0 (runAsUser: 0)."
        case ConnectionRefusedError():
            return (
                f"No process listens on {socket}: the kubelet is down (systemctl status kubelet on the node), or it "
                "was restarted and only the socket is mounted: mount its directory."
            )
        case OSError():
            return f"Failed to connect to {socket}: {error.strerror or error}. Check that it is the kubelet's socket."
        case GRPCError(status=Status.UNIMPLEMENTED):
            return (
                f"The kubelet behind {socket} has no pod-resources API v1 ({said}): it needs Kubernetes 1.20 or later "
                "and must not run with --feature-gates=KubeletPodResources=false."
            )
        case GRPCError(status=Status.RESOURCE_EXHAUSTED):
            return f"The kubelet behind {socket} limits its requests ({said}): the agent retries later."
    return f"The kubelet behind {socket} refused ({said}): see its log on the node (journalctl -u kubelet)."


def message_classes(package: str, schema: Mapping[str, Mapping[int, tuple[str, str]]]) -> dict[str, type[Message]]:
    """The message classes of a proto3 package, by name.

    Each message has its fields' types and names by number, as in the .proto: `{1: ("repeated string", "device_ids")}`.
    A type other than string is another message of the schema. Fields that it doesn't name are skipped by protobuf.
    They are in a pool of their own: names as plain as the kubelet's `v1` may be taken in the process-wide one.
    """
    file = FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in schema.items():
        message = file.message_type.add(name=name)
        for number, (type_, field) in fields.items():
            repeated, plain = type_.startswith("repeated "), type_.removeprefix("repeated ")
            label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
            made = message.field.add(name=field, number=number, label=label, type=FieldDescriptorProto.TYPE_STRING)
            if plain != STRING:
                made.type, made.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{package}.{plain}"
    pool = DescriptorPool()
    pool.Add(file)
    classes = GetMessageClassesForFiles([file.name], pool)
    return {full_name.removeprefix(f"{package}."): kind for full_name, kind in classes.items()}


MESSAGES: Final = message_classes(
    "v1",
    {
        "ListPodResourcesRequest": {},
        "ListPodResourcesResponse": {1: ("repeated PodResources", "pod_resources")},
        "PodResources": {
            1: (STRING, "name"),
            2: (STRING, "namespace"),
            3: ("repeated ContainerResources", "containers"),
        },
        "ContainerResources": {1: (STRING, "name"), 2: ("repeated ContainerDevices", "devices")},
        "ContainerDevices": {1: (STRING, "resource_name"), 2: ("repeated string", "device_ids")},
    },
)
"""The part that we read of k8s.io/kubelet/pkg/apis/podresources/v1/api.proto."""
