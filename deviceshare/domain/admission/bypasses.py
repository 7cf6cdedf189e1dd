"""Ways around the hand-over: fields of a pod that may give it other devices than its group's, or its share's.

Devices are handed over by a variable. Whatever else gives a container devices, or access to them,
isn't counted by deviceshare. `ways` lists what can be seen in a pod; docs/security.md lists the rest, too.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from posixpath import normpath
from typing import Final, NamedTuple

from deviceshare.domain import contract, vendors
from deviceshare.domain.admission.drafts import Draft, DraftContainer, Place
from deviceshare.domain.objects.printable import quoted
from deviceshare.domain.objects.shares import DIALECTS
from deviceshare.domain.vendors import Vendor

WARN, REFUSE = "warn", "refuse"
MODES: Final = (WARN, REFUSE)
"""What the webhook does about ways around."""

LISTED: Final = 5
"""Ways listed to a pod's author, to fit on a terminal."""
_LONGEST_NAME: Final = 63

NODE_PATHS: Final = (
    *("/dev", "/proc", "/sys/fs/cgroup"),
    *("/etc/cdi", "/run/cdi", "/run/nri", "/var/lib/kubelet", "/etc/kubernetes/manifests"),
    *("/run/containerd", "/run/k3s", "/run/crio", "/run/docker", "/run/docker.sock", "/run/cri-dockerd.sock"),
)
HARMLESS: Final = tuple(f"/dev/{name}" for name in ("shm", "hugepages", "infiniband", "fuse", "net", "log", "null"))
ANNOTATIONS: Final = (
    "cdi.k8s.io",  # containerd, CRI-O and NVIDIA's runtime; with a vendor in front, their NRI plugins
    *("devices.nri.io", "cdi-devices.nri.io", "mounts.nri.io"),  # the device injector of containerd/nri, old and new
    *("devices.noderesource.dev", "cdi-devices.noderesource.dev", "mounts.noderesource.dev"),
    *("io.kubernetes.cri-o.Devices", "devices.crio.io"),
)
POWERS: Final = ("ALL", "CAP_SYS_ADMIN", "SYS_ADMIN")
CLASS: Final = "deviceclass.resource.kubernetes.io/"
"""https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/"""


class Way(NamedTuple):
    """One way around, and its effect."""

    find: Callable[[Draft, Collection[str]], Iterable[str]]
    """Yields its places in a pod; also takes the names of containers to skip."""
    does: str


def bypasses(pod: Draft, skip: Collection[str] = ()) -> list[str]:
    """The ways around in a pod, a sentence for each; containers named in `skip` can't be changed any more."""
    return [_sentence(found, way.does) for way in ways(vendors.VENDORS) if (found := list(way.find(pod, skip)))]


