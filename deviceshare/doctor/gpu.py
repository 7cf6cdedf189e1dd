"""The GPU canary: a pod that opens its GPU, followed to the end of its container, and why it saw none, or others.

The pod runs deviceshare's own image, which opens every GPU that NVML shows and reports them in its termination message.
"""

import asyncio
import math
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from msgspec import Struct, field

from deviceshare import assets
from deviceshare.doctor import canary
from deviceshare.doctor.findings import PROBLEM, UNTESTED, Finding, Verdict
from deviceshare.doctor.kinds import RUNTIME_CLASSES, Installation
from deviceshare.domain import contract, vendors
from deviceshare.domain.objects.devices import Devices
from deviceshare.domain.objects.object_decoder import NamedObject
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.usage import MESSAGE_PATH, Sighting, decode
from deviceshare.domain.wording import listed
from deviceshare.loops.kinds import EVENTS, NODE_DEVICES, Event
from deviceshare.loops.ports import ApiError, Cluster, Kind, NotFound

RESOURCE: Final = vendors.NVIDIA.resource
LIFE_SECONDS: Final = 180
"""When the kubelet ends the pod, image pull included, should no doctor be left to delete it."""
POLL_SECONDS: Final = 1.0
LAND_SECONDS: Final = 150.0
"""From the binding to the end of the container; the image has to be pulled where deviceshare doesn't run."""
STUCK_SECONDS: Final = 10.0
"""How long a container may fail to start before it is reported: the kubelet retries some of these."""
_SEE: Final = "see docs/handover.md"
_IMAGE_REASONS: Final = frozenset(
    ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable")
)
_REFUSED_REASONS: Final = frozenset(("CreateContainerError", "CreateContainerConfigError", "RunContainerError"))
_NEVER_STARTED: Final = frozenset(("StartError", "ContainerCannotRun"))
_UNRESOLVABLE: Final = "unresolvable CDI devices"
"""Runtimes' error for a name that no CDI specification has; it has no code (cncf-tags/container-device-interface)."""


class Standstill(Struct, frozen=True, rename="camel"):
    """Why a container doesn't run: not yet, or not any more."""

    reason: str = ""
    message: str = ""
    exit_code: int = 0

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}" if self.message else self.reason


class CanaryState(Struct, frozen=True):
    waiting: Standstill | None = None
    terminated: Standstill | None = None


class CanaryContainer(Struct, frozen=True):
    state: CanaryState = CanaryState()


class CanaryStatus(Struct, frozen=True, rename="camel"):
    phase: str = ""
    reason: str = ""
    message: str = ""
    container_statuses: list[CanaryContainer] = field(default_factory=list)


class CanaryPod(NamedObject, frozen=True):
    """The pod as its kubelet reports it."""

    status: CanaryStatus = field(default_factory=CanaryStatus)

    @property
    def state(self) -> CanaryState:
        return next((each.state for each in self.status.container_statuses), CanaryState())

    @property
    def stuck(self) -> bool:
        """Whether the kubelet reports why the container can't start; some of these it retries."""
        waiting = self.state.waiting
        return waiting is not None and waiting.reason in _IMAGE_REASONS | _REFUSED_REASONS

    @property
    def over(self) -> bool:
        return self.state.terminated is not None or self.status.phase in ("Succeeded", "Failed")


CANARIES: Final = Kind("v1", "Pod", "pods", CanaryPod, namespaced=True)


def pod(name: str, image: str) -> dict[str, Any]:
    """The canary's pod, with a container that runs. It requests no GPU of a device plugin."""
    body = canary.pod(name)
    [container] = body["spec"]["containers"]
    container |= {
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "args": ["smi", f"--report={MESSAGE_PATH}"],
        "terminationMessagePath": MESSAGE_PATH,
        "env": [{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility"}],
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "256Mi"}},
    }
    body["spec"]["activeDeadlineSeconds"] = LIFE_SECONDS
    return body


