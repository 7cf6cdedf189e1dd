"""The injection of a pod that names a group, or asks for a share: the patch with which the mutating webhook answers.

A pod's environment is fixed at its admission, before its devices are known. So each container gets references to
annotations that the Binding will write (the downward API); as long as there are none, the variables are empty, which
all their readers take as unset. The nodes where the pod may run aren't written into it: they may change between its
admission and its scheduling, when filter decides (decision 10).

Everything here is idempotent: API servers may call the webhook twice for one pod, and people copy pods from
`kubectl get -o yaml`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from deviceshare.domain import contract, vendors
from deviceshare.domain.admission.dialects import translated
from deviceshare.domain.admission.drafts import Draft, DraftSpec, Json, Place, concern_of, concerns
from deviceshare.domain.admission.settings import DEFAULTS, GATES, GROW, HOST, InjectionSettings
from deviceshare.domain.objects import shares
from deviceshare.domain.objects.groups import Group, claim_name
from deviceshare.domain.objects.hardware import HOOK, NO_LIMITS
from deviceshare.domain.objects.quantities import is_some
from deviceshare.domain.objects.share_wishes import PREFERRED
from deviceshare.domain.objects.shares import DIALECTS, NO_SHARE, ShareRequest, container_annotation, field_path
from deviceshare.domain.vendors import Vendor

_NOTHING: Final = "is 0: deviceshare leaves the pod alone, and its image's own variables may show it every device"


class Injection(NamedTuple):
    """A JSON patch (RFC 6902) that injects the pod, warnings for its author, or a refusal."""

    patch: Sequence[Json] = ()
    warnings: Sequence[str] = ()
    refusal: str = ""


def inject(
    pod: Draft, group: Group | None, *, group_known: bool = True, settings: InjectionSettings = DEFAULTS
) -> Injection:
    """Injects a new pod; one that neither names a group nor asks for a share, by any spelling, is left unchanged.

    `group` is the group it names, None if it isn't found; `group_known` says whether that is certain enough for a
    warning.
    """
    pod, patch, warnings, unclear = translated(pod, settings.dialects, settings.unsupported)
    concern = concern_of(pod.metadata, pod.spec.share, settings.dialects)
    if fault := unclear or pod.misspelt(settings.dialects) or (concern.fault if concern else ""):
        return Injection(refusal=fault)
    if concern is None:
        return Injection(warnings=[f"{where} {_NOTHING}"] if (where := pod.asks_for_nothing) else ())
    name, share = concern.group, concern.share
    if group is not None and group.claim:
        return _by_claim(pod, group, concern.ours, settings)
    asking = _shares_of(pod.spec, share) if share else {}
    # Only deviceshare may write these: such a pod was copied from one that had devices.
    patch += ({"op": "remove", "path": _pointer("annotations", key)} for key in concern.ours)
    removed = "is removed: deviceshare sets it when the pod gets devices"
    passing = [f"metadata.annotations[{key}] {removed}" for key in concern.ours]
    patch += _label(pod, name)
    patch += _scheduling(pod.spec, share, settings)
    patch += _tolerations(pod.spec, share, settings)
    patch += _runtime_class(pod.spec, settings.runtime_class, warnings)
    of_containers = _environments(pod.spec.places(ephemeral=True), asking, settings, in_group=bool(name))
    patch += of_containers.patch
    warnings += of_containers.warnings
    patch += _annotations(pod, {contract.ISOLATION: settings.isolation} if share else {}, warnings)
    if name and group is None and group_known:
        passing.append(f"SharedDeviceGroup {name!r} doesn't exist yet; the pod waits for it (kubectl get sdg)")
    return Injection(patch, [*passing, *warnings])


def _by_claim(pod: Draft, group: Group, ours: Iterable[str], settings: InjectionSettings) -> Injection:
    """The pod names its group's ResourceClaim, whose devices the driver brings; kube-scheduler alone binds it."""
    spec, annotations, given = pod.spec, pod.metadata.annotations or {}, given_by_claim(group)
    patch = [{"op": "remove", "path": _pointer("annotations", key)} for key in ours if key not in given]
    patch += [_set(_pointer("annotations", k), text) for k, text in given.items() if annotations.get(k) != text]
    patch += _label(pod, group.name)
    if spec.scheduler_name in (None, "", contract.SCHEDULER_NAME):
        patch.append(_set("/spec/schedulerName", contract.DEFAULT_SCHEDULER_NAME))
    patch += _tolerations(spec, NO_SHARE, settings)
    others = [each for each in spec.resource_claims or () if each.get("name") != contract.POD_CLAIM]
    if (named := [*others, _named_claim(group)]) != spec.resource_claims:
        patch.append(_set("/spec/resourceClaims", named))
    for place in spec.places():
        resources, path = place.container.resources, f"/spec/{place.field}/{place.position}/resources"
        if resources is None:
            patch.append(_set(path, {"claims": [_USED_CLAIM]}))
        elif _USED_CLAIM not in (claims := resources.claims or []):
            patch.append(_set(f"{path}/claims", [*claims, _USED_CLAIM]))
    # Programs share the devices as those of other groups do.
    frameworks = _environments(spec.places(), {}, settings, in_group=True, by_claim=True)
    return Injection([*patch, *frameworks.patch], frameworks.warnings)


