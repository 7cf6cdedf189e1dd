"""Handover: how devices are given to containers on a node, whole or as shares, and what each is told."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from deviceshare.domain import contract, vendors
from deviceshare.domain.objects import shares
from deviceshare.domain.objects.devices import Device, Devices, as_json, selected, visible
from deviceshare.domain.objects.hardware import BY_AGENT, HOOK, INTERCEPT, Hardware, Publication, Withheld
from deviceshare.domain.objects.ledger import Claim, NodeDevices
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.objects.share_wishes import burst_mib
from deviceshare.domain.objects.shares import MIB_PER_GIB, WHOLE, Share, current, devices_of_container
from deviceshare.domain.placement.inventory import Offer
from deviceshare.domain.placement.rooms import capacity, units
from deviceshare.domain.vendors import Vendor
from deviceshare.domain.wording import listed

# The hand-over: the words that name a container's devices to its node's container runtime.

AUTO: Final = "auto"
INDEX: Final = "index"
UUID: Final = "uuid"
CDI: Final = "cdi"
STYLES: Final = (AUTO, INDEX, UUID, CDI)
NONE: Final = "none"


class HandoverSetting(Struct, frozen=True):
    """What the cluster's administrator says of all nodes; a node's label wins over `style`."""

    style: str = AUTO
    kind: str = ""
    """The CDI kind to use; empty means the first of the vendor's kinds that the node can resolve."""
    runtime_class: str = ""
    """The RuntimeClass that pods of groups get, unless they name one; "" where none is needed, or none exists."""


DEFAULT: Final = HandoverSetting()


class Handover(NamedTuple):
    """How one node's devices of one vendor are handed over, or why they can't be."""

    words: str
    """`index`, `uuid`, the CDI kind that qualifies each device's name, or `none`; "" where nothing is known of the
    node, and then it is UUIDs as soon as an agent reports them, and numbers until then."""
    obstacle: str = ""
    """Why no device of the vendor can be handed over on the node, with the cure: where it is `none`."""


def apply(
    offer: Offer, labels: Mapping[str, str], hardware: Hardware, setting: HandoverSetting
) -> tuple[Offer, dict[str, str]]:
    """What remains of a node's offer once what can't be handed over is withheld; and the words for each vendor."""
    offered = vendors.vendors_of(device.resource for device in offer.devices)
    decided = {vendor.name: decide(vendor, labels, hardware, setting) for vendor in offered}
    words = {name: each.words for name, each in decided.items() if each.words}
    silent = mute(offer.devices, words)
    withheld = [
        Withheld(resource, decided[vendor.name].obstacle, devices=[d for d in silent if d.resource == resource])
        for resource in sorted({device.resource for device in silent})
        if (vendor := vendors.vendor_of(resource))
    ]
    devices = tuple(device for device in offer.devices if device not in silent)
    return offer._replace(devices=devices, withheld=(*offer.withheld, *withheld)), words


def mute(devices: Iterable[Device], handover: Mapping[str, str]) -> Devices:
    """The devices that can't be handed over at all."""
    return tuple(device for device in devices if _words(device, handover) == NONE)


def as_claimed(devices: Iterable[Device], handover: Mapping[str, str]) -> Devices:
    """The devices as a claim names them: by number alone where pods' annotations do.

    The claim follows the annotations, since these are what containers open after a reboot, too.
    """
    return tuple(
        replace(device, uuid="") if _words(device, handover) == INDEX else device for device in sorted(devices)
    )


def annotations_of(devices: Iterable[Device], handover: Mapping[str, str]) -> dict[str, str]:
    """The annotations of a pod with these devices: what each vendor's runtime reads, and the numbers for people.

    `handover` is that of the node's ledger (`devices.visible`).
    """
    chosen = tuple(devices)
    return {**visible(chosen, handover), contract.SELECTED_DEVICES: msgspec.json.encode(selected(chosen)).decode()}


