"""Hand-over: which of NVIDIA's stacks the cluster has, and whether deviceshare's settings suit it.

https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/cdi.html
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct, field

from deviceshare import assets
from deviceshare.doctor.findings import PROBLEM, UNTESTED, WARNING, Check, Finding, check, listed, unread
from deviceshare.doctor.kinds import (
    CLUSTER_POLICIES,
    DAEMON_SETS,
    MACHINES,
    RUNTIME_CLASSES,
    ClusterPolicy,
    NodeSoftware,
    Rollout,
    RuntimeClass,
)
from deviceshare.domain import contract, vendors
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.placement import handover
from deviceshare.domain.wording import listed as enumerated
from deviceshare.kube.definitions import CRDS
from deviceshare.loops.kinds import NODE_DEVICES, SHARED_NODES
from deviceshare.loops.ports import ApiError, Cluster, NotFound

TOOLKIT: Final = "app=nvidia-container-toolkit-daemonset"
"""The label that NVIDIA's operator gives the pods that set up its runtime."""
_DOCS: Final = "see docs/handover.md"
_UNDECIDED: Final = "UUID or number"


class Stack(Struct, frozen=True):
    """NVIDIA's components in the cluster, and deviceshare's settings for them."""

    machines: Sequence[NodeSoftware] = ()
    """The shared nodes that have NVIDIA's devices."""
    classes: Sequence[RuntimeClass] = ()
    policies: Sequence[ClusterPolicy] = ()
    toolkits: Sequence[Rollout] = ()
    deployment: Rollout | None = None
    ledgers: Sequence[NodeDevices] = field(default_factory=list)

    @property
    def nri(self) -> bool:
        return any(policy.spec.cdi.nri_plugin_enabled for policy in self.policies)

    @property
    def cdi(self) -> bool:
        """Whether the operator's runtime class injects by CDI; the operator sets the field where it is unset."""
        return any(policy.spec.cdi.enabled for policy in self.policies)

    @property
    def style(self) -> str:
        return (self.deployment and self.deployment.flag("handover")) or handover.AUTO

    @property
    def runtime_class(self) -> str:
        return (self.deployment and self.deployment.flag("runtime-class")) or ""


async def examine(api: Cluster, deployment: Rollout | None) -> Check:
    """Compares NVIDIA's stack with the flags of `deployment`, deviceshare's own if it was found."""
    try:
        shared = await api.list(MACHINES, label_selector=SHARED_NODES)
        stack = Stack(
            machines=[machine for machine in shared if machine.has_nvidia],
            classes=await api.list(RUNTIME_CLASSES),
            policies=await _policies(api),
            toolkits=await api.list(DAEMON_SETS, label_selector=TOOLKIT),
            deployment=deployment,
            ledgers=await api.list(NODE_DEVICES),
        )
    except ApiError as error:
        return check("hand-over", "", [unread("NVIDIA's stack", error)])
    return check("hand-over", summary(stack), judge(stack))


async def _policies(api: Cluster) -> list[ClusterPolicy]:
    try:
        await api.get(CRDS, f"{CLUSTER_POLICIES.plural}.nvidia.com")
    except NotFound:
        return []  # There is no GPU operator.
    return await api.list(CLUSTER_POLICIES)


def summary(stack: Stack) -> str:
    """Which stack injects devices, and how many nodes receive them by index, UUID or CDI name."""
    nodes: dict[str, int] = {}
    for ledger in stack.ledgers:
        if _has_nvidia(ledger):
            words = ledger.status.handover.get(vendors.NVIDIA.name, _UNDECIDED)
            nodes[words] = nodes.get(words, 0) + 1
    counted = enumerated(f"{number} by {words}" for words, number in sorted(nodes.items())) or "none yet"
    return f"{_world(stack)}; nodes with NVIDIA's devices: {counted}"


def _world(stack: Stack) -> str:
    if stack.nri:
        return "the GPU operator's NRI plugin injects devices"
    if stack.cdi:
        return "the GPU operator's runtime class injects devices by CDI"
    return "the GPU operator sets up NVIDIA's runtime" if stack.policies else "no GPU operator"


def judge(stack: Stack) -> list[Finding]:
    """What keeps the devices of groups from their containers."""
    findings = [*_mute(stack.ledgers), *_runtime_class(stack)]
    if not stack.machines:
        return findings
    if stack.nri:
        return [*findings, *_by_plugin(stack)]
    classes = [each.metadata.name for each in stack.classes if each.handler == vendors.NVIDIA.name]
    if stack.cdi and not stack.runtime_class and classes:
        what = "the operator's runtime isn't the default, and deviceshare sets no runtimeClassName in pods of groups"
        cure = f"helm upgrade … --set handover.runtimeClassName={classes[0]},agent.runtimeClassName={classes[0]}"
        findings.append(Finding(WARNING, f"{what}: unless they name one, they see no GPU", f"{cure}; {_DOCS}"))
    if stack.cdi:
        cure = f"helm upgrade … --set handover.style=cdi; {_DOCS}"
        findings += _bare(stack, "a CDI runtime doesn't start a container that is given numbers", cure)
    return findings


