"""The containers of a node: whose a process is, by the kernel's control groups, and whose an address is.

A pod's owner writes its annotations, and may know the UIDs of others. So a pod is what its own UID says; an annotation
never stands in for another pod's UID, and alone never makes a pod a member of a group.
"""

import ipaddress
import re
from collections.abc import Collection, Iterable
from functools import cached_property, lru_cache
from typing import Final

from msgspec import Struct, field

from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.object_decoder import ObjectMeta
from deviceshare.domain.objects.pods import holder_uid_of, is_impostor

MIRROR_ANNOTATION: Final = "kubernetes.io/config.mirror"
_HASH: Final = "kubernetes.io/config.hash"
"""The UID by which the kubelet counts a static pod; the one that the API server shows is its mirror pod's."""

NODES_OWN: Final = "the address of the node itself"
UNKNOWN: Final = "the address of no running pod"
SHARED: Final = "an address that several pods seem to have"
UNREADABLE: Final = "the address of a pod that can't be read"

# The kubelet names a pod's control group after its UID and the runtime a container's after its ID, each in the format
# of its cgroup driver:
#
#     /kubepods/burstable/podUID/ID                                                     cgroupfs
#     /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice/cri-containerd-ID.scope     systemd
#     /system.slice/containerd.service/kubepods-burstable-podUID.slice:cri-containerd:ID                   both, mixed
#
# systemd's have `_` in place of the UID's `-`. The beginning of the path varies: with nested clusters, and in a cgroup
# namespace of the reader's own, where paths begin with `/../`.
_POD: Final = re.compile(
    r"""
    (?:^|[/-]) pod
    ( [0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}   # a UID of the API server's
    | [0-9a-f]{32} )                                      # a static pod's: a hash of its manifest
    (?: \.slice )? (?: [/:] (?P<rest>.*) | $ )
    """,
    re.VERBOSE | re.DOTALL,
)
_CONTAINER: Final = re.compile(r"(?:^|[/:-])([0-9a-f]{64})(?:\.scope)?(?:/|$)")
_USERS: Final = re.compile(r"/user@[^/]*\.service/")
"""systemd lets each user of the node create groups of any name beneath this one, without being root."""


class ControlGroup(Struct, frozen=True):
    """A container's control group, by what its path names."""

    pod_uid: str
    """As the kubelet knows it."""
    container_id: str = ""
    """"" for a process of the pod's sandbox."""


def control_group_of(cgroup: str) -> ControlGroup | None:
    """That of a process with this /proc/PID/cgroup (cgroups(7)); None for one outside of any pod.

    cgroups version 1 have a line for each hierarchy, version 2 one; any line that names a pod is enough. The name of a
    group may have any characters but `/` and a line feed: read the file as it is, without other ends of lines.
    """
    group = None
    for line in cgroup.split("\n"):
        # Of several pods in a line the first one's containers made the others' groups.
        found = _POD.search(line)
        if found is None or _USERS.search(line, 0, found.start() + 1):
            continue
        container = _CONTAINER.search(found["rest"] or "")
        group = ControlGroup(found[1].replace("_", "-"), container[1] if container else "")
        if container:
            return group
    return group


class ContainerStatus(Struct, frozen=True, rename="camel"):
    name: str = ""
    container_id: str = field(default="", name="containerID")
    """`containerd://ID`; empty until the container has started once."""

    @property
    def id(self) -> str:
        """The runtime's, as in the container's control group."""
        return self.container_id.rpartition("//")[2]


class PodAddress(Struct, frozen=True):
    ip: str = ""


class NodePodSpec(Struct, frozen=True, rename="camel"):
    node_name: str = ""
    host_network: bool = False


class NodePodStatus(Struct, frozen=True, rename="camel"):
    phase: str = ""
    host_ip: str = field(default="", name="hostIP")
    pod_ips: list[PodAddress] = field(default_factory=list, name="podIPs")
    container_statuses: list[ContainerStatus] = field(default_factory=list)
    init_container_statuses: list[ContainerStatus] = field(default_factory=list)
    ephemeral_container_statuses: list[ContainerStatus] = field(default_factory=list)


class NodePod(Struct, frozen=True):
    """A pod as its node's agent sees it: https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/"""

    metadata: ObjectMeta = field(default_factory=ObjectMeta)
    spec: NodePodSpec = field(default_factory=NodePodSpec)
    status: NodePodStatus = field(default_factory=NodePodStatus)

    @property
    def finished(self) -> bool:
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def mirrored(self) -> bool:
        """Whether it only shows a static pod, as the kubelet says: for one that lies it runs no containers.

        https://kubernetes.io/docs/reference/labels-annotations-taints/#kubernetes-io-config-mirror
        """
        return MIRROR_ANNOTATION in self.metadata.annotations


class NodeContainer(Struct, frozen=True):
    """A container of a pod on the node; without a name the pod as a whole, and all empty what runs outside of any."""

    pod: str = ""
    """`namespace/name`; the UID where the API server shows no such pod (any more)."""
    pod_uid: str = ""
    """The API server's; "" where it shows no such pod."""
    name: str = ""
    holder_uid: str = ""
    """Of the holder whose devices the pod received."""