def handover_fault(ledger: NodeDevices, claim: Claim) -> Reason | None:
    """Why the claim's devices can't be handed over to any further pod."""
    devices, handover = claim.devices, ledger.status.handover
    if silent := mute(devices, handover):
        here = ledger.present(silent[0])
        why = next((w for w in ledger.status.withheld if here in map(ledger.present, w.devices)), None)
        text = why.reason if why else f"{silent[0]} can't be handed over to containers"
        return Reason(ReasonKind.NOT_HANDED_OVER, text, why.cure if why else "")
    for device in devices:
        words = _words(device, handover)
        if not device.uuid and is_kind(words) and not any(words in each.numbered_kinds for each in vendors.VENDORS):
            text = f"{device} was claimed before its UUID was known, and the node's runtime takes UUIDs only"
            cure = f"delete the group's pods and the group (kubectl delete sdg {claim.holder_name}), and recreate both"
            cure = "delete and recreate the pod" if claim.pod else cure
            return Reason(ReasonKind.NOT_HANDED_OVER, text, cure)
    return None


def is_kind(words: str) -> bool:
    """Whether these are the words of a hand-over by CDI."""
    return "/" in words


def _words(device: Device, handover: Mapping[str, str]) -> str:
    vendor = vendors.vendor_of(device.resource)
    return handover.get(vendor.name, "") if vendor else ""


def decide(vendor: Vendor, labels: Mapping[str, str], hardware: Hardware, setting: HandoverSetting) -> Handover:
    """How the vendor's devices on a node with these labels and this report of its agent are handed over."""
    style = labels.get(contract.HANDOVER_LABEL) or setting.style
    if style not in STYLES:
        return Handover(NONE, f"the node's label {contract.HANDOVER_LABEL}={style} is none of {listed(STYLES)}")
    if contract.HANDOVER_LABEL not in labels and vendor is vendors.NVIDIA and (obstacle := _managed(labels)):
        return Handover(NONE, obstacle)
    uuids = [part.uuid for part in hardware.devices if vendors.vendor_of(part.resource) is vendor and not part.lost]
    named = bool(uuids) and all(uuids)
    if not vendor.kinds:
        if labels.get(contract.HANDOVER_LABEL) == CDI:
            return Handover(NONE, f"{vendor.env} takes no CDI names, and {_LABELLED_CDI}")
        # Whatever the cluster's setting says of others: its runtime knows the variable only, AMD's before 1.2 no UUIDs.
        style = INDEX if named and labels.get(contract.HANDOVER_LABEL) == INDEX else AUTO
    elif style == AUTO and hardware.runtime == CDI:
        style = CDI
    if style == AUTO:
        return Handover(UUID if named else "")
    if style == INDEX and hardware.published and named:
        return Handover(NONE, f"{_OTHER_NUMBERS}: use uuid, or run deviceshare's agent: {_AGENT}")
    if style == UUID and not named:
        return Handover(NONE, f"hand-over by uuid needs UUIDs, which the node's agent reports: {_AGENT}")
    return _by_cdi(vendor, hardware, setting.kind, named=named) if style == CDI else Handover(style)


def _managed(labels: Mapping[str, str]) -> str:
    """Why a managed node gives containers no device by the variable, with the cure, or "" (docs/handover.md).

    A label of ours on the node overrules it: somebody knows better.
    """
    if _GKE in labels and labels.get(_GKE_LEFT) != "true":
        return (
            "GKE's own device plugin brings GPUs, and nothing on such a node reads NVIDIA_VISIBLE_DEVICES: use a node"
            f" pool with the label {_GKE_LEFT}=true and NVIDIA's GPU operator; where its toolkit runs already, {_KNOWN}"
        )
    if labels.get(_EKS) == "auto":
        return (
            "nodes of EKS Auto Mode ignore NVIDIA_VISIBLE_DEVICES of unprivileged containers, which can't be set there:"
            f" use a managed node group; where a DRA driver serves the GPUs, spec.handover: claim and {_KNOWN}"
        )
    return ""


