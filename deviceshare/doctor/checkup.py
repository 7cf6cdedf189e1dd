"""The checkup: all checks, causes before their consequences."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from msgspec import Struct

from deviceshare.doctor import admission, canary, gpu, handover, installation, nodes, rights
from deviceshare.doctor.findings import PROBLEM, Check, checked
from deviceshare.doctor.kinds import is_gated
from deviceshare.domain.admission.pod_guard import PodGuard
from deviceshare.domain.objects.nodes import SharingLabels
from deviceshare.loops.replica.guarded_cluster import GuardedCluster

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
    release, namespace = request.release, request.namespace
    yield await checked("CRDs", "CRDs", installation.examine_definitions(api))
    yield await checked("your rights", "what you may do", rights.examine_person(api))
    ours = await installation.installation(api, release)
    if ours.deployment is None:  # It may run by other means, and what it does to a pod shows how.
        ours = ours._replace(gated=is_gated(await admission.dry_run(api, namespace)))
    yield await checked("its rights", f"what {ours.user} may do", rights.examine_own(api, ours))
    yield await checked("replicas", f"what runs in {release}", installation.examine_replicas(api, ours))
    yield await checked("scheduler", "kube-scheduler's configuration", installation.examine_scheduler(api, ours))
    mode = await admission.mode(api, ours)
    yield await checked(mode, mode, admission.examine(api, ours, mode))
    yield await checked("injection", "injection", admission.examine_injection(api, namespace, release))
    labelled = GuardedCluster(api, PodGuard(()), SharingLabels.written(ours.flag("shared-node-labels") or ""))
    yield await checked("objects", "objects", nodes.examine_objects(labelled))
    async for each in nodes.examine(labelled, ours):
        yield each
    yield await checked("runtime", "runtime classes", handover.examine_runtime(labelled, request.runtime_config))
    yield await checked("hand-over", "NVIDIA's stack", handover.examine(labelled, ours))
    if request.canary:
        yield await checked("canary", "groups, nodes and ledgers", canary.examine(labelled, namespace, release))
    if request.gpu:
        opened = gpu.examine(labelled, namespace, ours, request.image)
        yield await checked("gpu", "RuntimeClasses, nodes and ledgers", opened)


def conclude(checks: list[Check]) -> Checkup:
    """Healthy unless there is a problem: warnings and what could not be tested don't count."""
    return Checkup(all(each.mark != PROBLEM for each in checks), checks)
