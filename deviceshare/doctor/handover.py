"""The hand-over of devices: NVIDIA's stack in the cluster, its settings, and whether deviceshare's suit them.

Whether a container sees the devices of its group is decided by NVIDIA's container toolkit, whose settings are
files on the nodes: `/etc/nvidia-container-runtime/config.toml`. They can't be read through the API server.
https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/
https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/cdi.html
"""

import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

from msgspec import Struct

from deviceshare import assets
from deviceshare.doctor import kinds
from deviceshare.doctor.findings import PROBLEM, UNTESTED, WARNING, Finding, Verdict, about, listed, unread
from deviceshare.doctor.kinds import ClusterPolicy, Installation, NodeSoftware, Rollout, RuntimeClass
from deviceshare.domain import contract, vendors, wording
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.placement import handover
from deviceshare.kube.definitions import CRDS
from deviceshare.loops.kinds import NODE_DEVICES, SHARED_NODES
from deviceshare.loops.ports import ApiError, Cluster, NotFound

FILE: Final = "/etc/nvidia-container-runtime/config.toml"
ENV_OFF: Final = "accept-nvidia-visible-devices-envvar-when-unprivileged"
MOUNTS_ON: Final = "accept-nvidia-visible-devices-as-volume-mounts"
SWARM: Final = "swarm-resource"
BOTTLEROCKET: Final = "Bottlerocket"
"""Its toolkit is set up for NVIDIA's device plugin alone: https://bottlerocket.dev/en/os/latest/#/api/settings/"""
TOOLKIT: Final = "app=nvidia-container-toolkit-daemonset"
"""The label that NVIDIA's operator gives the pods that set up its runtime."""
_DOCS: Final = "see docs/handover.md"
_UPGRADE: Final = "helm upgrade … --set handover"


async def _machines(api: Cluster) -> list[NodeSoftware]:
    """The shared nodes that have NVIDIA's devices."""
    return [each for each in await api.list(kinds.MACHINES, label_selector=SHARED_NODES) if each.has_nvidia]


# The runtime: whether it reads our variable, and nothing that overrules it


async def examine_runtime(api: Cluster, settings: str | None) -> Verdict:
    """`settings` is the text of a node's file, if it was given by --runtime-config."""
    findings = [*judge_settings(settings)] if settings is not None else []
    try:
        machines, classes = await _machines(api), await api.list(kinds.RUNTIME_CLASSES)
    except ApiError as error:
        return "", [*findings, unread("runtime classes", error)]
    if not machines:
        return "no shared node has NVIDIA's devices", findings
    findings += [*judge_handlers(machines, classes), *judge_systems(machines)]
    if settings is None:
        how = f"ssh NODE cat {FILE} | deviceshare doctor --runtime-config -"
        findings.append(Finding(UNTESTED, "the settings of NVIDIA's toolkit are files on the nodes", how))
    return "nothing overrules or ignores the groups' variables", findings


def judge_handlers(machines: Iterable[NodeSoftware], classes: Sequence[RuntimeClass]) -> list[Finding]:
    """Whether pods can ask for NVIDIA's runtime where it isn't the default. Nodes report theirs from 1.30 on."""
    named = [each.metadata.name for each in classes if each.handler == vendors.NVIDIA.name]
    have = [each.metadata.name for each in machines if vendors.NVIDIA.name in each.handlers]
    lack = [each.metadata.name for each in machines if each.handlers and vendors.NVIDIA.name not in each.handlers]
    if named:
        what = f"the RuntimeClass {listed(named)} names a runtime that these nodes lack"
        cure = "install NVIDIA's container toolkit there: nvidia-ctk runtime configure --runtime=containerd"
        return about(lack, WARNING, what, cure)
    if not have:
        return []
    what = f"nodes have the runtime nvidia, but no RuntimeClass names it: {listed(have)}"
    cure = "kubectl create -f - with kind RuntimeClass, apiVersion node.k8s.io/v1, metadata.name and handler nvidia"
    return [Finding(WARNING, f"{what}; unless it is the default, containers see no GPU", cure)]


def judge_systems(machines: Iterable[NodeSoftware]) -> list[Finding]:
    """Operating systems that ignore the variable by default."""
    names = [each.metadata.name for each in machines if BOTTLEROCKET in each.status.node_info.get("osImage", "")]
    what = f"Bottlerocket ignores {vendors.NVIDIA.env} of unprivileged containers by default"
    key = "settings.nvidia-container-runtime.visible-devices"
    cure = f"apiclient set {key}-envvar-when-unprivileged=true {key}-as-volume-mounts=false"
    return about(names, WARNING, what, cure)


