"""The checkup: all checks, causes before their consequences."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from msgspec import Struct

from deviceshare.doctor import (
    admission,
    canary_run,
    definitions,
    gpu_run,
    handover,
    injection,
    nodes,
    plugin,
    replicas,
    rights,
    runtime,
    scheduler,
    shares,
    sources,
    unreadable,
    waiting,
)
from deviceshare.doctor.findings import PROBLEM, Check
from deviceshare.doctor.kinds import by_gates
from deviceshare.domain.objects.nodes import SharingLabels
from deviceshare.loops.api_objects import LabelledCluster
from deviceshare.loops.kinds import DRA_GROUP, DRA_VERSIONS
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
    yield await rights.examine_own(api, request.release, deployment, dra=await _serves_dra(api))
    yield await replicas.examine(api, request.release)
    yield await scheduler.examine(api, request.release, deployment)
    yield await admission.examine(api, request.release, deployment)
    yield await injection.examine(api, request.namespace, request.release)
    sharing = (deployment.flag("shared-node-labels") if deployment else None) or ""
    labelled = LabelledCluster(api, SharingLabels.written(sharing))
    yield await unreadable.examine(labelled)
    yield await nodes.examine(labelled, request.release)
    yield await sources.examine(labelled)
    yield await waiting.examine(labelled, gates=by_gates(deployment))
    yield await plugin.examine(labelled)
    yield await shares.examine(labelled)
    yield await runtime.examine(labelled, request.runtime_config)
    yield await handover.examine(labelled, deployment)
    if request.canary:
        yield await canary_run.examine(labelled, request.namespace, request.release)
    if request.gpu:
        yield await gpu_run.examine(labelled, request.namespace, request.release, deployment, request.image)


async def _serves_dra(api: "Api") -> bool:
    try:
        return any(version in DRA_VERSIONS for version in await api.versions_of(DRA_GROUP))
    except ApiError:
        return False  # other checks report that it doesn't answer


def conclude(checks: list[Check]) -> Checkup:
    """Healthy unless there is a problem: warnings and what could not be tested don't count."""
    return Checkup(all(each.mark != PROBLEM for each in checks), checks)