_GKE: Final = "cloud.google.com/gke-accelerator"
_GKE_LEFT: Final = "gke-no-default-nvidia-gpu-device-plugin"
"""With this label GKE leaves the node's GPUs to others: docs.cloud.google.com/kubernetes-engine, "GPU operator"."""
_EKS: Final = "eks.amazonaws.com/compute-type"
_KNOWN: Final = f"kubectl label node NODE {contract.HANDOVER_LABEL}=uuid"


def _by_cdi(vendor: Vendor, hardware: Hardware, wanted: str, *, named: bool) -> Handover:
    kind = wanted or vendor.kinds[0]
    if not named:
        # Without UUIDs only a kind that also names devices by their numbers will do.
        if kind in vendor.numbered_kinds:
            return Handover(kind)
        return Handover(NONE, f"hand-over by CDI needs UUIDs, which the node's agent reports: {_AGENT}")
    if hardware.cdi_kinds is None:
        return Handover(kind)  # the agent doesn't see the specifications: the setting is all that is known
    usable = [each for each in ([wanted] if wanted else vendor.kinds) if each in hardware.cdi_kinds]
    if usable:
        return Handover(usable[0])
    why = (
        f"no CDI specification on the node names all its devices by UUID as {wanted or listed(vendor.kinds, link='or')}"
    )
    cure = f"have the device plugin write one (CDI enabled, its device ID strategy uuid), or run {vendor.cdi_tool}"
    return Handover(NONE, f"{why}: {cure}")


_LABELLED_CDI: Final = (
    f"the node's label {contract.HANDOVER_LABEL}=cdi asks for them: kubectl label node NODE {contract.HANDOVER_LABEL}-"
)
_OTHER_NUMBERS: Final = "hand-over by index needs the runtime's numbers, and ResourceSlices have others"
_AGENT: Final = "install the chart with agent.enabled=true"


# The hand-over of shares: the annotations by which each container of a pod gets its own devices and their limits.
# The names of devices follow the node's hand-over, as those of groups do. gpushare's own annotations are written
# beside them for tools that read those (AliyunContainerService/gpushare-device-plugin, `cmd/inspect`).

_LONGEST_FOR_NRI: Final = 53
"""Characters of a container's name behind `nvidia.cdi.k8s.io/container.`, of the 63 that a name may have."""
_RESERVE_MIB: Final = 640
"""What a process takes of a device beside its framework's memory pool: the CUDA context, and libraries. With PyTorch
610 MiB on an H100 (docs/reliability.md)."""
_RESERVE_LIMITED_MIB: Final = 832
"""The same where the driver limits memory: of 30,000 MiB 29,184 could be had (NVIDIA's MPS documentation, r615)."""


def share_annotations(pod: Pod, ledger: NodeDevices, parts: Sequence[Share]) -> dict[str, str]:
    """What a Binding writes for a claim's shares of the pod's containers; former ones are on record only."""
    parts = shares.in_full(parts, pod.share)
    written = {contract.SHARES: msgspec.json.encode(as_json(parts)).decode()}
    parts = current(parts)
    for container in sorted({share.container for share in parts}):
        mine = [share for share in parts if share.container == container]
        names = visible({share.device for share in mine}, ledger.status.handover)
        written |= {_of_container(name, container): text for name, text in names.items()}
        written |= _limits(container, mine, ledger, burst_mib(pod.metadata.annotations))
    return written | (_of_gpushare(pod, ledger, parts) if shares.ALIYUN_GPU_MEM in pod.share.resources else {})


def container_annotations(containers: Iterable[str]) -> set[str]:
    """The names of all annotations that a Binding may write for the devices and limits of these containers."""
    names = set[str]()
    for container in containers:
        names |= {shares.container_annotation(kind, container) for kind in shares.LIMITS}
        names |= {_of_container(name, container) for name in device_annotations()}
    return names


