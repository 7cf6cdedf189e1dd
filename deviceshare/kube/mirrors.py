"""All mirrors of a process, those of kinds that may be missing included, and who sees which."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import structlog
from msgspec.structs import replace

from deviceshare.domain import contract
from deviceshare.domain.admission.pod_guard import PodGuard
from deviceshare.domain.objects.groups import Group, without_annotations
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.nodes import Node, NodeStatus, SharingLabels, may_be_shared
from deviceshare.domain.objects.object_decoder import Condition, ObjectMeta
from deviceshare.domain.objects.pod_requests import without_surplus
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.resource_slices import of_known_driver, worth_holding
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.kube.api import Api
from deviceshare.kube.connection import Unserved
from deviceshare.kube.mirror import ApiMirror, Cache, MirrorPace, T
from deviceshare.loops import kinds
from deviceshare.loops.ports import ApiError, Forbidden, Kind, Mirror, ObjectChange
from deviceshare.loops.replica.feed import Feed

# What of the cluster a person's rights let a command see, and what stands in for the rest.
# Without the right to list nodes, the ledgers say which there are; without that to list the pods of all namespaces,
# the groups' statuses name the pods that have devices.


class Visibility(NamedTuple):
    """Which nodes, pods and namespaces can be listed."""

    nodes: bool = True
    namespace: str = ""
    """The one whose pods are seen; "" for all."""
    pods: bool = True
    """Whether any are."""
    namespaces: bool = True

    @property
    def whole(self) -> bool:
        """Whether no node and no pod is hidden."""
        return self.nodes and self.pods and not self.namespace

    def shows(self, pod: str) -> bool:
        """Whether the pod `namespace/name` is listed, if it exists."""
        return self.pods and self.namespace in ("", pod.partition("/")[0])

    def group(self, group: Group) -> Group:
        """The group as it is judged: without its selector where no label of a node is known."""
        blind = group.spec.node_selector and not self.nodes
        return replace(group, spec=replace(group.spec, node_selector={})) if blind else group

    def pod(self, pod: Pod) -> Pod:
        """The pod, likewise."""
        blind = (pod.spec.node_selector or pod.spec.affinity) and not self.nodes
        return replace(pod, spec=replace(pod.spec, node_selector=None, affinity=None)) if blind else pod


WHOLE_CLUSTER = Visibility()


class NodesOfLedgers(Cache[Node]):
    """Nodes known by their ledgers alone: each is taken for shared and ready, and has no other label."""

    synced = True

    def __init__(self, ledgers: Mirror[NodeDevices]) -> None:
        super().__init__()
        ledgers.subscribe(self._on_ledger)

    def _on_ledger(self, change: ObjectChange[NodeDevices]) -> None:
        if change.new is None:
            self.remove(change.key, self.version)
        elif change.old is None:
            labels = {contract.MODE_LABEL: contract.MODE_SHARED}
            meta = ObjectMeta(name=change.key, uid=change.key, resource_version="1", labels=labels)
            self.apply(Node(metadata=meta, status=NodeStatus(conditions=[Condition("Ready", "True")])))


# A mirror of a kind that not every API server serves, or not in the same version (decision 17).
# Where none is served, or its objects may not be read, the mirror is empty and counts as synced, and asks again every
# ten minutes: an upgrade of the cluster or of the chart may bring the kind. Where one takes the version away that is
# mirrored, the mirror goes on at once with another that is served. What was mirrored once is kept, and soon asked for
# again.
# An API server that starts refuses requests until it has read the roles, and serves no custom resources until it has
# read their definitions. So a refusal is believed only when it lasts, and a missing right never of what was mirrored
# before. https://kubernetes.io/docs/concepts/overview/kubernetes-api/#discovery-api

log = structlog.get_logger(__name__)

RARELY_SECONDS = 600.0
REFUSED_SECONDS = 15.0
"""How long the kind can't be read before that is believed: longer than an API server takes to read roles and CRDs."""

LOST_SECONDS = 15.0
"""Between two questions where it was served before: what is kept may be outdated, as an older API server answered."""