def _bare(stack: Stack, why: str, cure: str) -> Iterable[Finding]:
    """Nodes that receive indices or UUIDs where only CDI names work, by setting or label; or that may yet."""
    styles = {
        ledger.node: ledger.status.handover.get(vendors.NVIDIA.name, "")
        for ledger in stack.ledgers
        if _has_nvidia(ledger)
    }
    if nodes := sorted(
        node for node, words in styles.items() if words != handover.NONE and not handover.is_kind(words)
    ):
        yield Finding(
            PROBLEM, f"devices are handed over by number or UUID, but {why}: {listed(nodes)}", _unlabelled(stack, cure)
        )
    elif stack.style != handover.CDI:
        new = " until its agent has reported" if stack.style == handover.AUTO else ""
        mark = WARNING if stack.style == handover.AUTO else PROBLEM
        yield Finding(
            mark, f"handover.style is {stack.style}: a new node is given numbers or UUIDs{new}, but {why}", cure
        )


def _has_nvidia(ledger: NodeDevices) -> bool:
    return any(vendors.NVIDIA.supplies(device.resource) for device in ledger.devices)


def _unlabelled(stack: Stack, cure: str) -> str:
    """The cure for nodes whose label overrules the setting; where the setting is right, only labels are to change."""
    label = f"kubectl label node NODE {contract.HANDOVER_LABEL}-"
    return f"{label}; {_DOCS}" if stack.style == handover.CDI else f"where a node's label sets it, {label}; else {cure}"


def _by_plugin(stack: Stack) -> Iterable[Finding]:
    cure = f"helm upgrade … --set handover.nri=true; {_DOCS}"
    yield from _bare(stack, "NVIDIA's NRI plugin takes CDI names only, so pods there see no GPU", cure)
    old = [name for each in stack.toolkits if (name := _version_of(each)) and _numbers(name) < (1, 20, 0)]
    if old:
        what = f"NVIDIA's NRI plugin serves pods of other namespaces from 1.20.0 on, and this is {listed(old)}"
        yield Finding(
            PROBLEM, what, "helm upgrade … of the GPU operator to 26.7.0 or later, or set its toolkit.version"
        )
    able = {machine.metadata.name: injects_by_nri(machine.status.node_info.runtime) for machine in stack.machines}
    unable = [name for name, can in able.items() if can is False]
    unknown = [name for name, can in able.items() if can is None]
    if unable:
        what = f"containerd there can't inject CDI devices for an NRI plugin: {listed(unable)}"
        yield Finding(PROBLEM, what, "update containerd to 1.7.30, or to 2.1.0 or later; 2.0 drops them")
    if unknown:
        what = f"it isn't known whether the runtime there injects CDI devices for an NRI plugin: {listed(unknown)}"
        yield Finding(UNTESTED, what, f"kubectl apply -f {assets.examples() / 'nvidia-smi.yaml'} and see its log")


def _runtime_class(stack: Stack) -> Iterable[Finding]:
    name = stack.runtime_class
    if name and all(each.metadata.name != name for each in stack.classes):
        what = f"handover.runtimeClassName is {name!r}, and there is no such RuntimeClass: pods of groups are refused"
        gone = " (the operator deletes its own where its NRI plugin is enabled)" if stack.nri else ""
        cure = "helm upgrade … --set handover.runtimeClassName=" + (",handover.nri=true" if stack.nri else "CLASS")
        yield Finding(PROBLEM, f"{what}{gone}", f"{cure}; {_DOCS}")


def _mute(ledgers: Iterable[NodeDevices]) -> Iterable[Finding]:
    """Nodes whose devices can't be handed over, by reason."""
    found: dict[str, list[str]] = {}
    for ledger in ledgers:
        for each in ledger.status.withheld:
            if handover.mute(each.devices, ledger.status.handover):
                found.setdefault(f"{each.resource}: {each.text}", []).append(ledger.node)
    for what, nodes in sorted(found.items()):
        yield Finding(PROBLEM, f"no group gets {what}: {listed(nodes)}", _DOCS)


def injects_by_nri(runtime: str) -> bool | None:
    """Whether this runtime, as in `containerd://1.7.30`, gives containers the CDI devices that NRI plugins name.

    None where that isn't known.
    """
    name, _, version = runtime.partition("://")
    numbers = _numbers(version)
    if name != "containerd" or not numbers:
        return None
    return (1, 7, 30) <= numbers < (2, 0, 0) or numbers >= (2, 1, 0)


def _version_of(toolkit: Rollout) -> str:
    """The toolkit's version by its image's tag; "" where it has none."""
    images = [each.image for each in toolkit.spec.template.spec.containers if "toolkit" in each.image]
    tags = [image.rpartition(":")[2] for image in images if "@" not in image]
    return next((tag for tag in tags if _numbers(tag)), "")


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"v?(\d+)\.(\d+)\.(\d+)", version)
    return tuple(map(int, found.groups())) if found else ()
