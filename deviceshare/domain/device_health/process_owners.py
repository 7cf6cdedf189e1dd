"""The pod and container that a process belongs to, from its control groups (/proc/PID/cgroup, cgroups(7)).

The kubelet names a pod's group after its UID and the runtime a container's after its ID, each in the format of its
cgroup driver:

    /kubepods/burstable/podUID/ID                                                     cgroupfs
    /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice/cri-containerd-ID.scope     systemd
    /system.slice/containerd.service/kubepods-burstable-podUID.slice:cri-containerd:ID                   both, mixed

systemd's have `_` in place of the UID's `-`. The beginning of the path varies: with nested clusters, and in a cgroup
namespace of the reader's own, where paths begin with `/../`.
"""

import re
from typing import Final

from msgspec import Struct

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


class Owner(Struct, frozen=True):
    """A pod's UID as the kubelet knows it, and a container's ID; "" for a process of the pod's sandbox."""

    pod_uid: str
    container: str = ""


def owner_of(cgroup: str) -> Owner | None:
    """The pod and container of a process with this /proc/PID/cgroup; None for one outside of any pod.

    cgroups version 1 have a line for each hierarchy, version 2 one; any line that names a pod is enough. The name of a
    group may have any characters but `/` and a line feed: read the file as it is, without other ends of lines.
    """
    owner = None
    for line in cgroup.split("\n"):
        # Of several pods in a line the first one's containers made the others' groups.
        found = _POD.search(line)
        if found is None or _USERS.search(line, 0, found.start() + 1):
            continue
        container = _CONTAINER.search(found["rest"] or "")
        owner = Owner(found[1].replace("_", "-"), container[1] if container else "")
        if owner.container:
            return owner
    return owner
