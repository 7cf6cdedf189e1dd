"""The patch with which the mutating webhook injects a pod that names a group.

A pod's environment is fixed at its admission, before its devices are known. So each container gets references to
annotations that the Binding will write (the downward API). The nodes where the pod may run aren't written into it: they
may change between its admission and its scheduling, when filter decides (decision 10).

Everything here is idempotent: API servers may call the webhook twice for one pod, and people copy pods from
`kubectl get -o yaml`.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from deviceshare.domain import contract, vendors
from deviceshare.domain.admission.agent_variables import with_agent
from deviceshare.domain.admission.drafts import Draft, DraftContainer, DraftSpec, Json, add
from deviceshare.domain.objects.groups import Group, name_fault
from deviceshare.domain.vendors import Vendor

CUDA_ORDER = "CUDA_DEVICE_ORDER"
"""CUDA numbers the fastest device 0, unless this variable is PCI_BUS_ID: then it counts by PCI bus, as NVML does."""


class Injection(NamedTuple):
    """A JSON patch (RFC 6902) that injects the pod, warnings for its author, or a refusal."""

    patch: Sequence[Json] = ()
    warnings: Sequence[str] = ()
    refusal: str = ""


def concerns(labels: Mapping[str, str] | None, annotations: Mapping[str, str] | None) -> bool:
    """Whether a pod with this metadata names a group; every other pod is left unchanged."""
    return contract.GROUP in (labels or {}) or contract.GROUP in (annotations or {})


def is_ours_alone(key: str) -> bool:
    """Whether only deviceshare may write the annotation with this name on a pod of a group."""
    return (key.startswith(contract.PREFIX) and key != contract.GROUP) or vendors.is_cdi_annotation(key)


def group_fault(labels: Mapping[str, str] | None, annotations: Mapping[str, str] | None) -> str:
    """What is wrong with the way a pod names its group, and what to do, or ""."""
    name, label = (annotations or {}).get(contract.GROUP), (labels or {}).get(contract.GROUP)
    if name is None:
        return (
            f"metadata.labels[{contract.GROUP}] is written by deviceshare only: "
            f"join the group with the annotation {contract.GROUP}: {label} and leave the label out"
        )
    if fault := name_fault(name):
        return f"metadata.annotations[{contract.GROUP}]: {fault}; `kubectl get sdg` lists the groups"
    if label not in (None, name):
        return (
            f"metadata.labels[{contract.GROUP}] says {label!r}, but the annotation of that name says {name!r}: "
            "leave the label out, deviceshare sets it"
        )
    return ""


def inject(
    pod: Draft, group: Group | None, *, group_known: bool = True, runtime_class: str = "", agent_url: str = ""
) -> Injection:
    """Injects a new pod; a pod that names no group is left unchanged.

    `group` is the group it names, None if it isn't found; `group_known` says whether that is certain enough for a
    warning. `runtime_class` is the one that pods of groups get (handover.HandoverSetting). `agent_url` is the template
    of the agents' URL (agent_variables.py).
    """
    labels, annotations = pod.metadata.labels or {}, pod.metadata.annotations or {}
    if not concerns(labels, annotations):
        return Injection()
    if refusal := group_fault(labels, annotations):
        return Injection(refusal=refusal)
    name = annotations[contract.GROUP]
    patch, warnings = _strip(annotations)
    if pod.metadata.labels is None:
        patch.append(add("/metadata/labels", {contract.GROUP: name}))
    elif contract.GROUP not in labels:
        patch.append(add(_pointer("labels", contract.GROUP), name))
    if pod.spec.scheduler_name in (None, "", contract.DEFAULT_SCHEDULER_NAME):
        patch.append(add("/spec/schedulerName", contract.SCHEDULER_NAME))
    _set_runtime_class(pod.spec, runtime_class, patch, warnings)
    for field, containers in pod.spec.lists():
        _inject_all(field, containers, patch, warnings, agent_url=agent_url)
    if group is None and group_known:
        warnings.append(f"SharedDeviceGroup {name!r} doesn't exist yet; the pod waits for it (kubectl get sdg)")
    return Injection(patch, warnings)


def inject_ephemeral(pod: Draft, existing: Collection[str], *, agent_url: str = "") -> Injection:
    """Injects new ephemeral containers of a group's pod; `existing` names those that can't be changed any more."""
    if contract.GROUP not in (pod.metadata.annotations or {}):
        return Injection()
    patch: list[Json] = []
    warnings: list[str] = []
    containers = pod.spec.ephemeral_containers
    _inject_all("ephemeralContainers", containers, patch, warnings, skip=existing, agent_url=agent_url)
    return Injection(patch, warnings)


def _strip(annotations: dict[str, str]) -> tuple[list[Json], list[str]]:
    """Removes what only deviceshare may write: such a pod was copied from one that had devices."""
    own = sorted(filter(is_ours_alone, annotations))
    patch = [{"op": "remove", "path": _pointer("annotations", key)} for key in own]
    removed = "is removed: deviceshare sets it when the pod gets devices"
    return patch, [f"metadata.annotations[{key}] {removed}" for key in own]


def _set_runtime_class(spec: DraftSpec, wanted: str, patch: list[Json], warnings: list[str]) -> None:
    """The pod's own takes precedence: its author may know the node better than the cluster's setting."""
    own = spec.runtime_class_name
    if wanted and not own:
        patch.append(add("/spec/runtimeClassName", wanted))
    elif wanted and own != wanted:
        warnings.append(
            f"spec.runtimeClassName: {own!r} is kept, but pods of groups get their devices by {wanted!r} here: leave it"
            f" out unless {own!r} gives containers devices, too"
        )


# Containers.


def _inject_all(
    field: str,
    containers: list[DraftContainer] | None,
    patch: list[Json],
    warnings: list[str],
    skip: Collection[str] = (),
    *,
    agent_url: str,
) -> None:
    for position, container in enumerate(containers or ()):
        if container.name in skip:
            continue
        env = container.env or []
        wanted, overridden = _environment(env)
        wanted, replaced_too = with_agent(wanted, agent_url)
        if wanted != env:
            patch.append(add(f"/spec/{field}/{position}/env", wanted))
        where = f"spec.{field}[{position}] {container.name!r}"
        replaced = "is replaced: deviceshare sets it for every pod of a group"
        warnings += [f"{where}: env {name} {replaced}" for name in [*overridden, *replaced_too]]


def _environment(env: list[Json]) -> tuple[list[Json], list[str]]:
    """The variables of an injected container, and the names of its author's that were replaced.

    deviceshare's come first, so that later variables may refer to them as `$(NVIDIA_VISIBLE_DEVICES)`.
    """
    ours, overridden = [], []
    for vendor in vendors.VENDORS:
        mine = [variable for variable in env if variable.get("name") == vendor.env]
        good = [variable for variable in mine if _refers(variable, vendor)]
        ours.append(good[0] if good else _reference(vendor))
        if len(good) < len(mine):
            overridden.append(vendor.env)
    if all(variable.get("name") != CUDA_ORDER for variable in env):
        ours.append({"name": CUDA_ORDER, "value": "PCI_BUS_ID"})
    names = [vendor.env for vendor in vendors.VENDORS]  # not a set: a name may be any JSON, even unhashable
    return ours + [variable for variable in env if variable.get("name") not in names], overridden


def _reference(vendor: Vendor) -> Json:
    return {"name": vendor.env, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": vendor.field_path}}}


def reads(env: list[Json], vendor: Vendor) -> bool:
    """Whether a container with these variables reads the vendor's devices from the pod's annotation."""
    mine = [variable for variable in env if variable.get("name") == vendor.env]
    return bool(mine) and _refers(mine[-1], vendor)


def _refers(variable: Json, vendor: Vendor) -> bool:
    source = {"fieldRef": {"fieldPath": vendor.field_path}}  # without the version that the API server defaults
    return variable in (_reference(vendor), {"name": vendor.env, "valueFrom": source})


def _pointer(field: str, key: str) -> str:
    """A JSON pointer (RFC 6901) to an entry of a metadata map."""
    return f"/metadata/{field}/{key.replace('~', '~0').replace('/', '~1')}"
