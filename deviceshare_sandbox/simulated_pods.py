"""Pods of simulated nodes: what a kubelet reads of one, its containers' environment, and its next step.

Pure, so that a restart needs no memory, and after Kubernetes's code: `makeEnvironmentVariables` in pkg/kubelet and
third_party/forked/golang/expansion. Variables from ConfigMaps, Secrets, resource fields and `envFrom` are left out, and
so are those of Services: nothing of deviceshare depends on them.
https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/
"""

import datetime
import hashlib
import ipaddress
import re
import zlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from deviceshare.domain.objects.object_decoder import ObjectMeta
from deviceshare.domain.objects.pod_spec import EnvSource
from deviceshare.loops.ports import Kind
from deviceshare.timestamps import timestamp

Json = dict[str, Any]

ENV: Final = "sandbox.deviceshare.io/env"
"""Pod annotation, ours: JSON `{container: {NAME: value}}`, the environment that each container was started with."""
RUN_FOR: Final = "sandbox.deviceshare.io/run-for"
"""Pod annotation, the user's: seconds after which the pod's containers exit with success."""
USES_MIB: Final = "sandbox.deviceshare.io/uses-mib"
"""Pod annotation, the user's: how much memory its program uses of each GPU, where nodes have agents."""
TURN_SECONDS: Final = "sandbox.deviceshare.io/turn-seconds"
"""Pod annotation, the user's: its program uses the GPUs in a turn, and so long, where nodes have agents."""
SIMULATED: Final = "sandbox.deviceshare.io/simulated"
"""Label of the nodes whose kubelet we play."""


class KubeletEnvVar(Struct, frozen=True, rename="camel"):
    name: str
    value: str = ""
    value_from: EnvSource | None = None


class KubeletContainer(Struct, frozen=True, rename="camel"):
    name: str
    image: str = ""
    env: list[KubeletEnvVar] = field(default_factory=list)
    resources: Json = field(default_factory=dict)
    restart_policy: str = ""

    @property
    def is_sidecar(self) -> bool:
        """Whether this init container runs beside the main containers.

        https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/
        """
        return self.restart_policy == "Always"


class KubeletPodSpec(Struct, frozen=True, rename="camel"):
    node_name: str = ""
    service_account_name: str = ""
    restart_policy: str = "Always"
    containers: list[KubeletContainer] = field(default_factory=list)
    init_containers: list[KubeletContainer] = field(default_factory=list)
    ephemeral_containers: list[KubeletContainer] = field(default_factory=list)
    resources: Json = field(default_factory=dict)
    """Of the pod as a whole: https://kubernetes.io/docs/tasks/configure-pod-container/assign-pod-level-resources/"""


class KubeletContainerStatus(Struct, frozen=True, rename="camel"):
    name: str = ""
    resources: Json | None = None
    """What the container runs with; API servers before 1.27 don't store it."""


class KubeletPodStatus(Struct, frozen=True, rename="camel"):
    phase: str = ""
    start_time: str = ""
    resources: Json | None = None
    """Of the pod as a whole; API servers that know no resizing of it don't store it."""
    container_statuses: list[KubeletContainerStatus] = field(default_factory=list)
    init_container_statuses: list[KubeletContainerStatus] = field(default_factory=list)


class KubeletPod(Struct, frozen=True, rename="camel"):
    """https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/"""

    metadata: ObjectMeta = field(default_factory=ObjectMeta)
    spec: KubeletPodSpec = field(default_factory=KubeletPodSpec)
    status: KubeletPodStatus = field(default_factory=KubeletPodStatus)

    @property
    def all_containers(self) -> list[KubeletContainer]:
        """Every container, in the order in which they may start."""
        return [*self.spec.init_containers, *self.spec.containers, *self.spec.ephemeral_containers]


PODS: Final = Kind("v1", "Pod", "pods", KubeletPod, namespaced=True)


_SUBSCRIPT = re.compile(r"metadata\.(?P<map>annotations|labels)\['(?P<key>.*)'\]")
_REFERENCE = re.compile(r"\$(?:\$|\((?P<name>[^)]*)\))")


def environment(pod: KubeletPod, container: KubeletContainer) -> dict[str, str]:
    """NAME → value as the container would find them if it started now. Of equal names the last one wins."""
    values: dict[str, str] = {}
    for variable in container.env:
        if variable.value:
            values[variable.name] = expand(variable.value, values)
        elif variable.value_from is None:
            values[variable.name] = ""
        elif variable.value_from.field_ref is not None:
            values[variable.name] = _field(pod, variable.value_from.field_ref.field_path)
    return values


