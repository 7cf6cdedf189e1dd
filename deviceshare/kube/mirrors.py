"""The mirrors that decisions are made from: kept by `run` and `--watch`, listed once by other commands."""

import asyncio
from collections.abc import Callable
from typing import Any

from deviceshare.domain import contract
from deviceshare.domain.admission.pod_guard import PodGuard
from deviceshare.domain.objects.device_quota import DeviceQuota
from deviceshare.domain.objects.groups import NamespaceObject, without_annotations
from deviceshare.domain.objects.nodes import Node, SharingLabels, may_be_shared
from deviceshare.domain.objects.pod_requests import without_surplus
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.resource_slices import ResourceClaim, ResourceSlice, of_known_driver, worth_holding
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.kube.api import Api
from deviceshare.kube.mirror import ApiMirror
from deviceshare.kube.optional_mirror import REFUSED_SECONDS, OptionalMirror
from deviceshare.kube.visibility import (
    WHOLE_CLUSTER,
    NodesOfLedgers,
    PodsOfStatuses,
    Visibility,
    without_affinity,
)
from deviceshare.loops.kinds import (
    DEVICE_QUOTAS,
    DRA_GROUP,
    DRA_VERSIONS,
    GROUPS,
    LIVE_PODS,
    NAMESPACES,
    NODE_DEVICES,
    NODES,
    PODS,
    SHARED_NODES,
    UNBOUND_PODS,
    resource_claims,
    resource_slices,
)
from deviceshare.loops.replica.feed import Feed

ASK_AGAIN_SECONDS = 60.0
"""Between two questions whether DeviceQuotas are served and namespaces may be read by now: after an upgrade the CRD or
the right may come later, and groups that choose namespaces by labels take no pods before."""


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
        uninjected: Callable[[Pod], bool] | None = None,
        visibility: Visibility = WHOLE_CLUSTER,
        on_rewind: Callable[[], object] = lambda: None,
    ) -> None:
        """`labels`: those of other systems by which nodes are shared, too.

        `dra`: with what DRA offers and has allocated, from which the leader writes ledgers. With `every_pod` all pods
        on nodes are held, as far as the fit check reads them (decision 16). `uninjected` says of a pod without the
        label whether admission should have injected it; those without a node are held then. What the `visibility` of a
        person leaves out isn't asked for. `on_rewind` is called when the API server's history went back.
        """
        self.groups = ApiMirror(api, GROUPS)
        self.ledgers = ApiMirror(api, NODE_DEVICES)
        self.nodes: ApiMirror[Node] | NodesOfLedgers = (
            _nodes(api, labels) if visibility.nodes else NodesOfLedgers(self.ledgers)
        )
        namespace = visibility.namespace
        self.pods = ApiMirror(
            api,
            PODS,
            namespace=namespace,
            label_selector=contract.GROUP,
            see=guard if visibility.nodes else lambda pod: without_affinity(guard(pod)),
        )
        # Pods that got devices from a vendor's device plugin. In a large cluster that is a long stream of which nearly
        # nothing is kept; the two selectors spare the API server from sending every pod twice.
        self.others = ApiMirror(
            api,
            PODS,
            namespace=namespace,
            label_selector=f"!{contract.GROUP}",
            field_selector=LIVE_PODS,
            keep=None if every_pod else lambda pod: pod.past_us,
            see=without_surplus if every_pod else None,
        )
        # A person's rights are what they are; an API server that starts knows those of deviceshare a moment later.
        patience = REFUSED_SECONDS if visibility.whole else 0.0
        # Groups may choose namespaces by their labels. An older role doesn't let us read these: then such groups wait.
        self.namespaces: OptionalMirror[NamespaceObject] = OptionalMirror(
            api,
            lambda _: NAMESPACES,
            "",
            ("v1",),
            see=without_annotations,
            rarely=ASK_AGAIN_SECONDS,
            refused=patience,
        )
        # The CRD may be missing after an upgrade, and nothing else needs it.
        self.quotas: OptionalMirror[DeviceQuota] = OptionalMirror(
            api,
            lambda _: DEVICE_QUOTAS,
            contract.API_GROUP,
            (contract.API_VERSION,),
            rarely=ASK_AGAIN_SECONDS,
            refused=patience,
        )
        self.by_name: dict[str, ApiMirror[Any]] = {"groups": self.groups, "ledgers": self.ledgers}
        self.by_name["quotas"] = self.quotas
        if visibility.namespaces:
            self.by_name["namespaces"] = self.namespaces
        if isinstance(self.nodes, ApiMirror):
            self.by_name["nodes"] = self.nodes
        if visibility.pods:
            self.by_name |= {"pods": self.pods, "other-pods": self.others}
        self.uninjected: ApiMirror[Pod] | None = None
        if uninjected:
            unlabelled = f"!{contract.GROUP}"
            self.uninjected = ApiMirror(
                api, PODS, label_selector=unlabelled, field_selector=UNBOUND_PODS, keep=uninjected, see=guard
            )
            self.by_name["uninjected-pods"] = self.uninjected
        self.slices: OptionalMirror[ResourceSlice] | None = None
        self.resource_claims: OptionalMirror[ResourceClaim] | None = None
        if dra:
            self.slices = OptionalMirror(api, resource_slices, DRA_GROUP, DRA_VERSIONS, keep=of_known_driver)
            self.resource_claims = OptionalMirror(api, resource_claims, DRA_GROUP, DRA_VERSIONS, keep=worth_holding)
            self.by_name |= {"resource-slices": self.slices, "resource-claims": self.resource_claims}
        self._on_rewind = on_rewind
        for mirror in self.by_name.values():
            mirror.on_rewind = self._start_over
        self.fleet = Fleet()
        """What the mirrors show, node by node."""
        self.fleet.namespaces.hidden = not visibility.namespaces
        self.visibility = visibility
        Feed(
            self.fleet,
            nodes=self.nodes,
            ledgers=self.ledgers,
            pods=self.pods,
            others=self.others,
            namespaces=self.namespaces,
            quotas=self.quotas,
        )
        if not visibility.whole:
            PodsOfStatuses(self.fleet, self.groups, visibility)

    def _start_over(self) -> None:
        self._on_rewind()
        for mirror in self.by_name.values():
            mirror.start_over()

    @property
    def synced(self) -> bool:
        """Whether all are."""
        return all(mirror.synced for mirror in self.by_name.values())

    @property
    def claims_known(self) -> bool:
        """Whether what DRA's ResourceClaims hold was listed."""
        return self.resource_claims is not None and self.resource_claims.known

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
                for name, mirror in self.by_name.items():
                    if isinstance(mirror, OptionalMirror):
                        tasks.create_task(mirror.list_if_served(), name=f"list {name}")
                    elif name != "other-pods":
                        tasks.create_task(mirror.list(), name=f"list {name}")
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed
        if self.visibility.pods and self.without_allocations():
            await self.others.list()

    def without_allocations(self) -> tuple[str, ...]:
        """The nodes of which no agent reports what device plugins allocated."""
        reported = {ledger.node for ledger in self.ledgers.values() if ledger.hardware.allocations is not None}
        return tuple(sorted(each.metadata.name for each in self.nodes.values() if each.metadata.name not in reported))


def _nodes(api: Api, labels: SharingLabels) -> ApiMirror[Node]:
    if labels:  # a selector can't say "or", so all nodes are listed and watched
        return ApiMirror(api, NODES, keep=may_be_shared, see=labels)
    return ApiMirror(api, NODES, label_selector=SHARED_NODES)
