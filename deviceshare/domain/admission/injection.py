"""The patch with which the mutating webhook injects a pod that names a group, or asks for a share.

A pod's environment is fixed at its admission, before its devices are known. So each container gets references to
annotations that the Binding will write (the downward API). The nodes where the pod may run aren't written into it: they
may change between its admission and its scheduling, when filter decides (decision 10).

Everything here is idempotent: API servers may call the webhook twice for one pod, and people copy pods from
`kubectl get -o yaml`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

from deviceshare.domain import contract, vendors
from deviceshare.domain.admission.agent_variables import with_agent
from deviceshare.domain.admission.concern import concerns, is_ours_alone, metadata_fault
from deviceshare.domain.admission.drafts import Draft, DraftContainer, DraftSpec, Json, add
from deviceshare.domain.admission.injection_settings import GATES, GROW, InjectionSettings
from deviceshare.domain.admission.share_injection import GROWTH, ShareOf, shares_of, unknown_to_us
from deviceshare.domain.admission.variables import Reference, Setting, with_variables
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.shares import ShareRequest
from deviceshare.domain.vendors import Vendor

CUDA_ORDER: Final = Setting("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
"""CUDA numbers the fastest device 0, unless this variable is PCI_BUS_ID: then it counts by PCI bus, as NVML does."""
TAINTS: Final = tuple(each.resource for each in vendors.VENDORS if not each.resource.endswith(vendors.ANY))
"""The keys of the taints that pods of groups tolerate: the resources that are called by one name."""
JAX_GROWS: Final = Setting("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


DEFAULTS: Final = InjectionSettings()


class Injection(NamedTuple):
    """A JSON patch (RFC 6902) that injects the pod, warnings for its author, or a refusal."""

    patch: Sequence[Json] = ()
    warnings: Sequence[str] = ()
    refusal: str = ""


def inject(
    pod: Draft, group: Group | None, *, group_known: bool = True, settings: InjectionSettings = DEFAULTS
) -> Injection:
    """Injects a new pod; one that neither names a group nor asks for a share is left unchanged.

    `group` is the group it names, None if it isn't found; `group_known` says whether that is certain enough for a
    warning.
    """
    labels, annotations, share = pod.metadata.labels or {}, pod.metadata.annotations or {}, pod.spec.share
    if not concerns(labels, annotations, share, settings.dialects):
        return Injection()
    if refusal := metadata_fault(labels, annotations, share, settings.dialects):
        return Injection(refusal=refusal)
    name = annotations.get(contract.GROUP, "")
    patch, warnings = _strip(annotations)
    if pod.metadata.labels is None:
        patch.append(add("/metadata/labels", {contract.GROUP: name}))
    elif contract.GROUP not in labels:
        patch.append(add(_pointer("labels", contract.GROUP), name))
    patch += _scheduling(pod.spec, share, settings)
    patch += _tolerations(pod.spec, share, settings)
    _set_runtime_class(pod.spec, settings.runtime_class, patch, warnings)
    shares = shares_of(pod.spec, share)
    warnings += unknown_to_us(pod) if shares else ()
    for field, containers in pod.spec.lists():
        asking = {} if field == "ephemeralContainers" else shares
        _inject_all(field, containers, patch, warnings, settings, in_group=bool(name), shares=asking)
    if name and group is None and group_known:
        warnings.append(f"SharedDeviceGroup {name!r} doesn't exist yet; the pod waits for it (kubectl get sdg)")
    return Injection(patch, warnings)


def inject_ephemeral(pod: Draft, existing: Collection[str], settings: InjectionSettings = DEFAULTS) -> Injection:
    """Injects new ephemeral containers; `existing` names those that can't be changed any more.

    They can't ask for a share: they see the devices of the pod's group, or none.
    """
    if not concerns(pod.metadata.labels, pod.metadata.annotations):
        return Injection()
    patch: list[Json] = []
    warnings: list[str] = []
    in_group = contract.GROUP in (pod.metadata.annotations or {})
    added = pod.spec.ephemeral_containers
    _inject_all("ephemeralContainers", added, patch, warnings, settings, in_group=in_group, skip=existing)
    return Injection(patch, warnings)


def _scheduling(spec: DraftSpec, share: ShareRequest, settings: InjectionSettings) -> Iterator[Json]:
    """Our kube-scheduler, or our scheduling gate and the cluster's own, as the setting says."""
    if settings.placement != GATES:
        if spec.scheduler_name in _replaced(share, settings):
            yield add("/spec/schedulerName", contract.SCHEDULER_NAME)
        return
    if spec.scheduler_name in {contract.SCHEDULER_NAME, *(settings.replaced_schedulers if share else ())}:
        yield add("/spec/schedulerName", contract.DEFAULT_SCHEDULER_NAME)
    gates = spec.scheduling_gates or []
    # A pod with a node can't have gates: it is refused for its node, which says more.
    if not spec.node_name and not any(gate.get("name") == contract.PLACEMENT_GATE for gate in gates):
        yield add("/spec/schedulingGates", [*gates, {"name": contract.PLACEMENT_GATE}])


