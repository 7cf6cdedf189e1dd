"""The canary: a group of one free device and a pod of it, created, bound by scheduler and extender, judged, deleted.

The pod runs nothing: its image is never pulled. Group and pod are deleted whatever happens, at Ctrl-C too; what a
killed doctor leaves, the next one finds by label.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import structlog

from deviceshare.doctor.findings import PROBLEM, UNTESTED, WARNING, Finding, Verdict, about, logs
from deviceshare.domain import contract
from deviceshare.domain.objects.groups import BOUND, Group
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement.device_states import device_states
from deviceshare.domain.placement.join_obstacles import behind_gates
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, NODES, PODS
from deviceshare.loops.ports import ApiError, Cluster, Forbidden, NotFound

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


def pod(name: str) -> dict[str, Any]:
    """A pod of the group of this name, that even a strict namespace admits, and that never runs anything.

    It tolerates what admission has every such pod tolerate, so that a taint that keeps pods away keeps it away, too.
    """
    container = {
        "name": "canary",
        "image": "deviceshare-canary:never-pulled",
        "imagePullPolicy": "Never",
        "resources": {each: {"cpu": "1m", "memory": "8Mi"} for each in ("requests", "limits")},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }
    return {
        "metadata": {"name": name, "labels": {**_LABELS}, "annotations": {contract.GROUP: name}},
        "spec": {
            "schedulerName": contract.SCHEDULER_NAME,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "runAsUser": 65534, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
        },
    }


async def examine(api: Cluster, namespace: str, release: str) -> Verdict:
    """Runs a canary that runs nothing, in `namespace`. Raises ApiError."""
    findings = judge_leftovers(await api.list(GROUPS, label_selector=SELECTOR))
    if resource := await free(api):
        said, found = await run(api, namespace, release, resource)
        return said, [*findings, *found]
    return "", [*findings, NOTHING_FREE]


async def run(
    api: Cluster,
    namespace: str,
    release: str,
    resource: str,
    *,
    make: Callable[[str], dict[str, Any]] = pod,
    land: Callable[[Pod], Awaitable[Verdict]] | None = None,
) -> Verdict:
    """Runs the pod that `make` returns for a name; `land` judges one that was bound as it should be."""
    name = f"deviceshare-canary-{secrets.token_hex(4)}"
    said = ""
    findings: Iterable[Finding] = ()
    try:
        group = {"metadata": {"name": name, "labels": _LABELS}, "spec": {"resources": {resource: 1}}}
        await api.create(GROUPS, group)
        await api.create(PODS, make(name), namespace)
        seen, findings = await _follow(api, namespace, release, name, resource)
        said = f"a pod of a new group got {resource} on {seen.node}"
        if land and seen.node and not findings:
            said, findings = await land(seen)
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
    known = await polled(
        lambda: api.get(GROUPS, name), lambda group: not judge_group(group, seen, release), STATUS_SECONDS
    )
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
    """As `free_resource`, for the cluster as it is now. Raises ApiError."""
    return free_resource(await api.list(NODES), await api.list(NODE_DEVICES), wanted)


def free_resource(nodes: Sequence[Node], ledgers: Sequence[NodeDevices], wanted: str = "") -> str:
    """A resource with a device free for a group now, only `wanted` if that is given; or ""."""
    able = {node.metadata.name for node in nodes if node.shared and node.ready and not node.spec.unschedulable}
    states = (state for ledger in ledgers if ledger.node in able for state in device_states(ledger))
    free = {state.device.resource for state in states if state.free}
    return min(free & {wanted} if wanted else free, default="")


def judge_pod(seen: Pod, release: str) -> list[Finding]:
    """Why the canary's pod isn't bound with devices; no finding when it is."""
    if seen.placed_on:
        why = f": {seen.refusal.message}" if seen.refusal else ", nor said why"
        what = f"deviceshare placed the canary on {seen.placed_on}, but {seen.spec.scheduler_name} has not bound it"
        return [Finding(PROBLEM, what + why, "see the logs of the cluster's kube-scheduler")]
    if seen.awaits_placement:
        what = "the canary is behind deviceshare's scheduling gate: the leader found no node for it, or none leads"
        return [Finding(PROBLEM, what, logs(release, contract.NAME))]
    if seen.node:
        if seen.devices:
            return []
        what = f"the canary was bound to {seen.node} without devices, not by deviceshare's extender"
        cure = f"give the profile {contract.SCHEDULER_NAME} of kube-scheduler the extender: docs/installation.md"
        return [Finding(PROBLEM, what, cure)]
    if seen.gates:
        what = f"something in {seen.metadata.namespace} holds pods back: the canary {behind_gates([seen])}"
        return [Finding(UNTESTED, what, "name another namespace: --namespace NAME")]
    tried = next((each for each in seen.status.conditions if each.type == "PodScheduled"), None)
    scheduler = logs(release, "kube-scheduler")
    if tried is None:
        what = f"no kube-scheduler schedules pods of {contract.SCHEDULER_NAME}"
        return [Finding(PROBLEM, f"{what}: the canary has no condition PodScheduled", scheduler)]
    if "nodes are available" not in tried.message:  # kube-scheduler's text when it has tried all of them
        what = f"kube-scheduler could not ask the extender: {tried.message}"
        return [Finding(PROBLEM, what, f"{scheduler}; check that deviceshare in the same pod is ready")]
    return [Finding(PROBLEM, f"the canary was not placed: {tried.message}", "deviceshare inspect")]


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
