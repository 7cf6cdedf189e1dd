"""A GPU canary's run: followed from its binding to the end of its container."""

import asyncio
from functools import partial
from typing import Final

from deviceshare.doctor import gpu
from deviceshare.doctor.canary_run import NOTHING_FREE, free, run
from deviceshare.doctor.findings import PROBLEM, UNTESTED, Check, Finding, check, unread
from deviceshare.doctor.kinds import RUNTIME_CLASSES, Rollout
from deviceshare.domain import contract, vendors
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.wording import listed
from deviceshare.loops.kinds import EVENTS, NODE_DEVICES, Event
from deviceshare.loops.ports import ApiError, Cluster, NotFound

NAME: Final = "gpu"
POLL_SECONDS: Final = 1.0
LAND_SECONDS: Final = 150.0
"""From the binding to the end of the container; the image has to be pulled where deviceshare doesn't run."""
STUCK_SECONDS: Final = 10.0
"""How long a container may fail to start before it is reported: the kubelet retries some of these."""
_NO_IMAGE: Final = Finding(
    UNTESTED,
    f"no Deployment {contract.NAME} was found, whose image the GPU canary runs",
    "name an image of deviceshare with --gpu-image, or the namespace of its release with --release-namespace",
)


async def examine(api: Cluster, namespace: str, release: str, deployment: Rollout | None, image: str) -> Check:
    """Runs a GPU canary in `namespace`, with `image` or that of the Deployment."""
    own = deployment.container(contract.NAME) if deployment else None
    image = image or (own.image if own else "")
    if not image:
        return check(NAME, "", [_NO_IMAGE])
    try:
        if missing := await _missing_class(api, deployment):
            return check(NAME, "", [missing])
        if not await free(api, gpu.RESOURCE):
            return check(NAME, "", [await _nothing_to_open(api)])
    except ApiError as error:
        return check(NAME, "", [unread("RuntimeClasses, nodes and ledgers", error)])
    make = partial(gpu.pod, image=image)
    said, findings = await run(
        api, namespace, release, gpu.RESOURCE, make=make, land=lambda bound: _land(api, namespace, bound)
    )
    return check(NAME, said, findings)


async def _missing_class(api: Cluster, deployment: Rollout | None) -> Finding | None:
    """A finding where pods are given a RuntimeClass that doesn't exist: the API server refuses them."""
    name = deployment.flag("runtime-class") if deployment else None
    if not name or any(each.metadata.name == name for each in await api.list(RUNTIME_CLASSES)):
        return None
    what = f"pods of groups are given the RuntimeClass {name!r}, which doesn't exist, so each is refused"
    cure = "set handover.runtimeClassName to an existing RuntimeClass, or to none; see docs/handover.md"
    return Finding(PROBLEM, what, cure)


async def _nothing_to_open(api: Cluster) -> Finding:
    others = {device.resource for ledger in await api.list(NODE_DEVICES) for device in ledger.devices}
    if others and gpu.RESOURCE not in others:
        what = f"a canary can open {vendors.NVIDIA.label}s only, and the shared nodes have {listed(sorted(others))}"
        return Finding(UNTESTED, what, "")
    return NOTHING_FREE


async def _land(api: Cluster, namespace: str, bound: Pod) -> tuple[str, list[Finding]]:
    """Waits until the canary's container has ended or can't start, and judges what it saw."""
    name = bound.metadata.name
    loop = asyncio.get_running_loop()
    deadline = loop.time() + LAND_SECONDS
    stuck_until: float | None = None
    while True:
        try:
            seen = await api.get(gpu.CANARIES, name, namespace)
        except NotFound:
            return "", [
                Finding(UNTESTED, "the canary was deleted by somebody else before it reported", "run doctor again")
            ]
        now = loop.time()
        if seen.stuck and stuck_until is None:
            stuck_until = now + STUCK_SECONDS
        if seen.over or now > deadline or (seen.stuck and stuck_until is not None and now > stuck_until):
            break
        await asyncio.sleep(POLL_SECONDS)
    events = [] if seen.state.terminated else await _events(api, namespace, name)
    findings = gpu.judge(seen, bound.devices, events)
    return f"a container on {bound.node} opened the GPU of its group, and sees no other", findings


async def _events(api: Cluster, namespace: str, name: str) -> list[Event]:
    try:
        return await api.list(EVENTS, namespace=namespace, field_selector=f"involvedObject.name={name}")
    except ApiError:  # events only add detail
        return []
