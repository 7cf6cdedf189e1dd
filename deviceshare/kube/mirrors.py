"""The mirrors that decisions are made from: kept by `run` and `--watch`, listed once by other commands."""

import asyncio
from typing import Any

from deviceshare.domain import contract
from deviceshare.domain.admission.pod_guard import PodGuard
from deviceshare.domain.objects.pod_requests import without_surplus
from deviceshare.domain.objects.resource_claims import ResourceClaim, worth_holding
from deviceshare.domain.objects.resource_slices import ResourceSlice, of_known_driver
from deviceshare.domain.objects.sharing_labels import SharingLabels, may_be_shared
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.kube.api import Api
from deviceshare.kube.mirror import ApiMirror
from deviceshare.kube.optional_mirror import OptionalMirror
from deviceshare.loops.kinds import (
    DRA_GROUP,
    DRA_VERSIONS,
    GROUPS,
    LIVE_PODS,
    NODE_DEVICES,
    NODES,
    PODS,
    SHARED_NODES,
    resource_claims,
    resource_slices,
)
from deviceshare.loops.replica.feed import Feed


class Mirrors:
    """Groups, ledgers, shared nodes, the pods of groups as the guard sees them, and others that may have devices."""

    def __init__(
        self,
        api: Api,
        guard: PodGuard,
        labels: SharingLabels = SharingLabels(),  # noqa: B008 it is never changed
        *,
        dra: bool = False,
        every_pod: bool = False,
    ) -> None:
        """`labels`: those of other systems by which nodes are shared, too.

        `dra`: with what DRA offers and has allocated, from which the leader writes ledgers. With `every_pod` all pods
        on nodes are held, as far as the fit check reads them (decision 16).
        """
        self.groups = ApiMirror(api, GROUPS)
        self.ledgers = ApiMirror(api, NODE_DEVICES)
        if labels:  # a selector can't say "or", so all nodes are listed and watched
            self.nodes = ApiMirror(api, NODES, keep=may_be_shared, see=labels)
        else:
            self.nodes = ApiMirror(api, NODES, label_selector=SHARED_NODES)
        self.pods = ApiMirror(api, PODS, label_selector=contract.GROUP, see=guard)
        # Pods that got devices from a vendor's device plugin. In a large cluster that is a long stream of which nearly
        # nothing is kept; the two selectors spare the API server from sending every pod twice.
        self.others = ApiMirror(
            api,
            PODS,
            label_selector=f"!{contract.GROUP}",
            field_selector=LIVE_PODS,
            keep=None if every_pod else lambda pod: pod.past_us,
            see=without_surplus if every_pod else None,
        )
        self.by_name: dict[str, ApiMirror[Any]] = {
            "groups": self.groups,
            "ledgers": self.ledgers,
            "nodes": self.nodes,
            "pods": self.pods,
            "other-pods": self.others,
        }
        self.slices: OptionalMirror[ResourceSlice] | None = None
        self.resource_claims: OptionalMirror[ResourceClaim] | None = None
        if dra:
            self.slices = OptionalMirror(api, resource_slices, DRA_GROUP, DRA_VERSIONS, keep=of_known_driver)
            self.resource_claims = OptionalMirror(api, resource_claims, DRA_GROUP, DRA_VERSIONS, keep=worth_holding)
            self.by_name |= {"resource-slices": self.slices, "resource-claims": self.resource_claims}
        self.fleet = Fleet()
        """What the mirrors show, node by node."""
        Feed(self.fleet, nodes=self.nodes, ledgers=self.ledgers, pods=self.pods, others=self.others)

    @property
    def synced(self) -> bool:
        """Whether all are."""
        return all(mirror.synced for mirror in self.by_name.values())

    async def wait_listed(self) -> None:
        """Returns once each has applied its first list; the caller bounds the wait."""
        for mirror in self.by_name.values():
            await mirror.wait_listed()

    async def list(self) -> None:
        """Lists everything once; raises the ApiError of what can't be read.

        The pods outside of groups, which may be most of the cluster's, are only read where some node has no agent that
        reports what device plugins allocated.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                for mirror in (self.groups, self.ledgers, self.nodes, self.pods):
                    tasks.create_task(mirror.list())
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed
        reported = {ledger.node for ledger in self.ledgers.values() if ledger.hardware.allocations is not None}
        if any(node.metadata.name not in reported for node in self.nodes.values()):
            await self.others.list()