def expand(text: str, values: Mapping[str, str]) -> str:
    """Replaces `$(NAME)` by a value set earlier; an unknown name stays as written, and `$$` is one dollar sign.

    https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/
    """
    return _REFERENCE.sub(lambda match: "$" if match["name"] is None else values.get(match["name"], match[0]), text)


def pod_ip(pod: KubeletPod) -> str:
    """An address for a pod that stays the same however often it is asked for.

    A pod that asks for turns has one from which this machine can connect: agents know pods by their addresses.
    """
    network = "127.128.0.0" if TURN_SECONDS in pod.metadata.annotations else "10.128.0.0"
    return str(ipaddress.IPv4Address(network) + zlib.crc32(pod.metadata.uid.encode()) % 2**22)


def host_ip(node: str) -> str:
    """An address for a node, likewise."""
    return str(ipaddress.IPv4Address("10.64.0.0") + zlib.crc32(node.encode()) % 2**22)


def _field(pod: KubeletPod, path: str) -> str:
    """The downward API's fields; an annotation or label that isn't there gives an empty string.

    https://kubernetes.io/docs/concepts/workloads/pods/downward-api/#available-fields
    """
    if match := _SUBSCRIPT.fullmatch(path):
        return (pod.metadata.annotations if match["map"] == "annotations" else pod.metadata.labels).get(
            match["key"], ""
        )
    fields = {
        "metadata.name": pod.metadata.name,
        "metadata.namespace": pod.metadata.namespace,
        "metadata.uid": pod.metadata.uid,
        "spec.nodeName": pod.spec.node_name,
        "spec.serviceAccountName": pod.spec.service_account_name,
        "status.hostIP": host_ip(pod.spec.node_name),
        "status.hostIPs": host_ip(pod.spec.node_name),
        "status.podIP": pod_ip(pod),
        "status.podIPs": pod_ip(pod),
    }
    return fields[path]  # The API server admits no other path.


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
    record = recorded(pod)
    # A record on a pod that hasn't started was copied with its manifest, and says nothing about this pod.
    kept = record if started else {}
    wanted = {
        container.name: kept[container.name] if container.name in kept else environment(pod, container)
        for container in pod.all_containers
    }
    if record != wanted or ENV not in pod.metadata.annotations:
        text = msgspec.json.encode(wanted).decode()
        return Patch({"metadata": {"uid": pod.metadata.uid, "annotations": {ENV: text}}})
    if not started:
        return Patch({"status": _running(pod, timestamp(now))}, "status")
    if _resized(pod):
        return Patch({"status": _containers(pod, pod.status.start_time)}, "status")
    lifetime = _lifetime(pod)
    if lifetime is None:
        return Wait()
    left = lifetime - (now - datetime.datetime.fromisoformat(pod.status.start_time)).total_seconds()
    return Wait(left) if left > 0 else Patch({"status": _succeeded(pod, now)}, "status")


def recorded(pod: KubeletPod) -> dict[str, dict[str, str]]:
    """The environment that each container was started with, by its name; nothing where no record can be read."""
    try:
        return msgspec.json.decode(pod.metadata.annotations.get(ENV, ""), type=dict[str, dict[str, str]])
    except msgspec.DecodeError:
        return {}


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
        _container(pod, each, running, ready=True) if each.is_sidecar else _container(pod, each, exited)
        for each in pod.spec.init_containers
    ]
    mains = [_container(pod, each, running, ready=True) for each in pod.spec.containers]
    whole = {"resources": pod.spec.resources} if pod.spec.resources else {}
    return {"initContainerStatuses": inits, "containerStatuses": mains, **whole}


def _succeeded(pod: KubeletPod, now: datetime.datetime) -> dict[str, Any]:
    stamp = timestamp(now)
    exited = _exited(pod.status.start_time, stamp)
    return {
        "phase": "Succeeded",
        "conditions": _conditions("False", "PodCompleted", stamp),
        "initContainerStatuses": [_container(pod, each, exited) for each in pod.spec.init_containers],
        "containerStatuses": [_container(pod, each, exited) for each in pod.spec.containers],
    }


def _conditions(ready: str, reason: str, stamp: str) -> list[dict[str, str]]:
    statuses = {"Initialized": "True", "Ready": ready, "ContainersReady": ready, "PodScheduled": "True"}
    return [
        {"type": type_, "status": status, "reason": reason if status == "False" else "", "lastTransitionTime": stamp}
        for type_, status in statuses.items()
    ]


def _container(
    pod: KubeletPod, container: KubeletContainer, state: dict[str, Any], *, ready: bool = False
) -> dict[str, Any]:
    made_up = hashlib.sha256(f"{pod.metadata.uid}/{container.name}".encode()).hexdigest()
    return {
        "name": container.name,
        "containerID": f"sandbox://{made_up}",
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
