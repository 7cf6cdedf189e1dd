"""A snapshot of the cluster: the Fleet that the extender decides with, filled from one list of each kind."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from deviceshare.cli.visible import unseen, visibility_of
from deviceshare.domain import contract
from deviceshare.domain.admission.pod_guard import GUARDING, GUARDING_POLICY, PodGuard, left_out
from deviceshare.domain.answers.unseen import Unseen
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.nodes import Node, SharingLabels
from deviceshare.domain.objects.object_decoder import ObjectMeta
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.kube.cache import Cache, Object
from deviceshare.kube.refusals import Unserved
from deviceshare.kube.visibility import WHOLE_CLUSTER, Visibility, without_selector
from deviceshare.loops.kinds import VALIDATING, WEBHOOK_CONFIGURATIONS
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
    visibility: Visibility = WHOLE_CLUSTER
    unseen: tuple[Unseen, ...] = ()
    """What the person who asks may not read."""
    selectors: Mapping[str, Mapping[str, str]] = MappingProxyType({})
    """By group, the nodeSelector that could not be compared with nodes' labels; `groups` are without it."""


class Still(Cache[T]):
    """Objects that were listed once, in the form of a mirror."""

    synced = True

    def __init__(self, objects: Iterable[T]) -> None:
        super().__init__()
        self.replace(objects, "")


async def look(api: "Api", namespace: str) -> ClusterSnapshot:
    """Reads everything that decisions are made from, once.

    Who may not list nodes, or pods outside of `namespace`, gets what is known without them.

    Raises:
        Forbidden: not even groups and ledgers can be read.
        ApiError: a part of it can't be read.
    """
    return seen(await mirrored(api, namespace))


async def mirrored(api: "Api", namespace: str) -> "Mirrors":
    """The mirrors that `run` keeps, listed once, as far as they can be read."""
    from deviceshare.kube.mirrors import Mirrors  # noqa: PLC0415

    settings, visibility = await _settings(api), await visibility_of(api, namespace)
    mirrors = Mirrors(api, *settings, visibility=visibility)
    await mirrors.list()
    return mirrors


def seen(mirrors: "Mirrors") -> ClusterSnapshot:
    """What the mirrors show now."""
    every, visibility = mirrors.groups.values(), mirrors.visibility
    groups = {group.name: group if visibility.nodes else without_selector(group) for group in every}
    selectors = {
        group.name: group.spec.node_selector for group in every if group.spec.node_selector and not visibility.nodes
    }
    pods = {pod.metadata.key: pod for pod in mirrors.pods.values()}
    return ClusterSnapshot(mirrors.fleet, groups, pods, visibility, tuple(unseen(mirrors)), selectors)


async def guard_of(api: Cluster) -> PodGuard:
    """The guard as the webhooks' configuration or the policy has it; the usual one where neither can be read."""
    return (await _settings(api)).guard


class RunSettings(NamedTuple):
    """The settings of `run`, as far as commands go by them."""

    guard: PodGuard = PodGuard()
    labels: SharingLabels = SharingLabels()


async def _settings(api: Cluster) -> RunSettings:
    """They stand in the objects by which the API server reviews pods."""
    try:
        configuration = await api.get(WEBHOOK_CONFIGURATIONS[1], contract.NAME)
    except NotFound:
        return await _policy(api)
    except Forbidden:
        return RunSettings()
    webhooks = {webhook.get("name", ""): webhook for webhook in configuration.webhooks}
    return RunSettings(PodGuard(left_out(webhooks.get(GUARDING, {}))), _labels(configuration.metadata))


async def _policy(api: Cluster) -> RunSettings:
    try:
        policy = await api.get(VALIDATING.policies, GUARDING_POLICY)
    except (Forbidden, NotFound, Unserved):  # older API servers have no policies
        return RunSettings()
    return RunSettings(PodGuard(left_out(policy.spec.match_constraints)), _labels(policy.metadata))


def _labels(meta: ObjectMeta) -> SharingLabels:
    return SharingLabels.written(meta.annotations.get(contract.SHARED_NODE_LABELS, ""))


def snapshot(
    nodes: Iterable[Node],
    ledgers: Iterable[NodeDevices],
    groups: Iterable[Group],
    pods: Iterable[Pod],
    others: Iterable[Pod] = (),
) -> ClusterSnapshot:
    """A snapshot of these objects; `others` are pods with devices from a device plugin. No namespace is known."""
    fleet, members = Fleet(), list(pods)
    fleet.namespaces.hidden = True
    Feed(fleet, nodes=Still(nodes), ledgers=Still(ledgers), pods=Still(members), others=Still(others))
    return ClusterSnapshot(fleet, {group.name: group for group in groups}, {pod.metadata.key: pod for pod in members})
