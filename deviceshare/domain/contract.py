"""The names that users, manifests and other programs rely on. Changing one breaks somebody's cluster."""

from typing import Final

API_GROUP: Final = "deviceshare.io"
API_VERSION: Final = "v1alpha1"
GROUP_KIND: Final = "SharedDeviceGroup"
NODE_DEVICES_KIND: Final = "NodeDevices"
DEVICE_QUOTA_KIND: Final = "DeviceQuota"

SCHEDULER_NAME: Final = "deviceshare-scheduler"
DEFAULT_SCHEDULER_NAME: Final = "default-scheduler"
NAMESPACE: Final = "deviceshare-system"
NAME: Final = "deviceshare"
"""Of the Service and of the webhook configurations, unless a flag names others."""
IDENTITY: Final = f"system:serviceaccount:{NAMESPACE}:deviceshare"
"""The user name under which deviceshare itself calls the API server, unless a flag names another."""

PREFIX: Final = f"{API_GROUP}/"
"""Every annotation under this prefix is deviceshare's own, but for `USERS`, which the user sets once, `REBIND` and
`RESIZE`."""

# On nodes.
MODE_LABEL: Final = f"{PREFIX}mode"
MODE_SHARED: Final = "shared"
INVENTORY_ANNOTATION: Final = f"{PREFIX}devices"
"""`nvidia.com/gpu=4`, or `nvidia.com/gpu=1-3`: what a node has for groups, by its owner (shared_resources.py)."""
SHARE_DEVICES: Final = f"{PREFIX}share-devices"
GROUP_DEVICES: Final = f"{PREFIX}group-devices"
"""In the format of `INVENTORY_ANNOTATION`: devices that serve shares only, or groups only. Others serve either."""
DEVICE_ANNOTATIONS: Final = (INVENTORY_ANNOTATION, SHARE_DEVICES, GROUP_DEVICES)
HANDOVER_LABEL: Final = f"{PREFIX}handover"
"""`auto`, `index`, `uuid` or `cdi`: how devices are named to the node's runtime; wins over the cluster's setting."""

# On pods: the user's.
GROUP: Final = f"{PREFIX}group"
"""The annotation with which a pod joins a group; the webhook mirrors it as a label of the same name."""

PLACEHOLDER: Final = f"{PREFIX}placeholder"
"""The label, with any value, of pods that reserve devices of the vendor's device plugin for groups."""

SCALING: Final = f"{PREFIX}scaling"
"""The label of pods that autoscalers are shown, and the annotation with the pods that they stand for (scaling.py)."""

STRATEGY: Final = f"{PREFIX}strategy"
"""`binpack` or `spread`: whether a share is taken where least is free, or where most is."""
ISOLATION: Final = f"{PREFIX}isolation"
"""`required` or `preferred`: whether the pod's shares go only where their limits are enforced (memory_limits.py)."""
BURST: Final = f"{PREFIX}gpu-mem-burst"
"""GiB of each device that a container may use beyond its share while nobody else wants them, where that is enforced."""
USERS: Final = frozenset({GROUP, STRATEGY, ISOLATION, BURST})
"""The annotations of pods that the user writes, once."""

# On groups: written by the leader.
PODS_FINALIZER: Final = f"{PREFIX}pods"
"""The finalizer that keeps a deleted group until its last pod has ended."""
CLAIMS_FINALIZER: Final = f"{PREFIX}claims"
"""On every NodeDevices: it goes when nothing is claimed there any more."""
FILLED: Final = f"{PREFIX}filled"
"""On a NodeDevices, its own UID once it has the claims of all who live on the node (claims.md, repair). One that was
lost and came from elsewhere, such as a backup, has another UID."""

# On pods: written by the Binding, in the same write that sets `spec.nodeName`.
SELECTED_DEVICES: Final = f"{PREFIX}selected-devices"
"""JSON, the same shape as a group's `status.selectedDevices`; what repair reads back when an object was lost."""
GROUP_UID: Final = f"{PREFIX}group-uid"
POD_UID: Final = f"{PREFIX}pod-uid"

SHARES: Final = f"{PREFIX}shares"
"""JSON, as a claim's `shares`: the parts of devices that the pod's containers have."""