def judge_settings(text: str) -> Iterator[Finding]:
    """What a node's config.toml does to the variables; absent keys have the toolkit's defaults, which suit us."""
    try:
        settings: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        yield Finding(PROBLEM, f"that is no {FILE}: {error}", f"ssh NODE cat {FILE}")
        return
    restart = "and restart the container runtime"
    if settings.get(ENV_OFF) is False:
        what = f"{ENV_OFF}=false: unprivileged containers' variables are ignored, so pods of groups see no GPU"
        yield Finding(PROBLEM, what, f"nvidia-ctk config --in-place --set {ENV_OFF}=true {restart}")
    # A runtime that takes CDI names only prefixes the default kind to names that aren't qualified.
    with suppress(KeyError, TypeError, AttributeError):  # it may be anything that TOML can say
        runtime = settings["nvidia-container-runtime"]
        if runtime["mode"] == "cdi":
            kind = runtime.get("modes", {}).get("cdi", {}).get("default-kind", vendors.NVIDIA.resource)
            starts = f"a container that is given a number or a UUID starts only if {kind} has it"
            operators = 'the operator\'s management.nvidia.com/gpu has only "all"'
            what = f'mode="cdi", default-kind={kind!r}: {starts}; {operators}'
            yield Finding(WARNING, what, f"hand devices over by CDI names: {_UPGRADE}.style=cdi; {_DOCS}")
    if settings.get(MOUNTS_ON) is True:
        what = f"{MOUNTS_ON}=true: a container may ask for devices by mounts, and these overrule the variable"
        yield Finding(WARNING, what, f"nvidia-ctk config --in-place --set {MOUNTS_ON}=false {restart}")
    if swarm := settings.get(SWARM):
        what = f"{SWARM}={swarm!r}: where a container has this variable, it overrules {vendors.NVIDIA.env}"
        yield Finding(WARNING, what, f"remove {SWARM} from {FILE} {restart}")


# The hand-over: which of NVIDIA's stacks the cluster has, and what it is told


class Stack(Struct, frozen=True):
    """NVIDIA's components in the cluster, and deviceshare's settings for them."""

    machines: Sequence[NodeSoftware] = ()
    """The shared nodes that have NVIDIA's devices."""
    classes: Sequence[RuntimeClass] = ()
    policies: Sequence[ClusterPolicy] = ()
    toolkits: Sequence[Rollout] = ()
    ours: Installation = Installation("")
    ledgers: Sequence[NodeDevices] = ()

    @property
    def nri(self) -> bool:
        return any(policy.spec.cdi.nri_plugin_enabled for policy in self.policies)

    @property
    def cdi(self) -> bool:
        """Whether the operator's runtime class injects by CDI; the operator sets the field where it is unset."""
        return any(policy.spec.cdi.enabled for policy in self.policies)

    @property
    def style(self) -> str:
        return self.ours.flag("handover") or handover.AUTO

    @property
    def offering(self) -> list[NodeDevices]:
        """The ledgers of the nodes with NVIDIA's devices."""
        return [each for each in self.ledgers if any(vendors.NVIDIA.supplies(d.resource) for d in each.devices)]

    @property
    def told(self) -> list[tuple[str, str]]:
        """Each node with NVIDIA's devices, and in which words it is told of them; "" where that isn't decided."""
        return [(ledger.node, ledger.status.handover.get(vendors.NVIDIA.name, "")) for ledger in self.offering]


async def examine(api: Cluster, ours: Installation) -> Verdict:
    """Compares NVIDIA's stack with the flags of our Deployment, where it was found. Raises ApiError."""
    try:
        await api.get(CRDS, f"{kinds.CLUSTER_POLICIES.plural}.nvidia.com")
    except NotFound:
        policies = []  # There is no GPU operator.
    else:
        policies = await api.list(kinds.CLUSTER_POLICIES)
    stack = Stack(
        machines=await _machines(api),
        classes=await api.list(kinds.RUNTIME_CLASSES),
        policies=policies,
        toolkits=await api.list(kinds.DAEMON_SETS, label_selector=TOOLKIT),
        ours=ours,
        ledgers=await api.list(NODE_DEVICES),
    )
    return summary(stack), judge(stack)


def summary(stack: Stack) -> str:
    """Which stack injects devices, how many nodes receive them by index, UUID or CDI name, and how many could."""
    if stack.nri:
        world = "the GPU operator's NRI plugin injects devices"
    elif stack.cdi:
        world = "the GPU operator's runtime class injects devices by CDI"
    else:
        world = "the GPU operator sets up NVIDIA's runtime" if stack.policies else "no GPU operator"
    nodes = Counter(words or "UUID or number" for _, words in stack.told)
    counted = wording.listed(f"{number} by {words}" for words, number in sorted(nodes.items())) or "none yet"
    return f"{world}; nodes with NVIDIA's devices: {counted}{_ways(stack)}"


def _ways(stack: Stack) -> str:
    """On how many nodes each way of handing over would work, as far as is known of them."""
    able = Counter[str]()
    for ledger in stack.offering:
        for way, style in (("index", handover.INDEX), ("UUID", handover.UUID), ("CDI", handover.CDI)):
            labels = {contract.HANDOVER_LABEL: style}
            decided = handover.decide(vendors.NVIDIA, labels, ledger.hardware, handover.DEFAULT)
            able[way] += decided.words != handover.NONE
        able["ResourceClaim"] += bool(ledger.status.published.devices)
    by_claim = stack.ours.flag("dra-handover") == "on"
    off = "" if by_claim or not able["ResourceClaim"] else " (dra.handover is off)"
    return f"; possible: {', '.join(f'{count} by {way}' for way, count in able.items())}{off}" if able else ""