class OptionalMirror(ApiMirror[T]):
    """Mirrors the first of `kinds`, the newest version, that the API server serves; where there is one, that."""

    def __init__(
        self,
        api: Api,
        kinds: Sequence[Kind[T]],
        *,
        field_selector: str = "",
        keep: Callable[[T], bool] | None = None,
        see: Callable[[T], T] | None = None,
        pace: MirrorPace = MirrorPace(),  # noqa: B008 it is frozen
        rarely: float = RARELY_SECONDS,
        refused: float = REFUSED_SECONDS,
    ) -> None:
        """`rarely`: seconds between two questions whether the kind is served."""
        super().__init__(api, kinds[0], field_selector=field_selector, keep=keep, see=see, pace=pace)
        self._kinds = kinds
        self._group = kinds[0].api_version.rpartition("/")[0]
        self._rarely, self._refused = rarely, refused
        self._gone = False
        """Whether the kind was last not served, in the version to mirror, and is looked for at once."""
        self._refused_since: float | None = None
        self.known = False
        """Whether what the mirror holds was listed; where it is empty without, there may be objects all the same."""

    async def run(self) -> None:
        """Keeps the copy until cancelled, while the kind is served."""
        while True:
            pauses = self._pauses()
            while kind := await self._served():
                self._source = replace(self._source, kind=kind)
                self._relist = True
                await super().run()
                if not self._gone:
                    break
                # An upgrade of the cluster took this version away; or one of several API servers is older, or starts.
                self._lost_at = self._lost_at or time.monotonic()
                await asyncio.sleep(next(pauses))
            if not self._listed.is_set():
                self._listed.set()
                log.info("Found a kind not served, or not readable", kind=self.kind, group=self._group)
            self._lost_at = self._refused_since = None  # There is no watch to be had, so none is missing.
            await asyncio.sleep(min(self._rarely, LOST_SECONDS) if self.known else self._rarely)

    async def list(self, *, cached: bool = False) -> None:
        """As a mirror of any kind. Refusals of before don't count any more, however long ago the first one was."""
        await super().list(cached=cached)
        self.known, self._refused_since = True, None

    def start_over(self) -> None:
        """Where nothing was listed there is nothing to forget, and nobody asks again for minutes."""
        if self.known:
            super().start_over()

    def _ends(self, error: ApiError) -> bool:
        self._gone = isinstance(error, Unserved)
        readable_once = self.lists > 0 and isinstance(error, Forbidden)
        if readable_once or not isinstance(error, Forbidden | Unserved):
            self._refused_since = None
            return self._gone
        now = time.monotonic()
        self._refused_since = self._refused_since or now
        if now - self._refused_since < self._refused:
            return self._gone
        if self._gone:
            self.replace((), self.version)  # Somebody deleted the definition, and with it the objects.
            self.known = False
        else:
            log.warning("Mirror is not allowed to read a kind", kind=self.kind, error=str(error))
        self._gone = False  # Its version is served, the kind is not: nobody waits for it any longer.
        return True

    async def list_if_served(self) -> None:
        """Lists once; stays empty where the kind isn't served, or may not be read. Raises any other ApiError."""
        with suppress(Forbidden, Unserved):
            await self.list()

    async def _served(self) -> Kind[T] | None:
        """What to mirror. Asked until the API server answers, where there are several versions."""
        if len(self._kinds) == 1:
            return self._kinds[0]
        pauses = self._pauses()
        while True:
            try:
                served = await self._api.versions_of(self._group)
            except ApiError as error:
                log.info("Discovery failed", group=self._group, error=str(error))
                await asyncio.sleep(max(next(pauses), error.retry_after or 0.0))
            else:
                return next((kind for kind in self._kinds if kind.api_version.rpartition("/")[2] in served), None)


# The mirrors that decisions are made from: kept by `run` and `--watch`, listed once by other commands.

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
        self.groups = ApiMirror(api, kinds.GROUPS)
        self.ledgers = ApiMirror(api, kinds.NODE_DEVICES)
        self.nodes: ApiMirror[Node] | NodesOfLedgers
        if not visibility.nodes:
            self.nodes = NodesOfLedgers(self.ledgers)
        elif labels:  # a selector can't say "or", so all nodes are listed and watched
            self.nodes = ApiMirror(api, kinds.NODES, keep=may_be_shared, see=labels)
        else:
            self.nodes = ApiMirror(api, kinds.NODES, label_selector=kinds.SHARED_NODES)
        pods, outside = partial(ApiMirror[Pod], api, kinds.PODS), f"!{contract.GROUP}"
        seen = guard if visibility.nodes else lambda pod: visibility.pod(guard(pod))
        self.pods = pods(namespace=visibility.namespace, label_selector=contract.GROUP, see=seen)
        # Pods that got devices from a vendor's device plugin. In a large cluster that is a long stream of which nearly
        # nothing is kept; the two selectors spare the API server from sending every pod twice.
        self.others = pods(
            namespace=visibility.namespace,
            label_selector=outside,
            field_selector=kinds.LIVE_PODS,
            keep=None if every_pod else lambda pod: pod.past_us,
            see=without_surplus if every_pod else None,
        )
        # A person's rights are what they are; an API server that starts knows those of deviceshare a moment later.
        rarely, refused = ASK_AGAIN_SECONDS, REFUSED_SECONDS if visibility.whole else 0.0
        # Groups may choose namespaces by their labels. An older role doesn't let us read these: then such groups wait.
        self.namespaces = OptionalMirror(
            api, [kinds.NAMESPACES], see=without_annotations, rarely=rarely, refused=refused
        )
        # The CRD may be missing after an upgrade, and nothing else needs it.
        self.quotas = OptionalMirror(api, [kinds.DEVICE_QUOTAS], rarely=rarely, refused=refused)
        self.uninjected = pods(label_selector=outside, field_selector=kinds.UNBOUND_PODS, keep=uninjected, see=guard)
        self.slices = OptionalMirror(api, kinds.RESOURCE_SLICES, keep=of_known_driver)
        self.resource_claims = OptionalMirror(api, kinds.RESOURCE_CLAIMS, keep=worth_holding)
        self.by_name: dict[str, ApiMirror[Any]]
        """Those that are kept; the others stay empty."""
        self.by_name = {"groups": self.groups, "ledgers": self.ledgers, "quotas": self.quotas}
        if visibility.namespaces:
            self.by_name["namespaces"] = self.namespaces
        if isinstance(self.nodes, ApiMirror):
            self.by_name["nodes"] = self.nodes
        if visibility.pods:
            self.by_name |= {"pods": self.pods, "other-pods": self.others}
        if uninjected:
            self.by_name["uninjected-pods"] = self.uninjected
        if dra:
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
            groups=self.groups,
        )
        if not visibility.whole:
            self.groups.subscribe(self._name_pods)

    def _name_pods(self, change: ObjectChange[Group]) -> None:
        """Has the fleet know, of pods that can't be listed, those that the groups' statuses name."""
        for group in change.sides:
            for pod in group.status.allocated_pods:
                if not self.visibility.shows(pod):
                    self.fleet.set_living(group.uid, pod, group.node if group is change.new else "")

    def _start_over(self) -> None:
        self._on_rewind()
        for mirror in self.by_name.values():
            mirror.start_over()

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
