"""The devices that vendors' device plugins allocated to pods, as the kubelet lists them.

Only the kubelet knows: it requests devices from the plugins itself, and no API object says which ones a pod got. It
serves the list on `/var/lib/kubelet/pod-resources/kubelet.sock`, which root may read.
"""

import asyncio
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import DecodeError
from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.const import Status
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError
from msgspec import Struct

from deviceshare.kubelet.messages import STRING, messages
from deviceshare.loops.agent.ports import AllocationsUnknown

ANSWER_SECONDS: Final = 5.0
"""The kubelet answers from memory, several MiB in less than a second."""

METHOD: Final = "/v1.PodResourcesLister/List"

# The part that we read of k8s.io/kubelet/pkg/apis/podresources/v1/api.proto.
MESSAGES: Final = messages(
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


class Allocated(Struct, frozen=True):
    """The devices of one resource that plugins allocated to the containers of one pod."""

    namespace: str
    name: str
    resource: str
    device_ids: tuple[str, ...]
    """Sorted, as the plugin names them. NVIDIA's: the UUID; with time slicing or MPS `UUID::0`; for a MIG slice
    `MIG-…`; the index where the plugin runs with `DEVICE_ID_STRATEGY=index`."""


class PodResourcesUnknown(AllocationsUnknown):
    """The plugins' allocations can't be read; the text says why and what to do."""


async def allocations(socket: Path, *, seconds: float = ANSWER_SECONDS) -> list[Allocated]:
    """Every device that the kubelet counts as allocated to a pod, ordered by pod and resource, within `seconds`.

    A pod that has ended may still be listed until it is deleted; pods without devices are left out.
    Raises PodResourcesUnknown.
    """
    try:
        async with asyncio.timeout(seconds), Channel(path=str(socket)) as channel:
            answer = await _list(channel)
    except TimeoutError:
        raise PodResourcesUnknown(
            f"The kubelet accepted the connection on {socket} but did not answer in {seconds:g} s: "
            "see its log on the node (journalctl -u kubelet)."
        ) from None
    except OSError as error:
        raise PodResourcesUnknown(_unconnected(socket, error)) from error
    except GRPCError as error:
        raise PodResourcesUnknown(_refused(socket, error)) from error
    except (DecodeError, ProtocolError, StreamTerminatedError, AssertionError, NotImplementedError) as error:
        # The last two are grpclib's for an answer without a message, one that is cut off, and one that is compressed.
        raise PodResourcesUnknown(
            f"The process listening on {socket} does not serve the kubelet's pod-resources API "
            f"({str(error) or 'undecodable answer'}): check which directory of the node is mounted there."
        ) from error
    return _joined(answer)


async def _list(channel: Channel) -> Any:
    method: UnaryUnaryMethod[Any, Any] = UnaryUnaryMethod(
        channel, METHOD, MESSAGES["ListPodResourcesRequest"], MESSAGES["ListPodResourcesResponse"]
    )
    return await method(MESSAGES["ListPodResourcesRequest"]())


def _joined(answer: Any) -> list[Allocated]:
    """One entry for each pod and resource: the kubelet lists containers, and each one's NUMA nodes, separately."""
    ids: defaultdict[tuple[str, str, str], set[str]] = defaultdict(set)
    for pod in answer.pod_resources:
        for container in pod.containers:
            for devices in container.devices:
                ids[pod.namespace, pod.name, devices.resource_name].update(devices.device_ids)
    return [Allocated(*key, tuple(sorted(found))) for key, found in sorted(ids.items()) if found]


def _unconnected(socket: Path, error: OSError) -> str:
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
    return f"Failed to connect to {socket}: {error.strerror or error}. Check that it is the kubelet's socket."


def _refused(socket: Path, error: GRPCError) -> str:
    said = f"{error.status.name}: {error.message or 'no reason given'}"
    match error.status:
        case Status.UNIMPLEMENTED:
            return (
                f"The kubelet behind {socket} has no pod-resources API v1 ({said}): it needs Kubernetes 1.20 or later "
                "and must not run with --feature-gates=KubeletPodResources=false."
            )
        case Status.RESOURCE_EXHAUSTED:
            return f"The kubelet behind {socket} limits its requests ({said}): the agent retries later."
    return f"The kubelet behind {socket} refused ({said}): see its log on the node (journalctl -u kubelet)."
