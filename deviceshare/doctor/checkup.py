"""The checkup: all checks, causes before their consequences."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from msgspec import Struct

from deviceshare.doctor import admission, canary, gpu, handover, installation, nodes, rights
from deviceshare.doctor.findings import PROBLEM, Check
from deviceshare.domain.objects.nodes import SharingLabels
from deviceshare.loops.labelled_cluster import LabelledCluster

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
    yield await installation.examine_definitions(api)
    yield await rights.examine_person(api)
    ours = await installation.installation(api, request.release)
    yield await rights.examine_own(api, ours)
    yield await installation.examine_replicas(api, ours)
    yield await installation.examine_scheduler(api, ours)
    yield await admission.examine(api, ours)
    yield await admission.examine_injection(api, request.namespace, request.release)
    labelled = LabelledCluster(api, SharingLabels.written(ours.flag("shared-node-labels") or ""))
    yield await nodes.examine_objects(labelled)
    async for each in nodes.examine(labelled, ours):
        yield each
    yield await handover.examine_runtime(labelled, request.runtime_config)
    yield await handover.examine(labelled, ours)
    if request.canary:
        yield await canary.examine(labelled, request.namespace, request.release)
    if request.gpu:
        yield await gpu.examine(labelled, request.namespace, ours, request.image)


def conclude(checks: list[Check]) -> Checkup:
    """Healthy unless there is a problem: warnings and what could not be tested don't count."""
    return Checkup(all(each.mark != PROBLEM for each in checks), checks)
