"""Scaling pods: what autoscalers are shown in the place of pending pods whose devices are on nodes to come.

Autoscalers simulate kube-scheduler without extenders, where a pod of a group fits on any node, and one with a share on
none. A scaling pod requests whole devices by the vendor's resource, as a new node has them. It names a scheduler that
doesn't exist, so it is never bound and takes nothing; the condition by which autoscalers find pods is written by the
leader. Today's shared nodes are ruled out: what is free there isn't for it.

https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md#how-does-scale-up-work
https://karpenter.sh/docs/concepts/scheduling/
"""

import math
from collections.abc import Callable, Collection, Iterable
from fractions import Fraction
from typing import Final, NamedTuple

from msgspec import json, to_builtins

from deviceshare.domain import contract
from deviceshare.domain.objects.nodes import HOSTNAME, Node, NodeTerm
from deviceshare.domain.objects.pod_requests import CPU, requests_of
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import Request
from deviceshare.domain.placement.holds import Json, digest, idle_pod
from deviceshare.domain.placement.rooms import capacity, units
from deviceshare.domain.wording import listed

SCHEDULER: Final = "deviceshare-scaling"
"""Nobody's."""
MOST: Final = 20
"""Scaling pods at a time: autoscalers may add a node for each of them at once."""
MOST_NODES: Final = 2000
"""That are ruled out by name. In larger clusters an autoscaler may take devices for free that the ledgers have."""
GUESS: Final = Fraction(1, 10)
"""Of a device, for a share by memory where no device's size is known."""


class UnplacedPod(NamedTuple):
    """A pod that fits on no node, and what it asks for."""

    pod: Pod
    request: Request


class _Bin(NamedTuple):
    """Pods for which one scaling pod stands."""

    resources: dict[str, int]
    """Whole devices."""
    first: UnplacedPod
    pods: list[Pod]
    full: list[Fraction]
    """How much of its device each pod takes."""


def scaling_pods(
    waiting: Iterable[UnplacedPod], nodes: Collection[Node], largest: Callable[[Collection[str]], int]
) -> dict[str, Json]:
    """By name, those for these pods, which come in turn; `largest` says how many MiB a device of these resources has.

    One for each group and for each pod with parts of several devices. Shares of one device are added up.
    """
    bins: dict[str, _Bin] = {}
    open_bins: dict[bytes, _Bin] = {}
    for each in waiting:
        pod, request = each
        if request.resources:
            name = f"group {pod.group}"
            bins.setdefault(name, _Bin(dict(request.resources), each, [pod], []))
            continue
        resource, needs = request.share.of[0], request.share.needs
        size = largest([resource])
        costs = [units(need, size) for need in needs]
        parts = [GUESS if cost is None else min(Fraction(cost, capacity(size)), Fraction(1)) for cost in costs]
        key = json.encode((resource, _place(each, ())), order="deterministic")
        mine = open_bins.get(key)
        if len(parts) == 1 and mine and sum(mine.full) + parts[0] <= 1:
            mine.pods.append(pod)
            mine.full.append(parts[0])
            continue
        devices = max(math.ceil(sum(parts)), request.share.devices)
        name = f"pod {pod.metadata.key}"
        bins[name] = _Bin({resource: devices}, each, [pod], parts)
        if devices == 1:
            open_bins[key] = bins[name]
    bodies = [_body(what, found, nodes) for what, found in list(bins.items())[:MOST]]
    return {body["metadata"]["name"]: body for body in bodies}


def _body(what: str, found: _Bin, nodes: Collection[Node]) -> Json:
    # Autoscalers take a node that is there as the model of one to come. Without a device plugin it has no devices to
    # them; then the pod asks for a node only.
    advertised = {name for node in nodes for name in node.status.allocatable}
    devices = {r: str(count) for r, count in found.resources.items() if r in advertised or not nodes}
    needs = [requests_of(pod) for pod in found.pods]
    total = {
        CPU: f"{sum(each.get(CPU, 0) for each in needs)}m",
        "memory": str(sum(each.get("memory", 0) for each in needs)),
    }
    names = sorted(node.metadata.labels.get(HOSTNAME, node.metadata.name) for node in nodes)[:MOST_NODES]
    stands_for = listed([pod.metadata.key for pod in found.pods], most=10)
    name = f"{SCHEDULER}-{digest(f'{what} {found.first.request.holder.uid}')[:10]}"
    metadata = {"name": name, "labels": {contract.SCALING: ""}, "annotations": {contract.SCALING: stands_for}}
    spec = {"schedulerName": SCHEDULER, **_place(found.first, names)}
    return idle_pod(metadata, spec, resources={"limits": devices, "requests": {**total, **devices}})


def _place(waiting: UnplacedPod, not_on: Collection[str]) -> Json:
    """What the pod and its group say of nodes, and that it be none of these."""
    spec = waiting.pod.spec
    others = [{"key": HOSTNAME, "operator": "NotIn", "values": list(not_on)}] if not_on else []
    terms: list[Json] = []
    for term in (spec.affinity.terms if spec.affinity else None) or [NodeTerm()]:
        known = {key: value for key, value in to_builtins(term).items() if value}
        terms.append({**known, "matchExpressions": [*(known.get("matchExpressions") or ()), *others]})
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    return {
        "nodeSelector": {
            contract.MODE_LABEL: contract.MODE_SHARED,
            **waiting.request.node_selector,
            **(spec.node_selector or {}),
        },
        "tolerations": [{k: v for k, v in to_builtins(each).items() if v} for each in spec.tolerations],
        "affinity": affinity if terms[0]["matchExpressions"] or len(terms) > 1 else {},
    }