class ProcessUse(Struct, frozen=True):
    """A process with a context on a device: what the driver says of it, and from `name` on what the kernel does."""

    pid: int
    memory_mib: int | None
    """None where the driver doesn't report it, as inside some virtual machines."""
    name: str = ""
    started: int = 0
    """In clock ticks since the node booted: PIDs are reused."""
    group: ControlGroup | None = None
    """None for a process outside of any pod."""


class NodeProcess(Struct, frozen=True):
    """A process on a device, in the node's present numbering, and the container that it belongs to."""

    device: Device
    use: ProcessUse
    container: NodeContainer = NodeContainer()

    @property
    def identity(self) -> tuple[str, int, int]:
        """The UID of its pod as the control group names it, or, outside of any pod, what tells one process from others.

        A pod may restart its processes under other names and PIDs; it stays the same pod.
        """
        group = self.use.group
        return (group.pod_uid, 0, 0) if group else ("", self.use.pid, self.use.started)


class NodePods:
    """The pods of a node at one moment, with their containers."""

    def __init__(self, node: str, pods: Iterable[NodePod], left_out: Collection[str] = ()) -> None:
        """`left_out`: namespaces that the webhooks don't review; what pods there say of themselves is not believed."""
        self._node = node
        self._pods = list(pods)
        self._left_out = left_out

    def container_of(self, group: ControlGroup | None) -> NodeContainer:
        """The container that this control group is of."""
        if group is None:
            return NodeContainer()
        containers = self._containers.get(group.pod_uid)
        if containers is None:
            return NodeContainer(pod=group.pod_uid)
        return containers.get(group.container_id) or containers[""]

    def at(self, address: str) -> NodePod | str:
        """The one running pod that has this address of its own, or what the address is instead.

        A connection can't be completed from another pod's address. Pods with hostNetwork, and every program outside of
        pods, have the node's. An address is free for the next pod as soon as the containers of the last have ended, so
        pods that have finished own none; two pods that seem to own one are both refused.
        """
        wanted = normal(address)
        owners, nodes_own = [], False
        for pod in self._pods:
            status = pod.status
            own = {normal(each.ip) for each in status.pod_ips}
            # A pod with hostNetwork may have ended: the address is the node's all the same.
            nodes_own |= wanted == normal(status.host_ip) or (pod.spec.host_network and wanted in own)
            if wanted and wanted in own and not pod.finished:
                owners.append(pod)
        if nodes_own and wanted:
            return NODES_OWN
        if len(owners) != 1:
            return SHARED if owners else UNKNOWN
        meta = owners[0].metadata
        if not meta.uid or any(map(meta.hides, ("metadata", "spec.hostNetwork", "status.phase", "status.podIPs"))):
            return UNREADABLE
        return owners[0]

    def mates(self, pod: NodePod) -> list[str]:
        """The other running pods of the holder whose devices it has, as `namespace/name`."""
        holder, uid = self.holder_uid(pod), pod.metadata.uid
        return [
            each.metadata.key
            for each in self._pods
            if self.holder_uid(each) == holder and each.metadata.uid != uid and not each.finished and not each.mirrored
        ]

    def holder_uid(self, pod: NodePod) -> str:
        """The UID of the holder whose devices the pod received, or ""; as far as it can be believed."""
        meta = pod.metadata
        return "" if meta.namespace in self._left_out or is_impostor(meta) else holder_uid_of(meta)

    @cached_property
    def _containers(self) -> dict[str, dict[str, NodeContainer]]:
        """By the pod's UID in control groups and the container's ID; with the ID "" the pod as a whole."""
        own = {pod.metadata.uid: _containers_of(pod, self.holder_uid(pod)) for pod in self._pods}
        # A static pod is never bound, so it has no holder, whatever its mirror pod says.
        static = {uid: _containers_of(pod, "") for pod in self._pods if (uid := _static_uid(pod, self._node))}
        return static | own


def _containers_of(pod: NodePod, holder_uid: str) -> dict[str, NodeContainer]:
    key, uid, status = pod.metadata.key, pod.metadata.uid, pod.status
    found = {"": NodeContainer(key, uid, holder_uid=holder_uid)}
    for each in (*status.container_statuses, *status.init_container_statuses, *status.ephemeral_container_statuses):
        found.setdefault(each.id, NodeContainer(key, uid, each.name, holder_uid))
    return found


@lru_cache(4096)  # to parse all pods' addresses, a few hundred, at each request took the loop a millisecond and more
def normal(address: str) -> str:
    """The address as `status.podIPs` writes it: an IPv4 address in an IPv6 one is itself; "" for what is none."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return ""
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)


def _static_uid(pod: NodePod, node: str) -> str:
    """The UID under which the kubelet runs the static pod that this one mirrors, or "".

    https://kubernetes.io/docs/reference/labels-annotations-taints/#kubernetes-io-config-mirror
    """
    meta = pod.metadata
    static = meta.annotations.get(_HASH, "")
    owned = any(owner.kind == "Node" and owner.name == node and owner.controller for owner in meta.owner_references)
    return static if owned and meta.annotations.get(MIRROR_ANNOTATION) == static else ""
