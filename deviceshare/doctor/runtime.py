"""The container runtime: whether it reads our variable, and nothing that overrules it.

Whether a container sees the devices of its group is in the end up to NVIDIA's container toolkit, whose settings are
files on the nodes: `/etc/nvidia-container-runtime/config.toml`. They can't be read through the API server.
https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/
"""

import tomllib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from deviceshare.doctor.findings import PROBLEM, UNTESTED, WARNING, Check, Finding, check, listed, unread
from deviceshare.doctor.kinds import MACHINES, RUNTIME_CLASSES, NodeSoftware, RuntimeClass
from deviceshare.domain import contract
from deviceshare.loops.ports import ApiError

if TYPE_CHECKING:
    from deviceshare.kube.api import Api

NVIDIA: Final = "nvidia"
FILE: Final = "/etc/nvidia-container-runtime/config.toml"
ENV_OFF: Final = "accept-nvidia-visible-devices-envvar-when-unprivileged"
MOUNTS_ON: Final = "accept-nvidia-visible-devices-as-volume-mounts"
SWARM: Final = "swarm-resource"
BOTTLEROCKET: Final = "Bottlerocket"
"""Its toolkit is set up for NVIDIA's device plugin alone: https://bottlerocket.dev/en/os/latest/#/api/settings/"""


async def examine(api: "Api", settings: str | None) -> Check:
    """`settings` is the text of a node's file, if who asks has brought it."""
    findings = judge_settings(settings) if settings is not None else []
    try:
        shared = [
            machine
            for machine in await api.list(MACHINES, label_selector=f"{contract.MODE_LABEL}={contract.MODE_SHARED}")
            if machine.has_nvidia
        ]
        classes = await api.list(RUNTIME_CLASSES)
    except ApiError as error:
        return check("runtime", "", [*findings, unread("runtime classes", error)])
    if not shared:
        return check("runtime", "no shared node has NVIDIA's devices", findings)
    findings += [*judge_handlers(shared, classes), *judge_systems(shared)]
    if settings is None:
        how = f"ssh NODE cat {FILE} | deviceshare doctor --runtime-config -"
        findings.append(Finding(UNTESTED, "the settings of NVIDIA's toolkit are files on the nodes", how))
    return check("runtime", "nothing overrules or ignores the groups' variables", findings)


def judge_handlers(machines: Iterable[NodeSoftware], classes: Sequence[RuntimeClass]) -> list[Finding]:
    """Whether pods can ask for NVIDIA's runtime where it isn't the default. Nodes tell what they have from 1.30 on."""
    named = [each.metadata.name for each in classes if each.handler == NVIDIA]
    have = [each.metadata.name for each in machines if NVIDIA in each.handlers]
    lack = [each.metadata.name for each in machines if each.handlers and NVIDIA not in each.handlers]
    findings = []
    if have and not named:
        what = f"nodes have the runtime nvidia, but no RuntimeClass names it: {listed(have)}"
        cure = "kubectl create -f - with kind RuntimeClass, apiVersion node.k8s.io/v1, metadata.name and handler nvidia"
        findings.append(Finding(WARNING, f"{what}; unless it is the default, containers see no GPU", cure))
    if lack and named:
        what = f"the RuntimeClass {listed(named)} names a runtime that these nodes lack: {listed(lack)}"
        cure = "install NVIDIA's container toolkit there: nvidia-ctk runtime configure --runtime=containerd"
        findings.append(Finding(WARNING, what, cure))
    return findings


def judge_systems(machines: Iterable[NodeSoftware]) -> list[Finding]:
    """Systems that are known to ignore the variable unless told otherwise."""
    names = [each.metadata.name for each in machines if BOTTLEROCKET in each.status.node_info.os_image]
    if not names:
        return []
    what = f"Bottlerocket ignores NVIDIA_VISIBLE_DEVICES of unprivileged containers by default: {listed(names)}"
    key = "settings.nvidia-container-runtime.visible-devices"
    return [Finding(WARNING, what, f"apiclient set {key}-envvar-when-unprivileged=true {key}-as-volume-mounts=false")]


def judge_settings(text: str) -> list[Finding]:
    """What a node's config.toml does to the variables; absent keys have the toolkit's defaults, which suit us."""
    try:
        settings: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return [Finding(PROBLEM, f"that is no {FILE}: {error}", f"ssh NODE cat {FILE}")]
    restart = "and restart the container runtime"
    findings = []
    if settings.get(ENV_OFF) is False:
        what = f"{ENV_OFF}=false: unprivileged containers' variables are ignored, so pods of groups see no GPU"
        findings.append(Finding(PROBLEM, what, f"nvidia-ctk config --in-place --set {ENV_OFF}=true {restart}"))
    findings += _by_cdi(settings)
    if settings.get(MOUNTS_ON) is True:
        what = f"{MOUNTS_ON}=true: a container may ask for devices by mounts, and these overrule the variable"
        findings.append(Finding(WARNING, what, f"nvidia-ctk config --in-place --set {MOUNTS_ON}=false {restart}"))
    if swarm := settings.get(SWARM):
        what = f"{SWARM}={swarm!r}: where a container has this variable, it overrules NVIDIA_VISIBLE_DEVICES"
        findings.append(Finding(WARNING, what, f"remove {SWARM} from {FILE} {restart}"))
    return findings


def _by_cdi(settings: Any) -> list[Finding]:
    """A runtime that takes CDI names only; the default kind is what it puts before names that aren't qualified."""
    try:
        runtime = settings["nvidia-container-runtime"]
        if runtime["mode"] != "cdi":
            return []
        kind = runtime.get("modes", {}).get("cdi", {}).get("default-kind", "nvidia.com/gpu")
    except (KeyError, TypeError, AttributeError):
        return []
    what = (
        f'mode="cdi", default-kind={kind!r}: a container that is told a number or a UUID starts only if {kind} knows it'
    )
    cure = "hand devices over by CDI names: helm upgrade … --set handover.style=cdi; see docs/handover.md"
    return [Finding(WARNING, f"{what}; the operator's management.nvidia.com/gpu knows all only", cure)]