def _tolerations(spec: DraftSpec, share: ShareRequest, settings: InjectionSettings) -> Iterator[Json]:
    """Those that Kubernetes adds to pods that request the devices by their resource, which ours don't.

    Which of them its group has isn't known for sure, so a pod of a group tolerates the taints of each vendor's.
    https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#extendedresourcetoleration
    """
    own = spec.tolerations or []
    keys = share.of if share and not share.faults else TAINTS
    missing = [_tolerating(key) for key in keys if not any(_tolerates(each, key) for each in own)]
    if settings.tolerations and missing:
        yield add("/spec/tolerations", [*own, *missing])


def _tolerating(key: str) -> Json:
    return {"key": key, "operator": "Exists", "effect": "NoSchedule"}


def _tolerates(toleration: Json, key: str) -> bool:
    """Whether it is for every taint that has the key and the effect NoSchedule."""
    return (
        toleration.get("operator") == "Exists"
        and toleration.get("key", "") in ("", key)
        and toleration.get("effect", "") in ("", "NoSchedule")
    )


def _replaced(share: ShareRequest, settings: InjectionSettings) -> Collection[str | None]:
    """The schedulers from which the pod is taken."""
    usual = {None, "", contract.DEFAULT_SCHEDULER_NAME}
    return usual | settings.replaced_schedulers if share else usual


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
            f"spec.runtimeClassName: {own!r} is kept, but pods get deviceshare's devices by {wanted!r} here: leave it"
            f" out unless {own!r} gives containers devices, too"
        )


# Containers.


def _inject_all(
    field: str,
    containers: list[DraftContainer] | None,
    patch: list[Json],
    warnings: list[str],
    settings: InjectionSettings,
    *,
    in_group: bool,
    shares: Mapping[str, ShareOf] = MappingProxyType({}),
    skip: Collection[str] = (),
) -> None:
    for position, container in enumerate(containers or ()):
        if container.name in skip:
            continue
        env, share = container.env or [], shares.get(container.name)
        references, plain = _references(share, settings), _plain(share, settings, in_group=in_group)
        wanted, overridden = with_variables(env, references, plain)
        wanted, replaced_too = with_agent(wanted, settings.agent_url)
        if wanted != env:
            patch.append(add(f"/spec/{field}/{position}/env", wanted))
        where = f"spec.{field}[{position}] {container.name!r}"
        replaced = "is replaced: deviceshare sets it for every pod to which it gives devices"
        warnings += [f"{where}: env {name} {replaced}" for name in [*overridden, *replaced_too]]


def _references(share: ShareOf | None, settings: InjectionSettings) -> list[Reference]:
    """What refers to a container's devices. Of vendors that serve no share of its own, those are its group's."""
    if share is None:
        return list(map(_reference, vendors.VENDORS))
    own = list(share.references(framework_limits=settings.framework_limits))
    names = [reference.name for reference in own]
    return [*(_reference(vendor) for vendor in vendors.VENDORS if vendor.env not in names), *own]


def _plain(share: ShareOf | None, settings: InjectionSettings, *, in_group: bool) -> Iterator[Setting]:
    yield CUDA_ORDER
    if share:
        yield from share.settings(framework_limits=settings.framework_limits)
    elif in_group and settings.group_memory == GROW:
        yield from (JAX_GROWS, GROWTH)


@lru_cache(maxsize=64)
def _reference(vendor: Vendor) -> Reference:
    return Reference(vendor.env, vendor.field_path)


def reads(env: list[Json], vendor: Vendor) -> bool:
    """Whether a container with these variables reads the vendor's devices from the pod's annotation."""
    mine = [variable for variable in env if variable.get("name") == vendor.env]
    return bool(mine) and _reference(vendor).equals(mine[-1])


def _pointer(field: str, key: str) -> str:
    """A JSON pointer (RFC 6901) to an entry of a metadata map."""
    return f"/metadata/{field}/{key.replace('~', '~0').replace('/', '~1')}"