_USED_CLAIM: Final = {"name": contract.POD_CLAIM}


def _named_claim(group: Group) -> Json:
    return {"name": contract.POD_CLAIM, "resourceClaimName": claim_name(group.uid)}


def given_by_claim(group: Group) -> dict[str, str]:
    """The annotations of a pod that gets the group's devices by a ResourceClaim."""
    return {contract.CLAIM: group.claim, contract.GROUP_UID: group.uid}


def lacks_claim(pod: Draft, group: Group) -> str:
    """What a pod lacks to get the group's devices by its ResourceClaim, or ""."""
    if _named_claim(group) not in (pod.spec.resource_claims or ()):
        return f"spec.resourceClaims: {contract.POD_CLAIM}"
    for place in pod.spec.places():
        resources = place.container.resources
        if _USED_CLAIM not in ((resources and resources.claims) or ()):
            return f"{place}.resources.claims: {contract.POD_CLAIM}"
    return ""


def inject_ephemeral(pod: Draft, existing: Collection[str], settings: InjectionSettings = DEFAULTS) -> Injection:
    """Injects new ephemeral containers; `existing` names those that can't be changed any more.

    They can't ask for a share: they see the devices of the pod's group, or none.
    """
    if not concerns(pod.metadata.labels, pod.metadata.annotations):
        return Injection()
    new = pod.spec.places(ephemeral=True, skip=existing)
    added = (each for each in new if each.field == "ephemeralContainers")
    return _environments(added, {}, settings, in_group=contract.GROUP in (pod.metadata.annotations or {}))


# The pod, but for its containers.


def _annotations(pod: Draft, defaults: Mapping[str, str], warnings: Sequence[str]) -> list[Json]:
    """The settings that the pod doesn't name, and the warnings, since nobody reads those that a controller gets.

    Warnings that are there already are of this creation, which other webhooks may have had reviewed once more, or were
    copied.
    """
    annotations = pod.metadata.annotations or {}
    added = {key: value for key, value in defaults.items() if key not in annotations and value != PREFERRED}
    before = list(filter(None, annotations.get(contract.WARNINGS, "").split("\n")))
    text = "\n".join([*before, *(each for each in warnings if each not in before)])[:_LONGEST_WARNINGS]
    if warnings and text != "\n".join(before):
        added[contract.WARNINGS] = text
    if added and pod.metadata.annotations is None:
        return [_set("/metadata/annotations", added)]
    return [_set(_pointer("annotations", key), value) for key, value in added.items()]


_LONGEST_WARNINGS: Final = 1024


def _label(pod: Draft, name: str) -> list[Json]:
    if pod.metadata.labels is None:
        return [_set("/metadata/labels", {contract.GROUP: name})]
    return [] if contract.GROUP in pod.metadata.labels else [_set(_pointer("labels", contract.GROUP), name)]


def _scheduling(spec: DraftSpec, share: ShareRequest, settings: InjectionSettings) -> list[Json]:
    """Our kube-scheduler, or our scheduling gate and the cluster's own, as the setting says."""
    replaced = settings.replaced_schedulers if share else ()
    if settings.placement != GATES:
        taken = spec.scheduler_name in {None, "", contract.DEFAULT_SCHEDULER_NAME, *replaced}
        return [_set("/spec/schedulerName", contract.SCHEDULER_NAME)] if taken else []
    taken = spec.scheduler_name in {contract.SCHEDULER_NAME, *replaced}
    patch = [_set("/spec/schedulerName", contract.DEFAULT_SCHEDULER_NAME)] if taken else []
    gates = spec.scheduling_gates or []
    # A pod with a node can't have gates: it is refused for its node, which says more.
    if not spec.node_name and not any(gate.get("name") == contract.PLACEMENT_GATE for gate in gates):
        patch.append(_set("/spec/schedulingGates", [*gates, {"name": contract.PLACEMENT_GATE}]))
    return patch


