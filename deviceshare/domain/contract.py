"""The names that users, manifests and other programs rely on. Changing one breaks somebody's cluster."""

import re
from typing import Final

API_GROUP: Final = "deviceshare.io"
API_VERSION: Final = "v1alpha1"
GROUP_KIND: Final = "SharedDeviceGroup"
NODE_DEVICES_KIND: Final = "NodeDevices"

SCHEDULER_NAME: Final = "deviceshare-scheduler"
DEFAULT_SCHEDULER_NAME: Final = "default-scheduler"
NAMESPACE: Final = "deviceshare-system"
NAME: Final = "deviceshare"
"""Of the Service and of the webhook configurations, unless a flag names others."""
IDENTITY: Final = f"system:serviceaccount:{NAMESPACE}:deviceshare"
"""The user name under which deviceshare itself speaks to the API server, unless a flag names another."""

PREFIX: Final = f"{API_GROUP}/"
"""Every annotation under this prefix is deviceshare's own, but for `GROUP`, which the user sets once."""

# On nodes.
MODE_LABEL: Final = f"{PREFIX}mode"
MODE_SHARED: Final = "shared"
INVENTORY_ANNOTATION: Final = f"{PREFIX}devices"
"""`nvidia.com/gpu=4`, or `nvidia.com/gpu=1-3`: what a node has for groups, by its owner (annotated_devices.py)."""
HANDOVER_LABEL: Final = f"{PREFIX}handover"
"""`auto`, `index`, `uuid` or `cdi`: how the node's runtime is told devices; wins over the cluster's setting."""

# On pods: the user's.
GROUP: Final = f"{PREFIX}group"
"""The annotation with which a pod joins a group; the webhook mirrors it as a label of the same name."""

PLACEHOLDER: Final = f"{PREFIX}placeholder"
"""The label, with any value, of pods that keep devices from the vendor's device plugin, so that groups get them."""

# On pods: written by the Binding, in the same write that sets `spec.nodeName`.
SELECTED_DEVICES: Final = f"{PREFIX}selected-devices"
"""JSON, the same shape as a group's `status.selectedDevices`; what repair reads back when an object was lost."""
GROUP_UID: Final = f"{PREFIX}group-uid"
POD_UID: Final = f"{PREFIX}pod-uid"

# On pods: written by the controller.
WOKEN_AT: Final = f"{PREFIX}woken-at"
BIND_FENCE: Final = f"{PREFIX}bind-fence"
"""The mark of a claim that is being collected: a Binding decided before the pod bore it fails (claims.md, collect)."""
ENDED: Final = f"{PREFIX}ended"
"""The pod's own UID: it failed, no kubelet says that its containers ended, and their grace period is over."""
FORMER_DEVICES: Final = f"{PREFIX}former-devices"
"""JSON, as a claim's `devices`: what the pod was given before a rebind; its containers may hold that until it ends."""

# On groups.
REBIND: Final = f"{PREFIX}rebind"
"""Asks for other devices in place of unhealthy ones; the value, new each time, names the request."""

# On NodeDevices.
RECOVERED: Final = f"{PREFIX}recovered"
"""`GPU-…@2026-11-21T03:00:00Z`, several with commas: these devices, found unhealthy at these times, are well again."""

AGENT: Final = "deviceshare-agent"
"""The node agents' name: of their ServiceAccount and DaemonSet, and as field manager."""
AGENT_IDENTITY: Final = f"system:serviceaccount:{NAMESPACE}:{AGENT}"
AGENT_PORT: Final = 9410
"""Where an agent serves its probes, metrics and `/usage`."""


class Vendor:
    """How one vendor's runtime learns which devices a container may see.

    `env` is the variable that the runtime reads; `annotation` is the pod annotation it refers to through the downward
    API (https://kubernetes.io/docs/concepts/workloads/pods/downward-api/). `kinds` are the CDI kinds whose device names
    its runtime takes, the preferred first, `numbered_kinds` those that name devices by number, too. `cdi_annotation` is
    the pod annotation that its NRI plugin reads, or "".
    """

    __slots__ = ("annotation", "cdi_annotation", "env", "kinds", "name", "numbered_kinds")

    def __init__(
        self,
        name: str,
        env: str,
        *,
        kinds: tuple[str, ...] = (),
        numbered_kinds: tuple[str, ...] = (),
        cdi_annotation: str = "",
    ) -> None:
        self.name = name
        self.env = env
        self.annotation = f"{PREFIX}{name}-visible-devices"
        self.kinds = kinds
        self.numbered_kinds = numbered_kinds
        self.cdi_annotation = cdi_annotation

    def __repr__(self) -> str:
        return f"Vendor({self.name})"


