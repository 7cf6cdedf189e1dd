"""A snapshot of the cluster: the Fleet that the extender decides with, filled from a list of each kind, or a file.

What the person who asks may not read, as the API server's authorizer says, is left out and noted.
https://kubernetes.io/docs/reference/access-authn-authz/authorization/#checking-api-access
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click
import msgspec

from deviceshare import __version__, timestamps
from deviceshare.cli.cluster import Target
from deviceshare.cli.output import note
from deviceshare.cli.parameters import on_cluster
from deviceshare.doctor.kinds import Attributes, are_granted
from deviceshare.domain import contract
from deviceshare.domain.admission.pod_guard import GUARDING, GUARDING_POLICY, PodGuard, left_out
from deviceshare.domain.answers.picture import Unseen
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.nodes import SharingLabels
from deviceshare.domain.objects.object_decoder import ObjectMeta
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.wording import counted, listed
from deviceshare.kube.api import Api
from deviceshare.kube.connection import Unserved
from deviceshare.kube.mirror import Cache, Object
from deviceshare.kube.mirrors import WHOLE_CLUSTER, Mirrors, Visibility
from deviceshare.loops import kinds
from deviceshare.loops.ports import ApiError, Cluster, Forbidden, Kind, NotFound, Unavailable
from deviceshare.loops.replica.feed import Feed

if TYPE_CHECKING:  # it loads YAML, for which commands that read no file need not wait
    from deviceshare.cli.manifests import Manifests

T = TypeVar("T", bound=Object)

SHOWN_NODES: Final = 3
_file = click.Path(dir_okay=False, allow_dash=True, path_type=Path)


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


async def look(api: Api, namespace: str) -> ClusterSnapshot:
    """Reads everything that decisions are made from, once.

    Who may not list nodes, or pods outside of `namespace`, gets what is known without them. Raises ApiError where a
    part of it can't be read: Forbidden where not even groups and ledgers can.
    """
    return seen(await mirrored(api, namespace))


async def mirrored(api: Api, namespace: str) -> Mirrors:
    """The mirrors that `run` keeps, listed once, as far as they can be read."""
    mirrors = Mirrors(api, *await settings_of(api), visibility=await _visibility(api, namespace))
    await mirrors.list()
    return mirrors


def seen(mirrors: Mirrors) -> ClusterSnapshot:
    """What the mirrors show now."""
    every, visibility = list(mirrors.groups.values()), mirrors.visibility
    groups = {group.name: visibility.group(group) for group in every}
    hidden = [] if visibility.nodes else [group for group in every if group.spec.node_selector]
    selectors = {group.name: group.spec.node_selector for group in hidden}
    pods = {pod.metadata.key: pod for pod in mirrors.pods.values()}
    return ClusterSnapshot(mirrors.fleet, groups, pods, visibility, tuple(_unseen(mirrors)), selectors)


# Snapshots in files, so that what somebody saw can be looked at by others, and become a test


@click.command(
    short_help="Write what decisions depend on into a file, for others to replay.",
    epilog="""\b
Examples:
  deviceshare snapshot -f seen.json
  deviceshare explain pod NS/NAME --snapshot seen.json
  deviceshare plan -f team.yaml --nodes seen.json

\b
Exit codes: 0 written, 1 failed, 2 wrong flags.""",
)
@click.option(
    "-f", "--filename", "file", type=_file, default="-", help="Where to write it; - is standard output.  [default: -]"
)
@on_cluster
def snapshot(target: Target, file: Path) -> None:
    """Write nodes and their devices, groups, quotas, namespaces, and the pods that want devices.

    Without Secrets, values of environment variables, pods that want no devices, and what others wrote into the labels
    and annotations of pods. Names are as they are: read the file before you pass it on.
    """
    mirrors = target.ask(lambda api: mirrored(api, target.namespace))
    with click.open_file(str(file), "wb") as stream:
        stream.write(recorded(mirrors))
    note(each.text for each in _unseen(mirrors))


def recorded(mirrors: Mirrors) -> bytes:
    """The file: a List of the objects as they were decoded, with no field that deviceshare doesn't read."""
    known: tuple[tuple[Kind[Any], Iterable[Any]], ...] = (
        (kinds.NODES, mirrors.nodes.values()),
        (kinds.NODE_DEVICES, mirrors.ledgers.values()),
        (kinds.GROUPS, mirrors.groups.values()),
        (kinds.DEVICE_QUOTAS, mirrors.quotas.values()),
        (kinds.NAMESPACES, mirrors.namespaces.values()),
        (kinds.PODS, (*mirrors.pods.values(), *mirrors.others.values())),
    )
    items = [
        {"apiVersion": kind.api_version, "kind": kind.kind, **_pruned(msgspec.to_builtins(each))}
        for kind, objects in known
        for each in objects
    ]
    made = {"annotations": {f"{contract.PREFIX}snapshot": f"deviceshare {__version__}, {timestamps.now()}"}}
    listing = {"apiVersion": "v1", "kind": "List", "metadata": made, "items": items}
    return msgspec.json.format(msgspec.json.encode(listing), indent=1)


def _pruned(value: Any) -> Any:
    """Without what is unset. Which fields can't be read stays, so that they hide the same in a replay."""
    if isinstance(value, dict):
        return {key: _pruned(each) for key, each in value.items() if each is not None}
    return [_pruned(each) for each in value] if isinstance(value, list) else value


