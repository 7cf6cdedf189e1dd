"""The kubelet's pod-resources API, over gRPC on a Unix socket of its node. Only the agent calls it.

Only the kubelet knows which devices a pod got from a vendor's device plugin: it requests them itself, and no API object
says it. It serves the list on `/var/lib/kubelet/pod-resources/kubelet.sock`, which root may read, as `v1` since
Kubernetes 1.20 (Kubernetes enhancement 606).
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClassesForFiles
from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.const import Status
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError
from msgspec import Struct

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


async def allocations(socket: Path, *, seconds: float = ANSWER_SECONDS) -> list[Allocated]:
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