def _tolerations(spec: DraftSpec, share: ShareRequest, settings: InjectionSettings) -> list[Json]:
    """The tolerations that Kubernetes adds to pods that request the devices by their resource, which ours don't.

    Which of them its group has isn't known for sure, so a pod of a group tolerates the taints of each vendor's.
    https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#extendedresourcetoleration
    """
    own = spec.tolerations or []
    missing: list[Json] = [
        {"key": key, "operator": "Exists", "effect": "NoSchedule"}
        for key in (share.of if share else vendors.TAINTS)
        if not any(
            each.get("operator") == "Exists"
            and each.get("key", "") in ("", key)
            and each.get("effect", "") in ("", "NoSchedule")
            for each in own
        )
    ]
    return [_set("/spec/tolerations", [*own, *missing])] if settings.tolerations and missing else []


def _runtime_class(spec: DraftSpec, wanted: str, warnings: list[str]) -> list[Json]:
    """The pod's own takes precedence: its author may know the node better than the cluster's setting."""
    own = spec.runtime_class_name
    if wanted and not own:
        return [_set("/spec/runtimeClassName", wanted)]
    if wanted and own != wanted:
        warnings.append(
            f"spec.runtimeClassName: {own!r} is kept, but pods get deviceshare's devices by {wanted!r} here: leave it"
            f" out unless {own!r} gives containers devices, too"
        )
    return []


# The variables of a container.


