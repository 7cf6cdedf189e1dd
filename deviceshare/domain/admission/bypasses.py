"""Ways around the hand-over: fields of a pod that may give it other devices than its group's, or its share's.

Devices are handed over by a variable. Whatever else gives a container devices, or access to them,
isn't counted by deviceshare. `bypasses` lists what can be seen in a pod; docs/security.md lists the rest, too.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from posixpath import normpath
from typing import Final

from deviceshare.domain import contract, vendors
from deviceshare.domain.admission.drafts import Draft, DraftContainer
from deviceshare.domain.objects.shares import DIALECTS
from deviceshare.domain.vendors import Vendor
from deviceshare.domain.wording import quoted

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


_PRIVILEGED: Final = "is privileged: it sees every device of its node, not only those handed over"
_POWERFUL: Final = "has SYS_ADMIN: it can get access to every device of its node"
_HOST_PID: Final = "shows the pod all processes of its node, and with them their devices"
_ANNOTATED: Final = "has the container runtime add devices or mounts"
_HOST_PATH: Final = "gives the pod the node's devices, or a way to allocate them"
_CLAIM: Final = "may allocate devices that deviceshare doesn't count"
_LIMIT: Final = "allocates devices that deviceshare doesn't count"


def _listing(vendor: Vendor) -> str:
    return f"is a list of devices to {vendor.runtime}"


def effects() -> list[str]:
    """What each way around does, as the end of a sentence about its places; in the order in which they are told."""
    lists = (_listing(vendor) for vendor in vendors.VENDORS if vendor.device_list)
    return [_PRIVILEGED, _POWERFUL, _HOST_PID, *lists, _ANNOTATED, _HOST_PATH, _CLAIM, _LIMIT]


def bypasses(pod: Draft, skip: Collection[str] = ()) -> list[str]:
    """The ways around in a pod, a sentence for each; containers named in `skip` can't be changed any more."""
    found = defaultdict[str, list[str]](list)
    for place, effect in _ways(pod, skip):
        found[effect].append(place)
    return [_sentence(found[effect], effect) for effect in effects() if effect in found]


def new_bypasses(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """The ways around that a change of a pod's annotations adds."""
    found = list(_device_annotations(key for key in new if new[key] != old.get(key)))
    return [_sentence(found, _ANNOTATED)] if found else []


def refusal_or_warnings(found: list[str], mode: str) -> tuple[str, list[str]]:
    """The refusal, or the warnings, for the ways `found`."""
    if not found:
        return "", []
    if len(found) > LISTED:
        found = [*found[: LISTED - 1], f"and {len(found) - LISTED + 1} more ways around"]
    if mode == WARN:
        return "", found
    cure = "leave it out: deviceshare refuses ways around the hand-over of devices here (--bypasses=refuse)"
    return f"{'; '.join(found)}; {cure}", []


def _sentence(places: list[str], does: str) -> str:
    return f"{places[0]}{f' (and {len(places) - 1} more)' if len(places) > 1 else ''} {does}"


def _ways(pod: Draft, skip: Collection[str]) -> Iterator[tuple[str, str]]:
    """Each place of the pod, and its effect."""
    spec, annotations = pod.spec, pod.metadata.annotations or {}
    for each in spec.places(ephemeral=True, skip=skip):
        for what, effect in _of_container(each.container):
            yield f"{each} {quoted(each.container.name, _LONGEST_NAME)}{what}", effect
    if spec.host_pid:
        yield "spec.hostPID", _HOST_PID
    for place in _device_annotations(annotations):
        yield place, _ANNOTATED
    for position, volume in enumerate(spec.volumes or ()):
        if volume.host_path and _opens_node(_path(volume.host_path.path)):
            yield f"spec.volumes[{position}]: {quoted(volume.host_path.path or '')} of the node", _HOST_PATH
    ours = contract.POD_CLAIM if contract.CLAIM in annotations else None
    for position, claim in enumerate(spec.resource_claims or ()):
        if ours is None or claim.get("name") != ours:
            yield f"spec.resourceClaims[{position}]", _CLAIM


def _of_container(container: DraftContainer) -> Iterator[tuple[str, str]]:
    if container.privileged:
        yield "", _PRIVILEGED
    if not container.capabilities.isdisjoint(POWERS):
        yield "", _POWERFUL
    for mount in container.volume_mounts or ():
        for vendor in vendors.VENDORS:
            if vendor.device_list and _within(_path(mount.mount_path), vendor.device_list):
                yield f": the mount {quoted(mount.mount_path or '')}", _listing(vendor)
    for name, quantity in sorted(container.limits.items()):
        vendors_own = name.partition("/")[0] in {vendor.domain for vendor in vendors.VENDORS}
        others = vendors_own and vendors.vendor_of(name) is None and name not in DIALECTS
        if (others or name.startswith(CLASS)) and str(quantity) != "0":
            yield f": the limit {quoted(name)}", _LIMIT


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
