"""The canaries: a group of one free device and a pod of it, created, bound by scheduler and extender, judged, deleted.

The pod of the first runs nothing: its image is never pulled. That of the GPU canary runs deviceshare's own image, which
opens every GPU that NVML shows and reports them in its termination message; it is followed to the end of its container.
Group and pod are deleted whatever happens, at Ctrl-C too; what a killed doctor leaves, the next one finds by label.
"""

import asyncio
import math
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

import structlog
from msgspec import Struct, field

from deviceshare import assets
from deviceshare.doctor.findings import PROBLEM, UNTESTED, WARNING, Finding, Verdict, about, logs
from deviceshare.doctor.kinds import RUNTIME_CLASSES, Installation
from deviceshare.domain import contract, vendors
from deviceshare.domain.objects.devices import Devices
from deviceshare.domain.objects.groups import BOUND, Group
from deviceshare.domain.objects.object_decoder import NamedObject
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.usage import MESSAGE_PATH, Sighting, decode
from deviceshare.domain.placement.device_states import device_states
from deviceshare.domain.placement.holds import CONFINED, idle_pod
from deviceshare.domain.placement.join_obstacles import behind_gates
from deviceshare.domain.wording import listed
from deviceshare.loops.kinds import EVENTS, GROUPS, NODE_DEVICES, NODES, PODS, Event
from deviceshare.loops.ports import ApiError, Cluster, Forbidden, Kind, NotFound

T = TypeVar("T")

log = structlog.get_logger(__name__)

_LABELS: Final = {"app.kubernetes.io/name": "deviceshare-canary"}
SELECTOR: Final = "app.kubernetes.io/name=deviceshare-canary"
POLL_SECONDS: Final = 0.3
BIND_SECONDS: Final = 30.0
"""A busy scheduler takes seconds; after this the pod counts as not schedulable."""
STATUS_SECONDS: Final = 15.0
CLEAN_SECONDS: Final = 30.0
NOTHING_FREE: Final = Finding(
    UNTESTED, "no device is free, so no canary was created", "run doctor again when one is; see deviceshare inspect"
)

GPU: Final = vendors.NVIDIA.resource
LIFE_SECONDS: Final = 180
"""When the kubelet ends the pod of a GPU canary, image pull included, should no doctor be left to delete it."""
LAND_POLL_SECONDS: Final = 1.0
LAND_SECONDS: Final = 150.0
"""From the binding to the end of the container; the image has to be pulled where deviceshare doesn't run."""
STUCK_SECONDS: Final = 10.0
"""How long a container may fail to start before it is reported: the kubelet retries some of these."""
_USER: Final = 65534
"""`nobody` of most distributions: the image of --gpu-image is anybody's, and need not know deviceshare's user."""
_SEE: Final = "see docs/handover.md"
_IMAGE_REASONS: Final = frozenset(
    ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable")
)
_REFUSED_REASONS: Final = frozenset(("CreateContainerError", "CreateContainerConfigError", "RunContainerError"))
_NEVER_STARTED: Final = frozenset(("StartError", "ContainerCannotRun"))
_UNRESOLVABLE: Final = "unresolvable CDI devices"
"""Runtimes' error for a name that no CDI specification has; it has no code (cncf-tags/container-device-interface)."""