def judge(stack: Stack) -> Iterator[Finding]:
    """What keeps the devices of groups from their containers."""
    mute: defaultdict[str, list[str]] = defaultdict(list)  # nodes whose devices can't be handed over, by reason
    for ledger in stack.ledgers:
        for each in ledger.status.withheld:
            if handover.mute(each.devices, ledger.status.handover):
                mute[f"no group gets {each.resource}: {each.text}"].append(ledger.node)
    for what, nodes in sorted(mute.items()):
        yield from about(nodes, PROBLEM, what, _DOCS)
    name = stack.ours.flag("runtime-class")
    if name and all(each.metadata.name != name for each in stack.classes):
        what = f"handover.runtimeClassName is {name!r}, and there is no such RuntimeClass: pods of groups are refused"
        gone = " (the operator deletes its own where its NRI plugin is enabled)" if stack.nri else ""
        cure = f"{_UPGRADE}.runtimeClassName={',handover.nri=true' if stack.nri else 'CLASS'}; {_DOCS}"
        yield Finding(PROBLEM, f"{what}{gone}", cure)
    if not stack.machines:
        return
    if stack.nri:
        yield from _by_plugin(stack)
    elif stack.cdi:
        classes = [each.metadata.name for each in stack.classes if each.handler == vendors.NVIDIA.name]
        if classes and not name:
            lack = "deviceshare sets no runtimeClassName in pods of groups: unless they name one, they see no GPU"
            cure = f"{_UPGRADE}.runtimeClassName={classes[0]},agent.runtimeClassName={classes[0]}; {_DOCS}"
            yield Finding(WARNING, f"the operator's runtime isn't the default, and {lack}", cure)
        why, cure = "a CDI runtime doesn't start a container that is given numbers", f"{_UPGRADE}.style=cdi; {_DOCS}"
        yield from _bare(stack, why, cure)


def _bare(stack: Stack, why: str, cure: str) -> Iterator[Finding]:
    """Nodes that receive indices or UUIDs where only CDI names work, by setting or label; or that may yet."""
    nodes = [n for n, words in stack.told if words != handover.NONE and not handover.is_kind(words)]
    if nodes:  # A node's label overrules the setting; where the setting is right, only labels are to change.
        label = f"kubectl label node NODE {contract.HANDOVER_LABEL}-"
        cures = f"where a node's label sets it, {label}; else {cure}"
        what = f"devices are handed over by number or UUID, but {why}: {listed(nodes)}"
        yield Finding(PROBLEM, what, f"{label}; {_DOCS}" if stack.style == handover.CDI else cures)
    elif stack.style != handover.CDI:
        mark, new = (WARNING, " until its agent has reported") if stack.style == handover.AUTO else (PROBLEM, "")
        what = f"handover.style is {stack.style}: a new node is given numbers or UUIDs{new}, but {why}"
        yield Finding(mark, what, cure)


def _by_plugin(stack: Stack) -> Iterator[Finding]:
    cure = f"{_UPGRADE}.nri=true; {_DOCS}"
    yield from _bare(stack, "NVIDIA's NRI plugin takes CDI names only, so pods there see no GPU", cure)
    old = [name for each in stack.toolkits if (name := _version_of(each)) and _numbers(name) < (1, 20, 0)]
    if old:
        what = f"NVIDIA's NRI plugin serves pods of other namespaces from 1.20.0 on, and this is {listed(old)}"
        cure = "helm upgrade … of the GPU operator to 26.7.0 or later, or set its toolkit.version"
        yield Finding(PROBLEM, what, cure)
    able = {machine.metadata.name: injects_by_nri(machine.runtime) for machine in stack.machines}
    what = "containerd there can't inject CDI devices for an NRI plugin"
    cure = "update containerd to 1.7.30, or to 2.1.0 or later; 2.0 drops them"
    yield from about((name for name, can in able.items() if can is False), PROBLEM, what, cure)
    what = "it isn't known whether the runtime there injects CDI devices for an NRI plugin"
    cure = f"kubectl apply -f {assets.examples() / 'nvidia-smi.yaml'} and see its log"
    yield from about((name for name, can in able.items() if can is None), UNTESTED, what, cure)


def injects_by_nri(runtime: str) -> bool | None:
    """Whether `containerd://1.7.30` gives containers the CDI devices that NRI plugins name; None: that isn't known."""
    name, _, version = runtime.partition("://")
    numbers = _numbers(version)
    if name != "containerd" or not numbers:
        return None
    return (1, 7, 30) <= numbers < (2, 0, 0) or numbers >= (2, 1, 0)


def _version_of(toolkit: Rollout) -> str:
    """The toolkit's version by its image's tag; "" where it has none."""
    images = [each.image for each in toolkit.containers if "toolkit" in each.image]
    tags = [image.rpartition(":")[2] for image in images if "@" not in image]
    return next((tag for tag in tags if _numbers(tag)), "")


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"v?(\d+)\.(\d+)\.(\d+)", version)
    return tuple(map(int, found.groups())) if found else ()