async def examine(api: Cluster, namespace: str, ours: Installation, image: str) -> Verdict:
    """Runs a GPU canary in `namespace`, with `image` or that of our Deployment. Raises ApiError."""
    own = ours.container(contract.NAME)
    image = image or (own.image if own else "")
    if obstacle := await _obstacle(api, ours, image):
        return "", [obstacle]
    make, land = partial(pod, image=image), partial(_land, api, namespace)
    return await canary.run(api, namespace, ours.namespace, RESOURCE, make=make, land=land)


async def _obstacle(api: Cluster, ours: Installation, image: str) -> Finding | None:
    """Why no canary is sent: it has no image, the API server would refuse it, or it could open nothing."""
    if not image:
        what = f"no Deployment {contract.NAME} was found, whose image the GPU canary runs"
        cure = "name an image of deviceshare with --gpu-image, or the namespace of its release with --release-namespace"
        return Finding(UNTESTED, what, cure)
    name = ours.flag("runtime-class")
    if name and all(each.metadata.name != name for each in await api.list(RUNTIME_CLASSES)):
        what = f"pods of groups are given the RuntimeClass {name!r}, which doesn't exist, so each is refused"
        cure = f"set handover.runtimeClassName to an existing RuntimeClass, or to none; {_SEE}"
        return Finding(PROBLEM, what, cure)
    if await canary.free(api, RESOURCE):
        return None
    others = {device.resource for ledger in await api.list(NODE_DEVICES) for device in ledger.devices}
    if others and RESOURCE not in others:
        what = f"a canary can open {vendors.NVIDIA.label}s only, and the shared nodes have {listed(sorted(others))}"
        return Finding(UNTESTED, what, "")
    return canary.NOTHING_FREE


async def _land(api: Cluster, namespace: str, bound: Pod) -> Verdict:
    """Waits until the canary's container has ended or can't start, and judges what it saw."""
    name, now = bound.metadata.name, asyncio.get_running_loop().time
    patience = math.inf

    def is_over(seen: CanaryPod) -> bool:
        nonlocal patience
        patience = min(patience, now() + STUCK_SECONDS) if seen.stuck else patience
        return seen.over or (seen.stuck and now() > patience)

    try:
        seen = await canary.polled(
            lambda: api.get(CANARIES, name, namespace), is_over, LAND_SECONDS, pause=POLL_SECONDS
        )
    except NotFound:
        what = "the canary was deleted by somebody else before it reported"
        return "", [Finding(UNTESTED, what, "run doctor again")]
    events: list[Event] = []
    if not seen.state.terminated:
        with suppress(ApiError):  # events only add detail
            events = await api.list(EVENTS, namespace=namespace, field_selector=f"involvedObject.name={name}")
    said = f"a container on {bound.node} opened the GPU of its group, and sees no other"
    return said, judge(seen, bound.devices, events)


def judge(seen: CanaryPod, given: Devices, events: Sequence[Event] = ()) -> list[Finding]:
    """What keeps the GPU from the container of a bound pod; no finding where it opened just those it was given."""
    ended, waiting = seen.state.terminated, seen.state.waiting
    if ended:
        if ended.reason in _NEVER_STARTED:
            return [_refused(seen, ended.message or ended.reason)]
        if sighting := decode(ended.message):
            return judge_sighting(sighting, given)
        what = f"the canary's container reported nothing: {ended.reason or 'it ended'}, exit code {ended.exit_code}"
        return [Finding(UNTESTED, what, "name an image of this release of deviceshare with --gpu-image")]
    if waiting and waiting.reason in _IMAGE_REASONS:
        cure = "name another image with --gpu-image, or a namespace that has its pull secret with --namespace"
        return [Finding(UNTESTED, f"the canary's image can't be pulled: {waiting!s}", cure)]
    if waiting and waiting.reason in _REFUSED_REASONS:
        return [_refused(seen, str(waiting))]
    failed = next((each.message for each in events if each.reason == "FailedCreatePodSandBox"), "")
    if failed:
        what = f"the node can't create the canary's sandbox: {failed}"
        cure = "set handover.runtimeClassName to a RuntimeClass whose handler the node's runtime has, or to none"
        return [Finding(PROBLEM, what, f"{cure}; {_SEE}")]
    why = seen.status.message or seen.status.reason or str(waiting or "") or "its kubelet reports nothing"
    cure = f"kubectl apply -f {assets.examples() / 'nvidia-smi.yaml'}; kubectl describe pod nvidia-smi"
    return [Finding(UNTESTED, f"the canary's container didn't start and end in time: {why}", cure)]