CDI_ANNOTATION: Final = "nvidia.cdi.k8s.io"
"""The pod annotation that NVIDIA's NRI plugin reads; also with `/pod` or `/container.NAME` behind it, of which the
latter wins."""


def is_cdi_annotation(key: str) -> bool:
    """Whether a runtime's plugin takes devices from the pod annotation with this name."""
    return key == CDI_ANNOTATION or key.startswith(f"{CDI_ANNOTATION}/")


def is_ours_alone(key: str) -> bool:
    """Whether only deviceshare may write the annotation with this name on a pod of a group."""
    return (key.startswith(PREFIX) and key != GROUP) or is_cdi_annotation(key)


NVIDIA: Final = Vendor(
    "nvidia",
    "NVIDIA_VISIBLE_DEVICES",
    kinds=("k8s.device-plugin.nvidia.com/gpu", "nvidia.com/gpu"),
    numbered_kinds=("nvidia.com/gpu",),
    cdi_annotation=f"{CDI_ANNOTATION}/pod",
)
AMD: Final = Vendor("amd", "AMD_VISIBLE_DEVICES")
"""Without kinds: the variable takes numbers, ranges and hexadecimal unique IDs. `amd-ctk cdi generate` names devices
`amd.com/gpu=0`, for `--device` of Docker and Podman; nothing takes such names from a pod (ROCm/container-toolkit,
`internal/gpu-tracker`; https://instinct.docs.amd.com/projects/container-toolkit/en/latest/)."""
ASCEND: Final = Vendor("ascend", "ASCEND_VISIBLE_DEVICES")
"""Without kinds: the variable takes numbers, ranges and names as in `Ascend910-0`. CDI specifications
(`ascend.com/npu`) are made by Huawei's DRA driver alone, for each claim
(Ascend/mind-cluster, `component/ascend-docker-runtime`)."""
VENDORS: Final = (NVIDIA, AMD, ASCEND)

ASCEND_RESOURCE_PREFIX: Final = "huawei.com/Ascend"
_ASCEND: Final = re.compile(r"huawei\.com/(?=.{1,63}\Z)Ascend(?:[-A-Za-z0-9_.]*[A-Za-z0-9])?")
"""A qualified name: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set"""
KNOWN_RESOURCES_TEXT: Final = "nvidia.com/gpu, amd.com/gpu, huawei.com/Ascend…"


def vendor_of(resource: str) -> Vendor | None:
    """The vendor of a device resource, or None when deviceshare does not know the resource."""
    if resource == "nvidia.com/gpu":
        return NVIDIA
    if resource == "amd.com/gpu":
        return AMD
    if resource.startswith(ASCEND_RESOURCE_PREFIX) and _ASCEND.fullmatch(resource):
        return ASCEND
    return None


NVIDIA_SHARED: Final = "nvidia.com/gpu.shared"
"""What NVIDIA's device plugin calls `nvidia.com/gpu` where several pods take turns on one, and it is told to rename."""
MIG_PREFIX: Final = "nvidia.com/mig-"
_PLUGIN_PREFIXES: Final = (
    ("nvidia.com/gpu", NVIDIA),
    ("nvidia.com/vgpu", NVIDIA),
    (MIG_PREFIX, NVIDIA),
    ("huawei.com/npu", ASCEND),
    *((f"amd.com/{mode}_nps", AMD) for mode in ("spx", "dpx", "tpx", "qpx", "cpx")),
)


def plugin_vendor_of(resource: str) -> Vendor | None:
    """The vendor of whose devices a device plugin gives whole ones, turns or parts under this name.

    More names than groups may ask for: whatever a pod has of a device, nobody else can be given the device.
    """
    return vendor_of(resource) or next(
        (vendor for start, vendor in _PLUGIN_PREFIXES if resource.startswith(start)), None
    )


def counted_as(resource: str) -> str:
    """The resource under which devices are counted of which a plugin gives turns as `resource`."""
    return "nvidia.com/gpu" if resource == NVIDIA_SHARED else resource