def too_long_for_cdi(ledger: NodeDevices, parts: Iterable[Share]) -> str:
    """The container that can't be given devices by NVIDIA's NRI plugin since its name is too long, or ""."""
    for share in parts:
        vendor = vendors.vendor_of(share.resource)
        by_cdi = vendor is not None and vendor.cdi_annotation and "/" in ledger.status.handover.get(vendor.name, "")
        if by_cdi and len(share.container) > _LONGEST_FOR_NRI:
            return share.container
    return ""


def device_annotations() -> list[str]:
    """The annotations that name a pod's devices to each vendor's runtime."""
    return [name for vendor in vendors.VENDORS for name in (vendor.annotation, vendor.cdi_annotation) if name]


def _of_container(name: str, container: str) -> str:
    """The annotation for one container in the place of this one for the pod."""
    vendor = next((vendor for vendor in vendors.VENDORS if vendor.annotation == name), None)
    return devices_of_container(vendor, container) if vendor else f"{name.partition('/')[0]}/container.{container}"


def _limits(container: str, parts: Sequence[Share], ledger: NodeDevices, burst: int) -> dict[str, str]:
    present = [ledger.present(share.device) for share in parts]
    sized = [(share, ledger.memory_of(device)) for share, device in zip(parts, present, strict=True)]
    values = {shares.DEVICE_INDEX: ",".join(str(device.index) for device in present)}
    hardware = ledger.status.hardware
    if all(size for _, size in sized):
        values[shares.DEVICE_GIB] = str(min(size for _, size in sized) // MIB_PER_GIB)
    limits = [share.memory_mib or share.percent * size // WHOLE for share, size in sized]
    if all(limits):
        values[shares.MEMORY_LIMIT] = str(sum(limits))
    if all(limits) and hardware.memory_limits == HOOK:
        # The hook takes one limit for all of a container's devices, and may refuse empty variables: where parts differ
        # it gets the largest, and the agent sets each device's own.
        hard = [max(limit, min(burst, size or limit)) for limit, (_, size) in zip(limits, sized, strict=True)]
        values |= {shares.HARD_LIMIT: str(max(hard)), shares.SOFT_LIMIT: str(min(limits))}
    if all(limits) and hardware.memory_limits == INTERCEPT:
        values[shares.INTERCEPTED] = f"{min(limits)}m"
    if all(share.percent or size for share, size in sized):
        # Otherwise nobody knows which part of the device the memory is: the agent has stopped reporting since.
        fractions = [(Fraction(units(share, size) or 0, capacity(size)), size) for share, size in sized]
        # By DMEM a program is shown the whole device.
        values |= _fractions(fractions, limited=hardware.memory_limits in (HOOK, BY_AGENT, INTERCEPT))
    return {shares.container_annotation(kind, container): value for kind, value in values.items()}


def _fractions(parts: Sequence[tuple[Fraction, int]], *, limited: bool) -> dict[str, str]:
    """Of each device the container's part, and the device's memory in MiB; `limited` as in `_heap`."""
    values = {
        shares.PERCENT: str(sum(int(WHOLE * part) for part, _ in parts)),
        shares.MEMORY_FRACTION: _rounded_down(min(part for part, _ in parts)),
    }
    if min(part for part, _ in parts) < 1:  # who has whole devices is left to the frameworks' own defaults
        heap = min(_heap(part, size, limited=limited and part < 1) for part, size in parts)
        values[shares.HEAP_FRACTION] = _rounded_down(heap)
        values[shares.PYTORCH] = f"per_process_memory_fraction:{_rounded_down(heap)}"
    return values


def _heap(part: Fraction, size: int, *, limited: bool) -> Fraction:
    """What of the part is left to a framework's pool: half of a small one in any case.

    As a fraction of the memory that the framework sees: the device's, or where the driver limits memory, its part.
    """
    if limited and size:
        return max(1 - Fraction(_RESERVE_LIMITED_MIB) / (part * size), Fraction(1, 2))
    return max(part - Fraction(_RESERVE_MIB, size), part / 2) if size else part * Fraction(9, 10)


def _rounded_down(part: Fraction) -> str:
    """So that it is never more than the share, unless that is next to nothing."""
    steps = max(int(part * 10_000), 1)
    return f"{steps // 10_000}.{steps % 10_000:04}"


def _of_gpushare(pod: Pod, ledger: NodeDevices, parts: Sequence[Share]) -> dict[str, str]:
    positions = {container.name: str(number) for number, container in enumerate(pod.spec.containers)}
    allocation: dict[str, dict[str, int]] = {}
    for share in parts:
        if share.container in positions:
            index = str(ledger.present(share.device).index)
            allocation.setdefault(positions[share.container], {})[index] = share.memory_mib // MIB_PER_GIB
    first = ledger.present(parts[0].device)
    main = [share for share in parts if share.container in positions]
    return {
        "ALIYUN_COM_GPU_MEM_IDX": str(first.index),
        "ALIYUN_COM_GPU_MEM_DEV": str(ledger.memory_of(first) // MIB_PER_GIB),
        "ALIYUN_COM_GPU_MEM_POD": str(sum(share.memory_mib for share in main) // MIB_PER_GIB),
        # From the start, so that a device plugin of gpushare that still runs never takes the pod for one of its own.
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        "scheduler.framework.gpushare.allocation": msgspec.json.encode(allocation).decode(),
    }


# Steady numbers: a claim goes on meaning its devices when another source begins or ceases to number the node's.
# ResourceSlices number devices as the kernel does, a device plugin and an agent as the driver's library does. A UUID
# is the same in all of them. So nobody new gets devices while a claim names some by a number of the one kind and only
# the other kind is known; and what a claim names by UUID stays known while it is held, published or not.
# Numbers and UUIDs don't mix: after a reboot a number may mean the device that another claim names by its UUID. While
# one claim of a node names devices in the one way, nobody new gets any that would be named in the other (`doubts`).

_SHOWN: Final = 3
_GONE: Final = "its ResourceSlices are gone, and what else is known of the node numbers devices otherwise"
_BRING_BACK: Final = "bring its DRA driver back, or recreate what holds devices there"


def doubts(ledger: NodeDevices) -> Mapping[str, Withheld]:
    """By resource, why any of its devices may be one that a claim names otherwise than a new claim would."""
    names = {(each.resource, bool(each.uuid)) for claim in ledger.claims.values() for each in claim.names}
    named, found = {(vendors.vendor_of(resource), has_uuid) for resource, has_uuid in names}, {}
    for resource in sorted({device.resource for device in ledger.devices}) if named else ():
        vendor, mine = vendors.vendor_of(resource), [d for d in ledger.devices if d.resource == resource]
        for has_uuid in {bool(device.uuid) for device in as_claimed(mine, ledger.status.handover)}:
            if (vendor, not has_uuid) in named:
                who, seen = _holders(ledger, vendor, have_uuids=not has_uuid), any(device.uuid for device in mine)
                found[resource] = _doubt(resource, who, have_uuids=not has_uuid, seen=seen)
    return found


def _holders(ledger: NodeDevices, vendor: Vendor | None, *, have_uuids: bool) -> str:
    """Whose claims name devices of the vendor by UUID, or else by number, in a few words; "" for nobody's."""
    names = {
        claim.holder_name
        for claim in ledger.claims.values()
        for each in claim.names
        if bool(each.uuid) is have_uuids and vendors.vendor_of(each.resource) is vendor
    }
    return listed(sorted(names), most=_SHOWN)


def by_uuid(ledger: NodeDevices, except_of: Collection[str]) -> dict[str, Claim]:
    """The claims by number as they are to be, by UUID, once the agent reports in the boot that the node is in.

    Each container that runs was started in this boot, and opened what its number means in it. The numbers stay reserved
    as former devices until no pod is told them any more (loops/protocol/rebind.py): a reboot may come before that.

    All numbers of a vendor or none: in the next boot those that stay numbers would mean others' cards. And none where a
    number now means what another claim names by UUID, as one does that was restored from a boot nobody remembers.
    `except_of`: UIDs of holders whose pods can't be told.
    """
    numbered = {uid: [each for each in claim.devices if not each.uuid] for uid, claim in ledger.claims.items()}
    whole = {each.uuid for claim in ledger.claims.values() if claim.group for each in claim.devices}
    parts = {each.uuid for claim in ledger.claims.values() if claim.pod and not claim.within for each in claim.devices}
    stays = set[Vendor | None]()
    for uid, devices in numbered.items():
        named, claim = {_named(ledger, device).uuid for device in devices}, ledger.claims[uid]
        others = set[str]() if claim.within else whole | parts if claim.group else whole
        if uid in except_of or named & (others | {""}):
            stays |= _vendors(devices)
    return {
        uid: _with_uuids(ledger, ledger.claims[uid])
        for uid, devices in numbered.items()
        if devices and not _vendors(devices) & stays
    }


def _vendors(devices: Iterable[Device]) -> set[Vendor | None]:
    return {vendors.vendor_of(device.resource) for device in devices}


def _with_uuids(ledger: NodeDevices, claim: Claim) -> Claim:
    before = [device if device.uuid else ledger.present(device) for device in claim.former]
    shares = [s if s.uuid else replace(s, uuid=ledger.present(s.device).uuid) for s in claim.shares]
    whole = [_named(ledger, device) for device in claim.whole]
    numbers = [device for device in claim.devices if not device.uuid]
    return replace(claim, whole=whole, shares=shares, former=[*before, *numbers])


def _named(ledger: NodeDevices, device: Device) -> Device:
    """The device as a new claim names it; without its UUID where containers are told names that can't be changed."""
    vendor = vendors.vendor_of(device.resource)
    if vendor is None or is_kind(ledger.status.handover.get(vendor.name, "")):
        return replace(device, uuid="")
    return as_claimed([ledger.present(device)], ledger.status.handover)[0]


def _doubt(resource: str, who: str, *, have_uuids: bool, seen: bool) -> Withheld:
    recreate = "recreate those"
    if not have_uuids:
        reason = f"claims of this node ({who}) name devices by number, and it is not known which have these now"
        return Withheld(resource, reason, f"if this stays after the node's agent has reported, {recreate}")
    if not seen:
        reason = f"claims of this node ({who}) name devices by UUID, and no agent has reported yet"
        return Withheld(resource, reason, f"run deviceshare's agent there (agent.enabled=true), or {recreate}")
    reason = f"claims of this node ({who}) name devices by UUID, and its hand-over by index names them by number"
    return Withheld(resource, reason, f"let the node hand over by UUID again, or {recreate}")


def steady(now: Publication, ledger: NodeDevices) -> Publication:
    """The publication as it may be written into the ledger, whose claims were made by the one before."""
    if ledger.status.hardware.devices:
        return replace(now, devices=[part for part in now.devices if not part.lost])
    numbered = {resource: _holders(ledger, vendors.vendor_of(resource), have_uuids=False) for resource in now.resources}
    if who := {resource: holders for resource, holders in sorted(numbered.items()) if holders}:
        reason = "hold devices by number, from before ResourceSlices named them, which number otherwise"
        cure = "recreate those, or run deviceshare's agent there (agent.enabled=true)"
        barred = [Withheld(resource, f"{holders} {reason}", cure) for resource, holders in who.items()]
        return Publication(now.driver, withheld=[*(each for each in now.withheld if not each.devices), *barred])
    known, troubled = {part.uuid for part in now.devices}, {each.resource for each in now.withheld if not each.devices}
    held = {device.uuid for claim in ledger.claims.values() for device in claim.names}
    missing = [part for part in ledger.status.published.devices if part.uuid in held - known]
    if not missing:
        return now
    kept = [part if part.resource in troubled else replace(part, lost=True) for part in missing]
    gone = [] if now.devices or troubled else sorted({part.resource for part in missing})
    return replace(
        now,
        devices=sorted([*now.devices, *kept], key=lambda part: (part.resource, part.index, part.lost, part.uuid)),
        withheld=[*now.withheld, *(Withheld(resource, _GONE, _BRING_BACK) for resource in gone)],
    )