def judge_sighting(seen: Sighting, given: Devices) -> list[Finding]:
    """What the container saw, compared with what its pod was given."""
    if not seen.variable:
        what = f"{vendors.NVIDIA.env} is {'not set' if seen.variable is None else 'empty'} in the canary's container"
        cure = "check that no other webhook or admission policy changes its environment afterwards: kubectl get"
        return [Finding(PROBLEM, what, f"{cure} mutatingwebhookconfigurations")]
    if not seen.devices and not seen.silent:
        return [_blind(seen)]
    named = {device.uuid for device in given}
    if seen.silent:
        what = f"the canary was shown a GPU that it can't open: {'; '.join(seen.silent)}"
        return [Finding(PROBLEM, what, "run nvidia-smi on the node")]
    if "" in named:  # claimed by index: no agent has reported their UUIDs
        if len(seen.devices) == len(given):
            return []
        what = f"the canary sees {len(seen.devices)} GPUs, {listed(seen.devices)}, and was given {len(given)}"
    elif named == set(seen.devices):
        return []
    else:
        what = f"the canary sees {listed(seen.devices)}, and was given {listed(sorted(named))}"
    cure = f"find what else injects devices on the node (privileged runtimes, {vendors.NVIDIA.env} in hooks)"
    return [Finding(PROBLEM, what, f"{cure}; {_SEE}")]


def _blind(seen: Sighting) -> Finding:
    """Why a container whose variable names devices has none, judged by what the runtime left in it."""
    seen_as = f"the canary sees no GPU, with {vendors.NVIDIA.env}={seen.variable}"
    if seen.error and seen.library:
        return Finding(PROBLEM, f"{seen_as}: {seen.error}", "run nvidia-smi on the node")
    if seen.library:
        what = f"{seen_as}: the driver's library is present, but shows no device"
        return Finding(PROBLEM, what, f"check that the runtime injects device files, not only libraries; {_SEE}")
    if seen.variable == "void":
        what = f"{seen_as}: a runtime read the variable and injected nothing, not even the driver's library"
        cure = "check that the node's CDI specifications are those of its driver: nvidia-ctk cdi list"
    elif "=" in (seen.variable or ""):
        what = f"{seen_as}: nothing on the node resolved these CDI names"
        cure = "set handover.runtimeClassName, or handover.nri=true with NVIDIA's NRI plugin"
    else:
        what = f"{seen_as}: the runtime isn't NVIDIA's: no file of the driver is in the container"
        cure = "set handover.runtimeClassName, and handover.style=cdi where the GPU operator injects by CDI"
    return Finding(PROBLEM, what, f"{cure}; {_SEE}")


def _refused(seen: CanaryPod, text: str) -> Finding:
    what = f"the canary's container can't be created: {text}"
    if _UNRESOLVABLE not in text:
        return Finding(PROBLEM, what, f"see the log of the node's container runtime; {_SEE}")
    names = seen.metadata.annotations.get(vendors.NVIDIA.annotation, "")
    if "=" in names:
        cure = f"have a CDI specification on the node name {names}: nvidia-ctk cdi list, or set handover.cdiKind"
    else:
        cure = "the runtime prefixes its default-kind to what isn't a CDI name: set handover.style=cdi"
    return Finding(PROBLEM, what, f"{cure}; {_SEE}")
