"""The checkup: all checks, causes before their consequences."""

from collections.abc import AsyncIterator

from deviceshare.doctor import admission, canary, handover, installation, nodes
from deviceshare.doctor.findings import Check, check, checked
from deviceshare.domain.admission.pod_guard import PodGuard
from deviceshare.domain.objects.nodes import SharingLabels
from deviceshare.kube.api import Api
from deviceshare.loops.replica.guarded_cluster import GuardedCluster


async def look(
    api: Api, release: str, namespace: str, runtime_config: str | None, *, with_canary: bool, gpu_image: str | None
) -> AsyncIterator[Check]:
    """One check after the other, each as soon as it is done.

    deviceshare runs in the namespace `release`; pods are created in `namespace`: one as a dry run, and the canaries.
    One opens a GPU, unless `gpu_image` is None; where that is empty, its image is that of deviceshare's own Deployment.
    `runtime_config` is the text of a node's file with the settings of NVIDIA's toolkit.
    """
    yield await checked("CRDs", "CRDs", installation.examine_definitions(api))
    yield await checked("your rights", "what you may do", installation.examine_person(api))
    ours = await installation.installation(api, release)
    if ours.deployment is None:  # It may run by other means, and what it does to a pod shows how.
        ours = ours._replace(sample=await admission.dry_run(api, namespace))
    yield await checked("its rights", f"what {ours.user} may do", installation.examine_own(api, ours))
    yield await checked("replicas", f"what runs in {release}", installation.examine_replicas(api, ours))
    yield await checked("scheduler", "kube-scheduler's configuration", installation.examine_scheduler(api, ours))
    mode = await admission.mode(api, ours)
    yield await checked(mode, mode, admission.examine(api, ours, mode))
    said = f"a pod sent to {namespace} as a dry run came back with the group's variables"
    # Only now: replicas that were starting have been waited for.
    answer = ours.sample or await admission.dry_run(api, namespace)
    yield check("injection", said, admission.judge_injection(answer, namespace, release))
    labelled = GuardedCluster(api, PodGuard(()), SharingLabels.written(ours.flag("shared-node-labels") or ""))
    yield await checked("objects", "objects", nodes.examine_objects(labelled))
    async for each in nodes.examine(labelled, ours):
        yield each
    yield await checked("runtime", "runtime classes", handover.examine_runtime(labelled, runtime_config))
    yield await checked("hand-over", "NVIDIA's stack", handover.examine(labelled, ours))
    if with_canary:
        yield await checked("canary", "groups, nodes and ledgers", canary.examine(labelled, namespace, release))
    if gpu_image is not None:
        opened = canary.examine_gpu(labelled, namespace, ours, gpu_image)
        yield await checked("gpu", "RuntimeClasses, nodes and ledgers", opened)
