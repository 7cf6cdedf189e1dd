"""A cluster whose node's GPUs a DRA driver publishes, with what kube-scheduler and kube-controller-manager do there."""

import asyncio
import random
import re
from collections.abc import Callable
from typing import Any

from deviceshare.domain import contract
from deviceshare.domain.admission.pod_injection import given_by_claim
from deviceshare.domain.objects.groups import claim_name
from deviceshare.domain.objects.resource_slices import ResourceClaim
from deviceshare.loops.kinds import HOLDS, NODES, PODS, RESOURCE_SLICES
from tests.unit.domain.dra_objects import DRIVER, card, gpu_json, slice_json
from tests.unit.loops.live import LiveCluster, MemoryMirror, World

SLICES = RESOURCE_SLICES[0]
NODE = "n1"


def a_publishing_cluster() -> LiveCluster:
    cluster = LiveCluster()
    cluster.mirrors |= {kind.plural: MemoryMirror() for kind in (SLICES, HOLDS)}
    return cluster


def a_publishing_node(count: int = 4, claims_known: Callable[[], bool] = lambda: True, *, holds: bool = False) -> World:
    """The node n1, whose GPUs a DRA driver publishes."""
    cluster = a_publishing_cluster()
    world = World(cluster, claims_known=claims_known, holds=holds, compares=True)
    world.node(NODE, 0)
    cluster.edit(NODES, NODE, {"status": {"allocatable": {"pods": "110"}}})
    cluster.put(SLICES, slice_json(NODE, *map(gpu_json, range(count))))
    return world


def allocated(cluster: LiveCluster) -> dict[str, list[str]]:
    """The claims that each device is allocated to, by the API server's objects alone."""
    found: dict[str, list[str]] = {}
    for claim in cluster.all(HOLDS):
        for each in claim.holds:
            found.setdefault(each.device, []).append(claim.metadata.key)
    return found


def stranger(cluster: LiveCluster, name: str) -> None:
    """A pod with a claim of its own on any device."""
    cluster.put(HOLDS, {"metadata": {"name": name}, "spec": {}, "status": {}}, "strangers")
    spec = {"resourceClaims": [{"name": "device", "resourceClaimName": name}]}
    cluster.put(PODS, {"metadata": {"name": name}, "spec": spec}, "strangers")


def end_stranger(cluster: LiveCluster, name: str) -> None:
    """Its pod is over: kube-controller-manager deallocates the claim."""
    cluster.remove(PODS, name, "strangers")


def group_by_claim(world: World, name: str, count: int = 1, **spec: Any) -> None:
    """A group whose pods get its devices by a ResourceClaim."""
    allowed = {"from": "Selector", "names": ["ns"]}
    world.group(name, count, handover="claim", allowedNamespaces=allowed, **spec)


def pod_by_claim(world: World, name: str, group: str, **spec: Any) -> None:
    """A pod of such a group, as admission injects it."""
    found = world.read_group(group)
    meta = {
        "name": name,
        "labels": {contract.GROUP: group},
        "annotations": {contract.GROUP: group, **given_by_claim(found)},
    }
    claims = [{"name": contract.POD_CLAIM, "resourceClaimName": claim_name(found.uid)}]
    world.cluster.put(PODS, {"metadata": meta, "spec": {"resourceClaims": claims, **spec}}, "ns")