class Still(Cache[T]):
    """Objects that were listed once, in the form of a mirror."""

    synced = True

    def __init__(self, objects: Iterable[T]) -> None:
        super().__init__()
        self.replace(objects, "")


def replayed(file: "Manifests") -> ClusterSnapshot:
    """The cluster that a file describes. Of namespaces only those in the file are known."""
    fleet = Fleet()
    fleet.namespaces.hidden = True
    ours, others = list[Pod](), list[Pod]()
    for pod in file.pods:
        if pod.group or contract.GROUP in pod.metadata.labels:
            ours.append(pod)
        elif pod.plugin_resources():
            others.append(pod)
    Feed(fleet, nodes=Still(file.nodes), ledgers=Still(file.ledgers), pods=Still(ours), others=Still(others))
    seen = ClusterSnapshot(fleet, file.groups, {pod.metadata.key: pod for pod in ours})
    take_in(seen, file)
    return seen


def take_in(seen: ClusterSnapshot, file: "Manifests") -> None:
    """Takes in the namespaces and quotas of the file, as if they had been applied."""
    for namespace in file.namespaces:
        seen.fleet.namespaces.set_labels(namespace.metadata.name, namespace.labels)
    for quota in file.quotas:
        seen.fleet.quotas.apply(quota, seen.groups.values())


# What deviceshare was told, which stands in the objects by which the API server reviews pods


async def settings_of(api: Cluster) -> tuple[PodGuard, SharingLabels]:
    """The guard and the labels as the webhooks' configuration or, without one, the policy has them; the usual ones
    where neither can be read."""
    excluding: Mapping[str, Any]
    try:
        configuration = await api.get(kinds.WEBHOOK_CONFIGURATIONS[1], contract.NAME)
        meta: ObjectMeta = configuration.metadata
        excluding = next((each for each in configuration.webhooks if each.get("name") == GUARDING), {})
    except Forbidden:
        return PodGuard(), SharingLabels()
    except NotFound:
        try:
            policy = await api.get(kinds.VALIDATING.policies, GUARDING_POLICY)
        except (Forbidden, NotFound, Unserved):  # older API servers have no policies
            return PodGuard(), SharingLabels()
        meta, excluding = policy.metadata, policy.spec.match_constraints
    labels = meta.annotations.get(contract.SHARED_NODE_LABELS, "")
    return PodGuard(left_out(excluding)), SharingLabels.written(labels)


# What the person may see


async def _visibility(api: Api, namespace: str) -> Visibility:
    """Whether nodes, namespaces, pods, or pods of this namespace may be listed; without an answer all are asked for."""
    asked = [("nodes", ""), ("namespaces", ""), ("pods", ""), ("pods", namespace)]
    rights = [Attributes("list", "", resource, namespace=where) for resource, where in asked]
    try:
        nodes, namespaces, every, some = await are_granted(api, rights)
    except Unavailable:
        raise
    except ApiError:
        return WHOLE_CLUSTER
    return Visibility(nodes, "" if every else namespace, every or some, namespaces)


def _unseen(mirrors: Mirrors) -> Iterator[Unseen]:
    """What is left out of what these mirrors show."""
    visibility = mirrors.visibility
    if not visibility.nodes:
        text = "Nodes can't be listed by you (forbidden). Known of them is what NodeDevices say: their labels"
        yield Unseen(
            "nodes", f"{text} (nodeSelector, node affinity), taints, cordons and readiness are not considered."
        )
    if not visibility.namespaces:
        allowed = {group.name: group.spec.allowed_namespaces for group in mirrors.groups.values()}
        if by_labels := sorted(name for name, each in allowed.items() if each and each.selector):
            text = "Namespaces can't be listed by you (forbidden): whether their labels let pods join"
            which = f"{listed(by_labels, most=SHOWN_NODES)} (spec.allowedNamespaces)"
            yield Unseen("namespaces", f"{text} {which} is not considered.")
    if visibility.namespace:
        yield Unseen("pods", _hidden_pods(mirrors, visibility))
        if blind := mirrors.without_allocations():
            text = "devices shown as free there may be in use by pods that you can't see."
            on = f"the vendor's device plugin allocated on {listed(blind, most=SHOWN_NODES)}"
            yield Unseen("devices of other pods", f"No agent reports which devices {on}: {text}")


def _hidden_pods(mirrors: Mirrors, visibility: Visibility) -> str:
    named = [pod for group in mirrors.groups.values() for pod in group.status.allocated_pods]
    hidden, known = sum(not visibility.shows(pod) for pod in named), ""
    if hidden:
        of_groups = f"{hidden} of the {counted(len(named), 'pod')} that have devices of groups"
        known = f" {of_groups} {'is' if hidden == 1 else 'are'} known by name only, and"
    first = f"Pods can't be listed by you, nor those of namespace {visibility.namespace} (forbidden)"
    if visibility.pods:
        first = f"Pods outside of namespace {visibility.namespace} can't be listed by you (forbidden)"
    return f"{first}:{known} those that wait are not shown."


def labels_text(labels: Mapping[str, str]) -> str:
    """Labels as kubectl writes them."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