PLACED_ON: Final = f"{PREFIX}placed-on"
"""The node for which a pod's scheduling gate was lifted, with the annotations above, in one patch (decision 16)."""
PLACEMENT_GATE: Final = f"{PREFIX}placement"
"""The scheduling gate of pods that deviceshare's leader places, in clusters without a kube-scheduler of our own."""

CLAIM: Final = f"{PREFIX}claim"
"""The ResourceClaim by which the pod gets its group's devices, written at its creation, together with GROUP_UID."""
POD_CLAIM: Final = "deviceshare"
"""That claim's name in `spec.resourceClaims`."""

WARNINGS: Final = f"{PREFIX}warnings"
"""What admission warned of, in lines, written by the webhook at the pod's creation. It gives nothing: anybody may."""

# On pods: written by the Job controller.
JOB_INDEX_FAILURES: Final = "batch.kubernetes.io/job-index-failure-count"
"""Of an indexed Job's pod: how many pods of its index failed before it."""

KEEPING: Final[dict[str, str]] = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}
"""With which autoscalers keep a pod's node, where a setting has bound pods keep theirs and the pod doesn't say."""

# On pods: written by the controller.
NOMINATED_NODE: Final = f"{PREFIX}nominated-node"
"""The node where room is made for a waiting pod, and kept from pods of lower priority (preemptor.py)."""
WOKEN_AT: Final = f"{PREFIX}woken-at"
BIND_FENCE: Final = f"{PREFIX}bind-fence"
"""The mark of a claim that is being collected: a Binding decided before the pod bore it fails (claims.md, collect)."""
ENDED: Final = f"{PREFIX}ended"
"""The pod's own UID: it failed, no kubelet says that its containers ended, and their grace period is over."""
FORMER_DEVICES: Final = f"{PREFIX}former-devices"
"""JSON, as a claim's `devices`: what the pod had before a rebind; its containers may use that until it ends."""

# On the webhook configurations, and on the policy for pods.
SHARED_NODE_LABELS: Final = f"{PREFIX}shared-node-labels"
"""The setting of that name, as commands read it: labels of other systems by which nodes are shared."""

# On groups, and on pods with shares.
REBIND: Final = f"{PREFIX}rebind"
"""Asks for other devices in place of unhealthy ones; the value, new each time, names the request."""

RESIZE: Final = f"{PREFIX}resize"
"""On pods with shares: `main=12288Mi` or `main=50%`, several with commas: how large containers' parts are to be."""

ON_PODS: Final = USERS | {
    *(SELECTED_DEVICES, GROUP_UID, POD_UID, SHARES, PLACED_ON, CLAIM, WARNINGS),
    *(WOKEN_AT, NOMINATED_NODE, BIND_FENCE, ENDED, FORMER_DEVICES, REBIND, RESIZE),
}
"""The annotations of pods, but for those of vendors and of containers (shares.is_annotation)."""

# On NodeDevices.
RECOVERED: Final = f"{PREFIX}recovered"
"""`GPU-…@2026-11-21T03:00:00Z`, several with commas: these devices, found unhealthy at these times, have recovered."""

# On ResourceClaims of our own, by which kube-scheduler gives a device to nobody else (holds.py), and on their pods.
HOLD: Final = f"{PREFIX}hold"
"""The label of both, and the annotation with the claim's node and its devices' UUIDs."""
HOLD_FINALIZER: Final = f"{PREFIX}hold"
"""Whoever may delete ResourceClaims can't end a hold."""
GIVEN_UP: Final = f"{PREFIX}given-up"
"""The annotation of a hold that is about to be cleared: by it nobody joins."""
HOLD_CLASS: Final = "deviceshare-hold"
"""The DeviceClass of all of them, which leaves no device out."""

AGENT: Final = "deviceshare-agent"
"""The node agents' name: of their ServiceAccount and DaemonSet, and as field manager."""
AGENT_IDENTITY: Final = f"system:serviceaccount:{NAMESPACE}:{AGENT}"
AGENT_PORT: Final = 9410
"""Where an agent serves its probes, metrics and `/usage`."""
PODS_PORT: Final = 9412
"""Where an agent answers the containers of its node's pods."""
AGENT_VARIABLE: Final = "DEVICESHARE_AGENT"
"""In containers of a group's pods: the URL of their node's agent."""
AGENT_HOST_VARIABLE: Final = "DEVICESHARE_AGENT_HOST"
"""Beside it, the node's address, of which the URL is made."""