def new_bypasses(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """The ways around that a change of a pod's annotations adds."""
    found = list(_device_annotations(key for key in new if new[key] != old.get(key)))
    return [_sentence(found, _ANNOTATED)] if found else []


def refusal_or_warnings(found: list[str], mode: str) -> tuple[str, list[str]]:
    """The refusal, or the warnings, for the ways `found`."""
    if not found:
        return "", []
    listed = (
        found if len(found) <= LISTED else [*found[: LISTED - 1], f"and {len(found) - LISTED + 1} more ways around"]
    )
    if mode == WARN:
        return "", listed
    cure = "leave it out: deviceshare refuses ways around the hand-over of devices here (--bypasses=refuse)"
    return f"{'; '.join(listed)}; {cure}", []


def _sentence(places: list[str], does: str) -> str:
    return f"{places[0]}{f' (and {len(places) - 1} more)' if len(places) > 1 else ''} {does}"


def _named(place: Place) -> str:
    return f"{place} {quoted(place.container.name, _LONGEST_NAME)}"


def _that(does: Callable[[DraftContainer], bool]) -> Callable[[Draft, Collection[str]], Iterator[str]]:
    return lambda pod, skip: (
        _named(each) for each in pod.spec.places(ephemeral=True, skip=skip) if does(each.container)
    )


def _mounts(vendor: Vendor, pod: Draft, skip: Collection[str]) -> Iterator[str]:
    for each in pod.spec.places(ephemeral=True, skip=skip):
        for mount in each.container.volume_mounts or ():
            if _within(_path(mount.mount_path), vendor.device_list):
                yield f"{_named(each)}: the mount {quoted(mount.mount_path or '')}"


def _host_paths(pod: Draft, _: Collection[str]) -> Iterator[str]:
    for position, volume in enumerate(pod.spec.volumes or ()):
        if volume.host_path and _opens_node(_path(volume.host_path.path)):
            yield f"spec.volumes[{position}]: {quoted(volume.host_path.path or '')} of the node"


def _claims(pod: Draft, _: Collection[str]) -> Iterator[str]:
    ours = contract.POD_CLAIM if contract.CLAIM in (pod.metadata.annotations or ()) else None
    named = enumerate(pod.spec.resource_claims or ())
    return (f"spec.resourceClaims[{position}]" for position, each in named if ours is None or each.get("name") != ours)


def _limits(pod: Draft, skip: Collection[str]) -> Iterator[str]:
    for each in pod.spec.places(ephemeral=True, skip=skip):
        for name, quantity in sorted(each.container.limits.items()):
            vendors_own = name.partition("/")[0] in {vendor.domain for vendor in vendors.VENDORS}
            others = vendors_own and vendors.vendor_of(name) is None and name not in DIALECTS
            if (others or name.startswith(CLASS)) and str(quantity) != "0":
                yield f"{_named(each)}: the limit {quoted(name)}"


def _device_annotations(keys: Iterable[str]) -> Iterator[str]:
    for key in sorted(keys):
        domain = key.partition("/")[0]
        if any(domain == name or domain.endswith(f".{name}") for name in ANNOTATIONS):
            yield f"metadata.annotations[{quoted(key)}]"


def _path(written: str | None) -> str:
    """As the node resolves it; /var/run is a link to /run."""
    path = normpath("/" + (written or "").lstrip("/"))
    return path.removeprefix("/var") if _within(path, "/var/run") else path


def _opens_node(path: str) -> bool:
    if any(_within(path, harmless) for harmless in HARMLESS):
        return False
    closed = [*NODE_PATHS, *(path for vendor in vendors.VENDORS for path in vendor.node_paths)]
    return any(_within(path, other) or _within(other, path) for other in closed)


def _within(path: str, directory: str) -> bool:
    return directory in ("/", path) or path.startswith(f"{directory}/")


_PRIVILEGED: Final = "is privileged: it sees every device of its node, not only those handed over"
_POWERFUL: Final = "has SYS_ADMIN: it can get access to every device of its node"
_HOST_PID: Final = "shows the pod all processes of its node, and with them their devices"
_ANNOTATED: Final = "has the container runtime add devices or mounts"


@lru_cache(maxsize=2)
def ways(table: tuple[Vendor, ...]) -> tuple[Way, ...]:
    """All that can be seen in a pod, with this table of vendors."""
    lists = ((vendor, f"is a list of devices to {vendor.runtime}") for vendor in table if vendor.device_list)
    return (
        Way(_that(lambda container: container.privileged), _PRIVILEGED),
        Way(_that(lambda container: not container.capabilities.isdisjoint(POWERS)), _POWERFUL),
        Way(lambda pod, _: ["spec.hostPID"] if pod.spec.host_pid else [], _HOST_PID),
        *(Way(partial(_mounts, vendor), does) for vendor, does in lists),
        Way(lambda pod, _: _device_annotations(pod.metadata.annotations or {}), _ANNOTATED),
        Way(_host_paths, "gives the pod the node's devices, or a way to allocate them"),
        Way(_claims, "may allocate devices that deviceshare doesn't count"),
        Way(_limits, "allocates devices that deviceshare doesn't count"),
    )
