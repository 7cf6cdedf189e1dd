"""The checkup: all checks, causes before their consequences."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from msgspec import Struct

from deviceshare.doctor import (
    canary_run,
    definitions,
    gpu_run,
    handover,
    nodes,
    plugin,
    replicas,
    rights,
    runtime,
    scheduler,
    shares,
    unreadable,
    waiting,
    webhooks,
)
from deviceshare.doctor.findings import PROBLEM, Check
from deviceshare.loops.ports import ApiError

if TYPE_CHECKING:
    from deviceshare.kube.api import Api


class CheckupRequest(Struct, frozen=True):
    """What to check, and where."""

    release: str
    """The namespace that deviceshare runs in."""
    namespace: str
    """Where pods are created: one as a dry run, and the canary."""
    canary: bool
    runtime_config: str | None
    """The text of a node's file with the settings of NVIDIA's toolkit."""
    gpu: bool = False
    """Whether a second canary opens a GPU."""
    image: str = ""
    """The image of that canary; "" for the one of deviceshare's own Deployment."""


class Checkup(Struct, frozen=True):
    """The whole answer, for programs."""

    healthy: bool
    checks: list[Check]


async def look(api: "Api", request: CheckupRequest) -> AsyncIterator[Check]:
    """One check after the other, each as soon as it is done."""
    yield await definitions.examine(api)
    yield await rights.examine_person(api)
    try:
        deployment = await replicas.deployment(api, request.release)
    except ApiError:  # the check of the replicas reports it
        deployment = None
    yield await rights.examine_own(api, request.release, deployment)
    yield await replicas.examine(api, request.release)
    yield await scheduler.examine(api, request.release, deployment)
    yield await webhooks.examine(api, request.release, deployment)
    yield await webhooks.examine_injection(api, request.namespace, request.release)
    yield await unreadable.examine(api)
    yield await nodes.examine(api, request.release)
    yield await waiting.examine(api)
    yield await plugin.examine(api)
    yield await shares.examine(api)
    yield await runtime.examine(api, request.runtime_config)
    yield await handover.examine(api, deployment)
    if request.canary:
        yield await canary_run.examine(api, request.namespace, request.release)
    if request.gpu:
        yield await gpu_run.examine(api, request.namespace, request.release, deployment, request.image)


def conclude(checks: list[Check]) -> Checkup:
    """Healthy unless there is a problem: warnings and what could not be tested don't count."""
    return Checkup(all(each.mark != PROBLEM for each in checks), checks)
