"""What a pod requests of its node, as kube-scheduler counts it.

https://kubernetes.io/docs/concepts/workloads/pods/init-containers/#resource-sharing-within-containers,
https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#resource-sharing-within-containers and
https://kubernetes.io/docs/concepts/scheduling-eviction/pod-overhead/. CPU is counted in thousandths, everything else in
whole units, both rounded up, as kube-scheduler does.
"""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from deviceshare.domain.objects.object_decoder import ObjectMeta
from deviceshare.domain.objects.pod_spec import Container, PodSpec, SeenContainer
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.quantities import MAX, Quantity, amount

CPU: Final = "cpu"
PODS: Final = "pods"
Amounts = dict[str, int]


def amounts(quantities: Mapping[str, Quantity], *, unread: int = MAX) -> Amounts:
    """Quantities as whole numbers; one that can't be read counts as `unread`."""
    sizes = {resource: amount(quantity) for resource, quantity in quantities.items()}
    return {
        resource: unread if size is None else max(0, math.ceil(size * 1000 if resource == CPU else size))
        for resource, size in sizes.items()
    }


def requests_of(pod: Pod) -> Amounts:
    """What the pod requests, itself included as one of `pods`; never less than its containers were allocated.

    With what is `exclusive`, of which each node has one.
    """
    spec, status = pod.spec, pod.status
    seen = {each.name: each for each in (*(status.container_statuses or ()), *(status.init_container_statuses or ()))}
    sidecars, peak = Counter[str](), Counter[str]()
    for each in spec.init_containers:
        mine = _of(each, seen)
        peak |= sidecars + mine
        if each.restart_policy == "Always":
            sidecars += mine
    total = sum((_of(each, seen) for each in spec.containers), sidecars) | peak
    # Those of the pod as a whole win, where it has them.
    total = Counter({**total, **amounts(spec.resources.requests)}) + Counter(amounts(spec.overhead))
    return {resource: number for resource, number in total.items() if number} | {PODS: 1} | exclusive(pod)


EXCLUSIVE: Final = {
    "port ": "node(s) didn't have free ports for the requested pod ports",
    "apart ": "node(s) didn't match pod anti-affinity rules",
}
"""How `exclusive` names begin, with kube-scheduler's words for a node where another pod has them."""


def exclusive(pod: Pod) -> Amounts:
    """What only one pod of a node may have: host ports, and a place among pods of one controller that avoid each other.

    A port of a single address is left to kube-scheduler, and so are pods of other controllers.
    """
    ports = [port for each in pod.spec.containers for port in each.ports if port.host_port]
    anywhere = (port for port in ports if port.host_ip in ("", "0.0.0.0", "::"))  # noqa: S104
    mine = {f"port {port.protocol or 'TCP'}/{port.host_port}" for port in anywhere}
    if pod.spec.affinity and pod.spec.affinity.avoids and pod.metadata.controller:
        mine.add(f"apart {pod.metadata.controller.uid}")
    return dict.fromkeys(sorted(mine), 1)


def without_surplus(pod: Pod) -> Pod:
    """A pod that wants nothing of deviceshare, with what is read of such pods: in large clusters they are many."""
    meta, spec = pod.metadata, pod.spec
    slim = ObjectMeta(meta.name, meta.namespace, meta.uid, meta.resource_version, unreadable=meta.unreadable)
    return replace(
        pod,
        metadata=slim,
        spec=PodSpec(
            node_name=spec.node_name,
            scheduling_gates=spec.scheduling_gates[:2],
            containers=[replace(each, env=[]) for each in spec.containers],
            init_containers=[replace(each, env=[]) for each in spec.init_containers],
            resources=spec.resources,
            overhead=spec.overhead,
        ),
    )


def _of(container: Container, seen: Mapping[str, SeenContainer]) -> Counter[str]:
    mine = Counter(amounts(container.resources.requests))
    return mine | Counter(amounts(seen[container.name].allocated_resources)) if container.name in seen else mine