def pod(name: str, image: str = "") -> dict[str, Any]:
    """A pod of the group of this name, that even a strict namespace admits. Without an image it never runs anything.

    It tolerates what admission has every such pod tolerate, so that a taint that keeps pods away keeps it away, too.
    It requests no GPU of a device plugin.
    """
    container: dict[str, Any] = {
        "image": "deviceshare-canary:never-pulled",
        "imagePullPolicy": "Never",
        "resources": {each: {"cpu": "1m", "memory": "8Mi"} for each in ("requests", "limits")},
    }
    if image:
        container = {
            "image": image,
            "imagePullPolicy": "IfNotPresent",
            "args": ["smi", f"--report={MESSAGE_PATH}"],
            "terminationMessagePath": MESSAGE_PATH,
            "env": [{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility"}],
            "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "256Mi"}},
        }
    container |= {"name": "canary", "securityContext": {**CONFINED, "readOnlyRootFilesystem": True}}
    metadata = {"name": name, "labels": {**_LABELS}, "annotations": {contract.GROUP: name}}
    spec = {
        "schedulerName": contract.SCHEDULER_NAME,
        "restartPolicy": "Never",
        "securityContext": {"runAsNonRoot": True, "runAsUser": _USER, "seccompProfile": {"type": "RuntimeDefault"}},
        **({"activeDeadlineSeconds": LIFE_SECONDS} if image else {}),
    }
    return idle_pod(metadata, spec, **container)


async def examine(api: Cluster, namespace: str, release: str) -> Verdict:
    """Runs a canary that runs nothing, in `namespace`. Raises ApiError."""
    findings = judge_leftovers(await api.list(GROUPS, label_selector=SELECTOR))
    resource = await free(api)
    said, found = await _run(api, namespace, release, resource) if resource else ("", [NOTHING_FREE])
    return said, [*findings, *found]


async def examine_gpu(api: Cluster, namespace: str, ours: Installation, image: str) -> Verdict:
    """Runs a GPU canary, by default with our Deployment's image, if it could open something. Raises ApiError."""
    own, obstacle = ours.container(contract.NAME), None
    image, name = image or (own.image if own else ""), ours.flag("runtime-class")
    if not image:
        what = f"no Deployment {contract.NAME} was found, whose image the GPU canary runs"
        cure = "name an image of deviceshare with --gpu-image, or the namespace of its release with --release-namespace"
        obstacle = Finding(UNTESTED, what, cure)
    elif name and all(each.metadata.name != name for each in await api.list(RUNTIME_CLASSES)):
        what = f"pods of groups are given the RuntimeClass {name!r}, which doesn't exist, so each is refused"
        cure = f"set handover.runtimeClassName to an existing RuntimeClass, or to none; {_SEE}"
        obstacle = Finding(PROBLEM, what, cure)
    elif not await free(api, GPU):
        others = {device.resource for ledger in await api.list(NODE_DEVICES) for device in ledger.devices}
        what = f"a canary can open {vendors.NVIDIA.label}s only, and the shared nodes have {listed(sorted(others))}"
        obstacle = Finding(UNTESTED, what, "") if others and GPU not in others else NOTHING_FREE
    return ("", [obstacle]) if obstacle else await _run(api, namespace, ours.namespace, GPU, image)


async def _run(api: Cluster, namespace: str, release: str, resource: str, image: str = "") -> Verdict:
    name = f"deviceshare-canary-{secrets.token_hex(4)}"
    said = ""
    findings: Iterable[Finding] = ()
    try:
        group = {"metadata": {"name": name, "labels": _LABELS}, "spec": {"resources": {resource: 1}}}
        await api.create(GROUPS, group)
        await api.create(PODS, pod(name, image), namespace)
        seen, findings = await _follow(api, namespace, release, name, resource)
        said = f"a pod of a new group got {resource} on {seen.node}"
        if image and seen.node and not findings:
            said, findings = await _land(api, namespace, seen)
    except Forbidden as error:
        cure = "run doctor as a user who may create groups and pods, or with --no-canary"
        findings = [Finding(UNTESTED, f"the canary was refused: {error}", cure)]
    except ApiError as error:
        findings = [Finding(PROBLEM, f"the canary was refused: {error}", "see the findings above")]
    finally:
        left = await _clean(api, namespace, name)
    return said, [*findings, *left]


async def _follow(api: Cluster, namespace: str, release: str, name: str, resource: str) -> tuple[Pod, list[Finding]]:
    seen = await polled(lambda: api.get(PODS, name, namespace), lambda pod: bool(pod.spec.node_name), BIND_SECONDS)
    if not seen.node and not await free(api, resource):
        return seen, [NOTHING_FREE]  # another group took the last device meanwhile
    if findings := judge_pod(seen, release):
        return seen, findings
    look = partial(api.get, GROUPS, name)
    known = await polled(look, lambda group: not judge_group(group, seen, release), STATUS_SECONDS)
    return seen, judge_group(known, seen, release)


async def polled(
    look: Callable[[], Awaitable[T]], done: Callable[[T], bool], seconds: float, *, pause: float = POLL_SECONDS
) -> T:
    """What `look` returns as soon as it is `done`, or when `seconds` have passed."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        seen = await look()
        if done(seen) or loop.time() > deadline:
            return seen
        await asyncio.sleep(pause)


async def _clean(api: Cluster, namespace: str, name: str) -> list[Finding]:
    """Deletes the pod, then its group; retries with a deadline, as the webhook may still see the pod in its mirror."""
    error: ApiError | None = None
    try:
        async with asyncio.timeout(CLEAN_SECONDS):
            for where, kind in ((namespace, PODS), ("", GROUPS)):
                while True:
                    try:
                        await api.delete(kind, name, where)
                    except NotFound:
                        break
                    except ApiError as refused:
                        error = refused
                    await asyncio.sleep(POLL_SECONDS)
        return []
    except TimeoutError:
        log.error("Left the canary behind", name=name, error=str(error))
        cure = f"kubectl -n {namespace} delete pod {name} --ignore-not-found; kubectl delete sdg {name}"
        return [Finding(WARNING, f"the canary {name} could not be deleted: {error or 'it is still there'}", cure)]


async def free(api: Cluster, wanted: str = "") -> str:
    """A resource with a device free for a group now, only `wanted` if that is given; or "". Raises ApiError."""
    nodes, ledgers = await api.list(NODES), await api.list(NODE_DEVICES)
    able = {node.metadata.name for node in nodes if node.shared and node.ready and not node.spec.unschedulable}
    states = (state for ledger in ledgers if ledger.node in able for state in device_states(ledger))
    free = {state.device.resource for state in states if state.free}
    return min(free & {wanted} if wanted else free, default="")


def judge_pod(seen: Pod, release: str) -> list[Finding]:
    """Why the canary's pod isn't bound with devices; no finding when it is."""
    mark, cure, scheduler = PROBLEM, logs(release, contract.NAME), logs(release, "kube-scheduler")
    tried = next((each.message for each in seen.status.conditions if each.type == "PodScheduled"), None)
    if seen.placed_on:
        why = f": {seen.refusal.message}" if seen.refusal else ", nor said why"
        unbound = f"{seen.spec.scheduler_name} has not bound it{why}"
        what = f"deviceshare placed the canary on {seen.placed_on}, but {unbound}"
        cure = "see the logs of the cluster's kube-scheduler"
    elif seen.awaits_placement:
        what = "the canary is behind deviceshare's scheduling gate: the leader found no node for it, or none leads"
    elif seen.node and seen.devices:
        return []
    elif seen.node:
        what = f"the canary was bound to {seen.node} without devices, not by deviceshare's extender"
        cure = f"give the profile {contract.SCHEDULER_NAME} of kube-scheduler the extender: docs/installation.md"
    elif seen.gates:
        mark, cure = UNTESTED, "name another namespace: --namespace NAME"
        what = f"something in {seen.metadata.namespace} holds pods back: the canary {behind_gates([seen])}"
    elif tried is None:
        what = f"no kube-scheduler schedules pods of {contract.SCHEDULER_NAME}"
        what, cure = f"{what}: the canary has no condition PodScheduled", scheduler
    elif "nodes are available" in tried:  # kube-scheduler's text when it has tried all of them
        what, cure = f"the canary was not placed: {tried}", "deviceshare inspect"
    else:
        what = f"kube-scheduler could not ask the extender: {tried}"
        cure = f"{scheduler}; check that deviceshare in the same pod is ready"
    return [Finding(mark, what, cure)]


def judge_group(seen: Group, bound: Pod, release: str) -> list[Finding]:
    """Whether the leader updated the group's status after the pod was bound."""
    if seen.status.phase == BOUND and seen.node == bound.node:
        return []
    what = f"the canary is bound, but its group's phase is still {seen.status.phase or 'empty'}"
    return [Finding(PROBLEM, f"{what}: no leader writes statuses", logs(release, contract.NAME))]


def judge_leftovers(groups: Sequence[Group]) -> list[Finding]:
    """Canaries that a killed doctor left behind."""
    cure = f"kubectl delete pods -A -l {SELECTOR}; kubectl delete sdg -l {SELECTOR}"
    what = "a canary of another doctor holds a device; if none is running now, delete it"
    return about((each.name for each in groups), WARNING, what, cure)


# The container of a GPU canary, as its kubelet reports it


class Standstill(Struct, frozen=True, rename="camel"):
    """Why a container doesn't run: not yet, or not any more."""

    reason: str = ""
    message: str = ""
    exit_code: int = 0

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}" if self.message else self.reason


class CanaryContainer(Struct, frozen=True):
    state: dict[str, Standstill] = field(default_factory=dict)
    """By its name: `waiting`, `running` or `terminated`."""


class CanaryStatus(Standstill, frozen=True):
    phase: str = ""
    container_statuses: list[CanaryContainer] = field(default_factory=list)


class CanaryPod(NamedObject, frozen=True):
    """The pod as its kubelet reports it."""

    status: CanaryStatus = field(default_factory=CanaryStatus)

    def state(self, name: str) -> Standstill | None:
        """Why its container is `waiting`, or `terminated`; None where it is not."""
        return next((each.state.get(name) for each in self.status.container_statuses), None)

    @property
    def stuck(self) -> bool:
        """Whether the kubelet reports why the container can't start; some of these it retries."""
        waiting = self.state("waiting")
        return waiting is not None and waiting.reason in _IMAGE_REASONS | _REFUSED_REASONS

    @property
    def over(self) -> bool:
        return self.state("terminated") is not None or self.status.phase in ("Succeeded", "Failed")


CANARIES: Final = Kind("v1", "Pod", "pods", CanaryPod, namespaced=True)


async def _land(api: Cluster, namespace: str, bound: Pod) -> Verdict:
    """Waits until the canary's container has ended or can't start, and judges what it saw."""
    name, now = bound.metadata.name, asyncio.get_running_loop().time
    patience = math.inf

    def is_over(seen: CanaryPod) -> bool:
        nonlocal patience
        patience = min(patience, now() + STUCK_SECONDS) if seen.stuck else patience
        return seen.over or (seen.stuck and now() > patience)

    try:
        look = partial(api.get, CANARIES, name, namespace)
        seen = await polled(look, is_over, LAND_SECONDS, pause=LAND_POLL_SECONDS)
    except NotFound:
        gone = "the canary was deleted by somebody else before it reported"
        return "", [Finding(UNTESTED, gone, "run doctor again")]
    events: list[Event] = []
    if not seen.state("terminated"):
        with suppress(ApiError):  # events only add detail
            events = await api.list(EVENTS, namespace=namespace, field_selector=f"involvedObject.name={name}")
    said = f"a container on {bound.node} opened the GPU of its group, and sees no other"
    return said, judge_container(seen, bound.devices, events)


def judge_container(seen: CanaryPod, given: Devices, events: Sequence[Event] = ()) -> list[Finding]:
    """What keeps the GPU from the container of a bound pod; no finding where it opened just those it was given."""
    ended, waiting, mark = seen.state("terminated"), seen.state("waiting"), UNTESTED
    failed = next((each.message for each in events if each.reason == "FailedCreatePodSandBox"), "")
    if ended and ended.reason in _NEVER_STARTED:
        return [_refused(seen, ended.message or ended.reason)]
    if ended:
        if sighting := decode(ended.message):
            return judge_sighting(sighting, given)
        what = f"the canary's container reported nothing: {ended.reason or 'it ended'}, exit code {ended.exit_code}"
        cure = "name an image of this release of deviceshare with --gpu-image"
    elif waiting and waiting.reason in _IMAGE_REASONS:
        what = f"the canary's image can't be pulled: {waiting!s}"
        cure = "name another image with --gpu-image, or a namespace that has its pull secret with --namespace"
    elif waiting and waiting.reason in _REFUSED_REASONS:
        return [_refused(seen, str(waiting))]
    elif failed:
        mark, what = PROBLEM, f"the node can't create the canary's sandbox: {failed}"
        cure = "set handover.runtimeClassName to a RuntimeClass whose handler the node's runtime has, or to none"
        cure = f"{cure}; {_SEE}"
    else:
        why = seen.status.message or seen.status.reason or str(waiting or "") or "its kubelet reports nothing"
        what = f"the canary's container didn't start and end in time: {why}"
        cure = f"kubectl apply -f {assets.examples() / 'nvidia-smi.yaml'}; kubectl describe pod nvidia-smi"
    return [Finding(mark, what, cure)]


def judge_sighting(seen: Sighting, given: Devices) -> list[Finding]:
    """What the container saw, compared with what its pod was given."""
    named = {device.uuid for device in given}
    cure = f"find what else injects devices on the node (privileged runtimes, {vendors.NVIDIA.env} in hooks); {_SEE}"
    if not seen.variable:
        what = f"{vendors.NVIDIA.env} is {'not set' if seen.variable is None else 'empty'} in the canary's container"
        cure = "check that no other webhook or admission policy changes its environment afterwards: kubectl get"
        cure = f"{cure} mutatingwebhookconfigurations"
    elif seen.silent:
        what = f"the canary was shown a GPU that it can't open: {'; '.join(seen.silent)}"
        cure = "run nvidia-smi on the node"
    elif not seen.devices:
        return [_blind(seen)]
    elif named == set(seen.devices) or ("" in named and len(seen.devices) == len(given)):
        return []
    elif "" in named:  # claimed by index: no agent has reported their UUIDs
        what = f"the canary sees {len(seen.devices)} GPUs, {listed(seen.devices)}, and was given {len(given)}"
    else:
        what = f"the canary sees {listed(seen.devices)}, and was given {listed(sorted(named))}"
    return [Finding(PROBLEM, what, cure)]


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
