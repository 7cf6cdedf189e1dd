"""A snapshot of the cluster: the Fleet that the extender decides with, filled from one list of each kind."""

import asyncio
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from deviceshare.domain import contract
from deviceshare.domain.admission.pod_guard import GUARDING, PodGuard, left_out
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.kube.cache import Cache, Object
from deviceshare.loops.kinds import GROUPS, LIVE_PODS, NODE_DEVICES, NODES, PODS, SHARED_NODES, WEBHOOK_CONFIGURATIONS
from deviceshare.loops.ports import Forbidden, NotFound
from deviceshare.loops.replica.feed import Feed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deviceshare.domain.objects.ledger import NodeDevices
    from deviceshare.domain.objects.nodes import Node
    from deviceshare.kube.api import Api

T = TypeVar("T", bound=Object)


class ClusterSnapshot(NamedTuple):
    """The cluster as seen; `pods` are those that name a group."""

    fleet: Fleet
    groups: dict[str, Group]
    pods: dict[str, Pod]


class Still(Cache[T]):
    """Objects that were listed once, in the form of a mirror."""

    synced = True

    def __init__(self, objects: "Iterable[T]") -> None:
        super().__init__()
        self.replace(objects, "")


async def look(api: "Api") -> ClusterSnapshot:
    """Lists nodes, ledgers, groups and their pods concurrently.

    The pods outside of groups, which may be most of the cluster's, are only listed where some node has no agent that
    reports what device plugins allocated.

    Raises:
        ApiError: one of them can't be read.
    """
    try:
        async with asyncio.TaskGroup() as group:
            nodes = group.create_task(api.list(NODES, label_selector=SHARED_NODES), name="list nodes")
            ledgers = group.create_task(api.list(NODE_DEVICES), name="list ledgers")
            groups = group.create_task(api.list(GROUPS), name="list groups")
            pods = group.create_task(api.list(PODS, label_selector=contract.GROUP), name="list pods")
            guard = group.create_task(guard_of(api), name="get webhooks")
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from failed
    reported = {ledger.node for ledger in ledgers.result() if ledger.hardware.allocations is not None}
    unreported = {node.metadata.name for node in nodes.result()} - reported
    others: list[Pod] = []
    if unreported:
        listed = await api.list(PODS, label_selector=f"!{contract.GROUP}", field_selector=LIVE_PODS)
        others = [pod for pod in listed if pod.node in {"", *unreported} and pod.past_us]
    seen = map(guard.result(), pods.result())
    return snapshot(nodes.result(), ledgers.result(), groups.result(), seen, others)


async def guard_of(api: "Api") -> PodGuard:
    """The guard as the webhooks' configuration has it; the usual one where that can't be read."""
    try:
        found = await api.get(WEBHOOK_CONFIGURATIONS[1], contract.NAME)
    except (Forbidden, NotFound):
        return PodGuard()
    webhooks = {webhook.get("name", ""): webhook for webhook in found.webhooks}
    return PodGuard(left_out(webhooks.get(GUARDING, {})))


def snapshot(
    nodes: "Iterable[Node]",
    ledgers: "Iterable[NodeDevices]",
    groups: "Iterable[Group]",
    pods: "Iterable[Pod]",
    others: "Iterable[Pod]" = (),
) -> ClusterSnapshot:
    """A snapshot of these objects; `others` are pods with devices from a device plugin."""
    fleet, members = Fleet(), list(pods)
    Feed(fleet, nodes=Still(nodes), ledgers=Still(ledgers), pods=Still(members), others=Still(others))
    return ClusterSnapshot(fleet, {group.name: group for group in groups}, {pod.metadata.key: pod for pod in members})