class Schedulers:
    """kube-scheduler's allocations for pods with claims, one after the other, and what their ends leave.

    kube-scheduler alone allocates, and knows what it allocated: looking and writing are one step here.
    """

    def __init__(self, cluster: LiveCluster, dice: random.Random | None = None, count: int = 4) -> None:
        self.full = False
        """Whether the node has no CPU left for users."""
        self.behind = False
        """Whether kube-controller-manager hasn't heard of ended pods yet."""
        self._cluster = cluster
        self._dice = dice or random.Random(0)
        self._count = count

    async def run(self) -> None:
        """Works until cancelled, in pauses of a few milliseconds."""
        while True:
            await asyncio.sleep(self._dice.uniform(0.001, 0.05))
            self.step()

    def step(self) -> None:
        pods = [each for each in self._cluster.objects.get(PODS.plural, {}).values() if self._claim(each)]
        pods = [each for each in pods if each.get("status", {}).get("phase") != "Succeeded"]
        self._dice.shuffle(pods)
        for pod in pods:
            if not pod["spec"].get("nodeName") and not (self.full and pod["metadata"]["namespace"] == "ns"):
                self._allocate(pod)
        for claim in self._cluster.all(HOLDS) if not self.behind else ():
            self._deallocate(claim)
        uids = {claim.metadata.uid for claim in self._cluster.all(HOLDS)}
        for pod in pods:  # Garbage collection.
            owners = {each["uid"] for each in pod["metadata"].get("ownerReferences", ())}
            if owners and not owners & uids:
                self._cluster.remove(PODS, pod["metadata"]["name"], pod["metadata"]["namespace"])

    @staticmethod
    def _claim(pod: dict[str, Any]) -> str:
        claims = pod.get("spec", {}).get("resourceClaims") or [{}]
        return str(claims[0].get("resourceClaimName", ""))

    def _allocate(self, pod: dict[str, Any]) -> None:
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        raw = self._cluster.objects[HOLDS.plural].get(f"{namespace}/{self._claim(pod)}")
        if raw is None or raw["metadata"].get("deletionTimestamp"):
            return
        entry = {"resource": "pods", "name": name, "uid": pod["metadata"]["uid"]}
        if entry in raw.get("status", {}).get("reservedFor", ()):
            self._cluster.edit(PODS, name, {"spec": {"nodeName": NODE}}, namespace)
            return
        status: dict[str, Any] = {"reservedFor": [*raw.get("status", {}).get("reservedFor", []), entry]}
        if not raw.get("status", {}).get("allocation"):
            free = [f"gpu-{number}" for number in range(self._count) if self._fits(raw, number)]
            free = [device for device in free if device not in allocated(self._cluster)]
            count = len(self._named(raw)) or 1
            if len(free) < count:
                return
            result = {"request": "device", "driver": DRIVER, "pool": NODE}
            status["allocation"] = {
                "devices": {"results": [result | {"device": each} for each in self._dice.sample(free, count)]}
            }
        # The pod is bound at the next step: whoever sees the claim between the two must take the pod for its user.
        self._cluster.edit(HOLDS, raw["metadata"]["name"], {"status": status}, namespace)

    def _fits(self, claim: dict[str, Any], number: int) -> bool:
        named = self._named(claim)
        return not named or card(number) in named

    @staticmethod
    def _named(claim: dict[str, Any]) -> list[str]:
        """The UUIDs that its expression names."""
        return re.findall(r'"(GPU-[^"]+)"', str(claim["spec"]))

    def _deallocate(self, claim: ResourceClaim) -> None:
        """kube-controller-manager takes pods that are gone out, and then the allocation if nobody is left."""
        entries, meta = claim.status.reserved_for, claim.metadata
        pods = {each.metadata.key for each in self._cluster.all(PODS) if not each.finished}
        left = [e for e in entries if e.resource != "pods" or f"{meta.namespace}/{e.name}" in pods]
        if len(left) == len(entries):
            return
        kept = [{"apiGroup": e.api_group, "resource": e.resource, "name": e.name, "uid": e.uid} for e in left]
        status: dict[str, Any] = {"reservedFor": kept}
        if not kept:
            status["allocation"] = None
        self._cluster.edit(HOLDS, meta.name, {"status": status}, meta.namespace)


def used_devices(cluster: LiveCluster) -> dict[str, list[str]]:
    """By device, the live pods with a node that received it, as their annotations say."""
    found: dict[str, list[str]] = {}
    for pod in cluster.all(PODS):
        if pod.lives and pod.metadata.namespace == "ns":
            written = " ".join(pod.metadata.annotations.values())
            for number in sorted(set(re.findall(r"GPU-0000000(\d)-aaaa", written))):
                found.setdefault(f"gpu-{number}", []).append(pod.metadata.name)
    return found


def doubly_used(cluster: LiveCluster) -> list[str]:
    """Devices that a pod of ours uses and that aren't held for us, or that two claims have."""
    claims = allocated(cluster)
    mine = f"{contract.NAMESPACE}/"
    wrong = [device for device, by in claims.items() if len(by) > 1] + _without_their_claim(cluster)
    return wrong + [
        device for device in used_devices(cluster) if not any(name.startswith(mine) for name in claims.get(device, []))
    ]


def _without_their_claim(cluster: LiveCluster) -> list[str]:
    """Pods that run by a ResourceClaim of their group which isn't allocated, or not for them."""
    named = {claim.metadata.key: claim for claim in cluster.all(HOLDS)}
    wrong = []
    for pod in cluster.all(PODS):
        if pod.claim and pod.lives:
            claim = named.get(pod.claim)
            entries = {each.uid for each in claim.status.reserved_for} if claim and claim.status.allocation else set()
            wrong += [] if pod.metadata.uid in entries else [f"pod {pod.metadata.name}"]
    return wrong
