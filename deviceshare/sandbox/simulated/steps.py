"""A kubelet's next step for a pod: a pure function of the pod and the time, so that a restart needs no memory.

https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/
"""

import datetime
from typing import Any

import msgspec
from msgspec import Struct

from deviceshare.sandbox.simulated.env import environment, host_ip, pod_ip
from deviceshare.sandbox.simulated.pod import ENV, RUN_FOR, KubeletContainer, KubeletPod
from deviceshare.timestamps import timestamp

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
        return Patch({"status": _running(pod, now)}, "status")
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


def _running(pod: KubeletPod, now: datetime.datetime) -> dict[str, Any]:
    stamp = timestamp(now)
    running = {"running": {"startedAt": stamp}}
    return {
        "phase": "Running",
        "startTime": stamp,
        "hostIP": host_ip(pod.spec.node_name),
        "podIP": pod_ip(pod),
        "podIPs": [{"ip": pod_ip(pod)}],
        "conditions": _conditions("True", "", stamp),
        "initContainerStatuses": [_container(each, _exited(stamp, stamp)) for each in pod.spec.init_containers],
        "containerStatuses": [_container(each, running, ready=True) for each in pod.spec.containers],
    }


def _succeeded(pod: KubeletPod, now: datetime.datetime) -> dict[str, Any]:
    stamp = timestamp(now)
    exited = _exited(pod.status.start_time, stamp)
    return {
        "phase": "Succeeded",
        "conditions": _conditions("False", "PodCompleted", stamp),
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
    }


def _exited(started: str, finished: str) -> dict[str, Any]:
    return {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": started, "finishedAt": finished}}
