"""A canary's run: created, bound by scheduler and extender, noticed by the leader, deleted.

Group and pod are deleted whatever happens, at Ctrl-C too; what a killed doctor leaves, the next one finds by label.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Final

import structlog

from deviceshare.doctor import canary
from deviceshare.doctor.findings import PROBLEM, UNTESTED, WARNING, Check, Finding, check, unread
from deviceshare.domain.objects.pods import Pod
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, NODES, PODS
from deviceshare.loops.ports import ApiError, Cluster, Forbidden, Kind, NotFound

Make = Callable[[str, str], dict[str, Any]]
Land = Callable[[Pod], Awaitable[tuple[str, list[Finding]]]]

log = structlog.get_logger(__name__)

POLL_SECONDS: Final = 0.3
BIND_SECONDS: Final = 30.0
"""A busy scheduler takes seconds; after this the pod counts as not schedulable."""
STATUS_SECONDS: Final = 15.0
CLEAN_SECONDS: Final = 30.0


async def examine(api: Cluster, namespace: str, release: str) -> Check:
    """Runs a canary that runs nothing, in `namespace`."""
    try:
        findings = canary.judge_leftovers(await api.list(GROUPS, label_selector=canary.SELECTOR))
        resource = await free(api)
    except ApiError as error:
        return check("canary", "", [unread("groups, nodes and ledgers", error)])
    if not resource:
        return check("canary", "", [*findings, NOTHING_FREE])
    said, found = await run(api, namespace, release, resource)
    return check("canary", said, [*findings, *found])


NOTHING_FREE: Final = Finding(
    UNTESTED, "no device is free, so no canary was created", "run doctor again when one is; see deviceshare inspect"
)


async def run(
    api: Cluster, namespace: str, release: str, resource: str, *, make: Make = canary.pod, land: Land | None = None
) -> tuple[str, list[Finding]]:
    """The text for a healthy outcome, and the findings. `make` is called with the names of the pod and of its group;
    `land` judges a pod that was bound as it should be, and its text replaces the usual one."""
    name = f"deviceshare-canary-{secrets.token_hex(4)}"
    said, findings = "", list[Finding]()
    try:
        try:
            await api.create(GROUPS, canary.group(name, resource))
            await api.create(PODS, make(name, name), namespace)
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
    loop = asyncio.get_running_loop()
    deadline = loop.time() + BIND_SECONDS
    while True:
        seen = await api.get(PODS, name, namespace)
        if seen.spec.node_name or loop.time() > deadline:
            break
        await asyncio.sleep(POLL_SECONDS)
    if not seen.node and not await free(api, resource):
        return seen, [NOTHING_FREE]  # another group took the last device meanwhile
    if findings := canary.judge_pod(seen, release):
        return seen, findings
    deadline = loop.time() + STATUS_SECONDS
    while findings := canary.judge_group(await api.get(GROUPS, name), seen, release):
        if loop.time() > deadline:
            break
        await asyncio.sleep(POLL_SECONDS)
    return seen, findings


async def _clean(api: Cluster, namespace: str, name: str) -> list[Finding]:
    """Deletes the pod, then its group; retries with a deadline, as the webhook may still see the pod in its mirror."""
    error: ApiError | None = None
    places: tuple[tuple[str, Kind[Any]], ...] = ((namespace, PODS), ("", GROUPS))
    try:
        async with asyncio.timeout(CLEAN_SECONDS):
            for where, kind in places:
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
    """A resource with a free device, only `wanted` if that is given; or "". Raises ApiError."""
    return canary.free_resource(await api.list(NODES), await api.list(NODE_DEVICES), wanted)
