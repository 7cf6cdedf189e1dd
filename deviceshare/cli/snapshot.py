"""A snapshot of the cluster: the Fleet that the extender decides with, filled from one list of each kind."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from deviceshare.domain import contract
from deviceshare.domain.admission.pod_guard import GUARDING, PodGuard, left_out
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.sharing_labels import SharingLabels
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.kube.cache import Cache, Object
from deviceshare.loops.kinds import WEBHOOK_CONFIGURATIONS, WebhookConfiguration
from deviceshare.loops.ports import Cluster, Forbidden, NotFound
from deviceshare.loops.replica.feed import Feed

if TYPE_CHECKING:
    from deviceshare.kube.api import Api
    from deviceshare.kube.mirrors import Mirrors

T = TypeVar("T", bound=Object)


class ClusterSnapshot(NamedTuple):
    """The cluster as seen; `pods` are those that name a group."""

    fleet: Fleet
    groups: dict[str, Group]
    pods: dict[str, Pod]


class Still(Cache[T]):
    """Objects that were listed once, in the form of a mirror."""

    synced = True

    def __init__(self, objects: Iterable[T]) -> None:
        super().__init__()
        self.replace(objects, "")


async def look(api: "Api") -> ClusterSnapshot:
    """Reads everything that decisions are made from, once.

    Raises:
        ApiError: a part of it can't be read.
    """
    return seen(await mirrored(api))


async def mirrored(api: "Api") -> "Mirrors":
    """The mirrors that `run` keeps, listed once."""
    from deviceshare.kube.mirrors import Mirrors  # noqa: PLC0415

    configuration = await _webhooks(api)
    mirrors = Mirrors(api, _guard(configuration), _labels(configuration))
    await mirrors.list()
    return mirrors


def seen(mirrors: "Mirrors") -> ClusterSnapshot:
    """What the mirrors show now."""
    groups = {group.name: group for group in mirrors.groups.values()}
    return ClusterSnapshot(mirrors.fleet, groups, {pod.metadata.key: pod for pod in mirrors.pods.values()})


async def guard_of(api: Cluster) -> PodGuard:
    """The guard as the webhooks' configuration has it; the usual one where that can't be read."""
    return _guard(await _webhooks(api))


async def _webhooks(api: Cluster) -> WebhookConfiguration | None:
    """The settings of `run`, as far as commands go by them, stand in it; None where it can't be read."""
    try:
        return await api.get(WEBHOOK_CONFIGURATIONS[1], contract.NAME)
    except (Forbidden, NotFound):
        return None


def _guard(configuration: WebhookConfiguration | None) -> PodGuard:
    if configuration is None:
        return PodGuard()
    webhooks = {webhook.get("name", ""): webhook for webhook in configuration.webhooks}
    return PodGuard(left_out(webhooks.get(GUARDING, {})))


def _labels(configuration: WebhookConfiguration | None) -> SharingLabels:
    annotations = configuration.metadata.annotations if configuration else {}
    return SharingLabels.written(annotations.get(contract.SHARED_NODE_LABELS, ""))


def snapshot(
    nodes: Iterable[Node],
    ledgers: Iterable[NodeDevices],
    groups: Iterable[Group],
    pods: Iterable[Pod],
    others: Iterable[Pod] = (),
) -> ClusterSnapshot:
    """A snapshot of these objects; `others` are pods with devices from a device plugin."""
    fleet, members = Fleet(), list(pods)
    Feed(fleet, nodes=Still(nodes), ledgers=Still(ledgers), pods=Still(members), others=Still(others))
    return ClusterSnapshot(fleet, {group.name: group for group in groups}, {pod.metadata.key: pod for pod in members})
