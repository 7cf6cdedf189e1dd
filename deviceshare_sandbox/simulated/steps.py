"""A kubelet's next step for a pod: a pure function of the pod and the time, so that a restart needs no memory.

https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/
"""

import datetime
from typing import Any

import msgspec
from msgspec import Struct

from deviceshare.timestamps import timestamp
from deviceshare_sandbox.simulated.env import environment, host_ip, pod_ip
from deviceshare_sandbox.simulated.pod import ENV, RUN_FOR, KubeletContainer, KubeletPod

JOB_SECONDS = 1.0
"""How long the containers of a Job run unless the pod says something else."""


class Patch(Struct, frozen=True):
    """Write this part of the pod."""

    body: dict[str, Any]
    subresource: str = ""


class Remove(Struct, frozen=True):
    """The containers have ended: let the API server forget the pod."""


class Wait(Struct, frozen=True):
    """Nothing to do, for this many seconds or (None) until the pod changes."""

    seconds: float | None = None


Step = Patch | Remove | Wait


def next_step(pod: KubeletPod, now: datetime.datetime) -> Step:
    """The one thing to do; afterwards the pod is looked at again."""
    if pod.metadata.deletion_timestamp:
        return Remove()
    if pod.status.phase in ("Succeeded", "Failed"):
        return Wait()
    started = pod.status.phase == "Running"
    recorded = _recorded(pod)
    # A record on a pod that hasn't started was copied with its manifest, and says nothing about this pod.
    kept = (recorded or {}) if started else {}
    wanted = {
        container.name: kept[container.name] if container.name in kept else environment(pod, container)
        for container in pod.all_containers
    }
    if recorded != wanted:
        record = msgspec.json.encode(wanted).decode()
        return Patch({"metadata": {"uid": pod.metadata.uid, "annotations": {ENV: record}}})
    if not started:
        return Patch({"status": _running(pod, timestamp(now))}, "status")
    if _resized(pod):
        return Patch({"status": _containers(pod, pod.status.start_time)}, "status")
    lifetime = _lifetime(pod)
    if lifetime is None:
        return Wait()
    left = lifetime - (now - datetime.datetime.fromisoformat(pod.status.start_time)).total_seconds()
    return Wait(left) if left > 0 else Patch({"status": _succeeded(pod, now)}, "status")


def _recorded(pod: KubeletPod) -> dict[str, dict[str, str]] | None:
    try:
        return msgspec.json.decode(pod.metadata.annotations.get(ENV, ""), type=dict[str, dict[str, str]])
    except msgspec.DecodeError:
        return None


def _lifetime(pod: KubeletPod) -> float | None:
    """Seconds until the containers exit with success; None for those that run on."""
    if pod.spec.restart_policy == "Always":
        return None
    try:
        return float(pod.metadata.annotations[RUN_FOR])
    except (KeyError, ValueError):
        return JOB_SECONDS if any(owner.kind == "Job" for owner in pod.metadata.owner_references) else None


def _resized(pod: KubeletPod) -> bool:
    """Whether a container, or the pod as a whole, is to run with other resources than it is reported to have.

    An API server that doesn't store what they run with knows no resizing either.
    https://kubernetes.io/docs/tasks/configure-pod-container/resize-container-resources/
    """
    statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    wanted = {each.name: each.resources for each in pod.all_containers}
    differs = (each.resources is not None and each.resources != wanted.get(each.name) for each in statuses)
    return any(differs) or pod.status.resources not in (None, pod.spec.resources)


def _running(pod: KubeletPod, stamp: str) -> dict[str, Any]:
    return {
        "phase": "Running",
        "startTime": stamp,
        "hostIP": host_ip(pod.spec.node_name),
        "podIP": pod_ip(pod),
        "podIPs": [{"ip": pod_ip(pod)}],
        "conditions": _conditions("True", "", stamp),
        **_containers(pod, stamp),
    }


def _containers(pod: KubeletPod, stamp: str) -> dict[str, Any]:
    """The statuses of containers that all started then, with the resources that they are to have now."""
    running, exited = {"running": {"startedAt": stamp}}, _exited(stamp, stamp)
    inits = [
        _container(each, running, ready=True) if each.is_sidecar else _container(each, exited)
        for each in pod.spec.init_containers
    ]
    mains = [_container(each, running, ready=True) for each in pod.spec.containers]
    whole = {"resources": pod.spec.resources} if pod.spec.resources else {}
    return {"initContainerStatuses": inits, "containerStatuses": mains, **whole}


def _succeeded(pod: KubeletPod, now: datetime.datetime) -> dict[str, Any]:
    stamp = timestamp(now)
    exited = _exited(pod.status.start_time, stamp)
    return {
        "phase": "Succeeded",
        "conditions": _conditions("False", "PodCompleted", stamp),
        "initContainerStatuses": [_container(each, exited) for each in pod.spec.init_containers],
        "containerStatuses": [_container(each, exited) for each in pod.spec.containers],
    }


def _conditions(ready: str, reason: str, stamp: str) -> list[dict[str, str]]:
    statuses = {"Initialized": "True", "Ready": ready, "ContainersReady": ready, "PodScheduled": "True"}
    return [
        {"type": type_, "status": status, "reason": reason if status == "False" else "", "lastTransitionTime": stamp}
        for type_, status in statuses.items()
    ]


def _container(container: KubeletContainer, state: dict[str, Any], *, ready: bool = False) -> dict[str, Any]:
    return {
        "name": container.name,
        "image": container.image,
        "imageID": f"sandbox://{container.image}",
        "ready": ready,
        "started": ready,
        "restartCount": 0,
        "state": state,
        "resources": container.resources,
        "allocatedResources": container.resources.get("requests", {}),
    }


def _exited(started: str, finished: str) -> dict[str, Any]:
    return {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": started, "finishedAt": finished}}