class Variable(NamedTuple):
    """A variable that deviceshare gives a container: a plain value, or by the downward API a field of the pod."""

    name: str
    path: str = ""
    """The field, such as an annotation that the Binding writes."""
    value: str = ""
    kind: str = ""
    """How the annotation's name begins: a reference to another container's, in a copied pod, is replaced, too."""
    owned: bool = False
    """Whether it replaces what the container's author wrote."""
    gives_way_to: tuple[str, ...] = ()
    """Other variables of the author's, beside which it isn't set."""
    withheld: bool = False
    """Whether it isn't set at all, and taken away where an earlier injection set it."""

    @property
    def json(self) -> Json:
        """As the API server stores it."""
        if self.path:
            return {"name": self.name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": self.path}}}
        return {"name": self.name, "value": self.value}

    def equals(self, variable: Json) -> bool:
        """Whether it is the same, with or without what the API server defaults."""
        return variable in (self.json, {"name": self.name, "valueFrom": {"fieldRef": {"fieldPath": self.path}}})

    def is_ours(self, variable: Json) -> bool:
        """Whether deviceshare wrote it and may write it anew. A value that isn't owned stays where it is."""
        if not self.path:
            return self.owned and self.equals(variable)
        found: Any = variable
        for key in ("valueFrom", "fieldRef", "fieldPath"):
            found = found.get(key) if isinstance(found, dict) else None
        path = found if isinstance(found, str) else ""
        of_another = bool(self.kind) and path.startswith(f"metadata.annotations['{self.kind}")
        return (path == self.path or of_another) and self._replace(path=path).equals(variable)


CUDA_ORDER: Final = Variable("CUDA_DEVICE_ORDER", value="PCI_BUS_ID")
"""CUDA numbers the fastest device 0, unless this variable is PCI_BUS_ID: then it counts by PCI bus, as NVML does."""
JAX_GROWS: Final = Variable("XLA_PYTHON_CLIENT_PREALLOCATE", value="false")
GROWTH: Final = Variable("TF_FORCE_GPU_ALLOW_GROWTH", value="true")
_JAX_FRACTION: Final = "XLA_PYTHON_CLIENT_MEM_FRACTION"
_JAX_NEW_FRACTION: Final = "XLA_CLIENT_MEM_FRACTION"
"""With both names set, JAX's client refuses to start (jaxlib, `xla_client.py`); older releases read the other one only.
"""
_PYTORCH_OTHERS: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Earlier names of PYTORCH_ALLOC_CONF, which win. Under them PyTorch before 2.10 fails on the fraction; under the new
name it ignores it."""


class ShareOf(NamedTuple):
    """The share of one container: its own devices, how much of them, and what programs read."""

    container: str
    resource: str
    """The limit by which it asks."""
    request: ShareRequest
    """The whole pod's."""
    has_env_from: bool

    def variables(self, settings: InjectionSettings) -> Iterator[Variable]:
        """What the Binding says of it, by the names under which programs look for it; then what is known before."""
        for vendor in vendors.vendors_of(self.request.of):
            path = field_path(shares.devices_of_container(vendor, self.container))
            yield Variable(vendor.env, path, owned=True)
        yield self._late("DEVICESHARE_MEMORY_LIMIT_MIB", shares.MEMORY_LIMIT, owned=True)
        yield self._late("DEVICESHARE_PERCENT", shares.PERCENT, owned=True)
        yield self._late("DEVICESHARE_MEMORY_FRACTION", shares.MEMORY_FRACTION, owned=True)
        nvidia = vendors.NVIDIA.resource in self.request.of
        if nvidia and settings.memory_limits != NO_LIMITS:
            yield self._late("CUDA_DEVICE_MEMORY_LIMIT", shares.INTERCEPTED, owned=True)
        if nvidia and settings.memory_limits == HOOK:
            yield self._late("NVIDIA_GPU_MEMORY_LIMIT", shares.HARD_LIMIT, owned=True)
            yield self._late("NVIDIA_GPU_MEMORY_REQUEST", shares.SOFT_LIMIT, owned=True)
        if self.resource == shares.ALIYUN_GPU_MEM:
            yield self._late("ALIYUN_COM_GPU_MEM_IDX", shares.DEVICE_INDEX)
            yield self._late("ALIYUN_COM_GPU_MEM_DEV", shares.DEVICE_GIB)
        if self.resource == shares.METAGPU:
            yield self._late("METAGPU_MAX_MEM", shares.MEMORY_LIMIT)
        if settings.framework_limits:
            # What a ConfigMap or a Secret sets isn't known here, and the fraction's other name would be fatal.
            jax = self._late(_JAX_FRACTION, shares.HEAP_FRACTION, gives_way_to=(_JAX_NEW_FRACTION,))
            yield jax._replace(withheld=self.has_env_from)
            yield self._late("PYTORCH_ALLOC_CONF", shares.PYTORCH, gives_way_to=_PYTORCH_OTHERS)
        yield CUDA_ORDER
        if self.resource == shares.ALIYUN_GPU_MEM:
            own = sum(need.memory_mib for need in self.request.container(self.container))
            # Of the pod as a whole, as Kubernetes counts init containers: the larger, not the sum.
            inits = [need.memory_mib for need in self.request.needs if need.role in shares.INITS]
            beside = sum(need.memory_mib for need in self.request.needs if need.role not in shares.INITS)
            yield Variable("ALIYUN_COM_GPU_MEM_POD", value=str(max(beside, *inits, 0) // shares.MIB_PER_GIB))
            yield Variable("ALIYUN_COM_GPU_MEM_CONTAINER", value=str(own // shares.MIB_PER_GIB))
        if settings.framework_limits:
            yield GROWTH

    def _late(self, name: str, kind: str, *, owned: bool = False, gives_way_to: tuple[str, ...] = ()) -> Variable:
        """The variable with what the Binding says of the container (shares.py)."""
        path = field_path(container_annotation(kind, self.container))
        return Variable(name, path, "", f"{contract.PREFIX}{kind}.", owned, gives_way_to)


def _shares_of(spec: DraftSpec, request: ShareRequest) -> dict[str, ShareOf]:
    """The share of each container that asks for one, by the container's name."""
    return {
        each.name: ShareOf(each.name, resource, request, bool(each.env_from))
        for containers in (spec.init_containers, spec.containers)
        for each in containers or ()
        for resource in [next((r for r, q in each.limits.items() if r in DIALECTS and is_some(q)), "")]
        if resource
    }


class _Variables(NamedTuple):
    """What a container gets, in order; the same for all that want the same."""

    by_name: dict[str, Variable]
    names: frozenset[str]
    """A container with none of these gets all that is in `new`."""
    new: list[Json]


@lru_cache(maxsize=512)
def _variables(
    table: tuple[Vendor, ...], share: ShareOf | None, settings: InjectionSettings, *, in_group: bool
) -> _Variables:
    """First the agent's, then references, so that others may refer to them as `$(NVIDIA_VISIBLE_DEVICES)`, then values.

    By the agent's a container finds the agent of its node (docs/inside.md). Of vendors that serve no share of its own,
    it sees the devices of its group.
    """
    own = list(share.variables(settings)) if share else [CUDA_ORDER]
    if share is None and in_group and settings.group_memory == GROW:
        own += (JAX_GROWS, GROWTH)
    names = {each.name for each in own}
    of_group = (Variable(vendor.env, vendor.field_path, owned=True) for vendor in table if vendor.env not in names)
    # A pod's node isn't known at its admission, so the kubelet resolves its address at each start of a container.
    agent, host = list[Variable](), contract.AGENT_HOST_VARIABLE
    if HOST in settings.agent_url:
        agent.append(Variable(host, "status.hostIP", owned=True))
    if url := settings.agent_url.replace(HOST, f"$({host})", 1):
        agent.append(Variable(contract.AGENT_VARIABLE, value=url, owned=True))
    every = [*agent, *of_group, *own]
    return _Variables(
        {each.name: each for each in every},
        frozenset(name for each in every for name in (each.name, *each.gives_way_to)),
        [each.json for each in every if not each.withheld],
    )


def _environments(
    places: Iterable[Place],
    asking: Mapping[str, ShareOf],
    settings: InjectionSettings,
    *,
    in_group: bool,
    by_claim: bool = False,
) -> Injection:
    """The variables of these containers; ephemeral ones can't ask for a share."""
    patch, warnings = list[Json](), list[str]()
    table: tuple[Vendor, ...] = () if by_claim else vendors.VENDORS
    for place in places:
        container = place.container
        share = None if place.field == "ephemeralContainers" else asking.get(container.name)
        env, wanted = container.env or [], _variables(table, share, settings, in_group=in_group)
        complete, overridden = _merged(env, wanted)
        if complete != env:
            patch.append(_set(f"/spec/{place.field}/{place.position}/env", complete))
        replaced = (
            "is replaced: deviceshare sets it for every pod to which it gives devices (take it out of the manifest"
            " of a bare pod: applied a second time, it is refused)"
        )
        warnings += [f"{place} {container.name!r}: env {name} {replaced}" for name in overridden]
    return Injection(patch, warnings)


def _merged(env: list[Json], wanted: _Variables) -> tuple[list[Json], list[str]]:
    """The container's variables with the wanted ones, and the names of its author's that were replaced."""
    # A name may be any JSON, even unhashable.
    if wanted.names.isdisjoint([name for each in env if isinstance(name := each.get("name"), str)]):
        return [*wanted.new, *env], []

    def is_replaced(variable: Json) -> bool:
        name = variable.get("name")
        ours = wanted.by_name.get(name) if isinstance(name, str) else None
        return ours is not None and (ours.owned or ours.is_ours(variable))

    first: list[Json] = []
    overridden: list[str] = []
    rest = [each for each in env if not is_replaced(each)]
    for ours in wanted.by_name.values():
        mine = [each for each in env if each.get("name") == ours.name]
        if ours.owned and not all(map(ours.is_ours, mine)):
            overridden.append(ours.name)
        names = (ours.name, *ours.gives_way_to)
        if not ours.withheld and all(each.get("name") not in names for each in rest):
            first.append(next(filter(ours.equals, mine), ours.json))
    return [*first, *rest], overridden


def reads(env: list[Json], vendor: Vendor) -> bool:
    """Whether a container with these variables reads the vendor's devices from the pod's annotation."""
    mine = [variable for variable in env if variable.get("name") == vendor.env]
    return bool(mine) and Variable(vendor.env, vendor.field_path).equals(mine[-1])


def _set(path: str, value: Any) -> Json:
    """The JSON patch operation that sets a member, whether it exists or not (RFC 6902, 4.1)."""
    return {"op": "add", "path": path, "value": value}


def _pointer(field: str, key: str) -> str:
    """A JSON pointer (RFC 6901) to an entry of a metadata map."""
    return f"/metadata/{field}/{key.replace('~', '~0').replace('/', '~1')}"
