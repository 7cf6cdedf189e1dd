"""The files that `plan` reads: manifests to plan, and nodes to plan them for."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from deviceshare.cli.manifest_documents import Document, UnreadableManifest, documents
from deviceshare.domain import contract
from deviceshare.domain.objects.device_quota import DeviceQuota
from deviceshare.domain.objects.groups import Group, NamespaceObject
from deviceshare.domain.objects.ledger import LedgerStatus, NodeDevices
from deviceshare.domain.objects.nodes import Node, NodeStatus
from deviceshare.domain.objects.object_decoder import Condition, ObjectMeta, decoder_of
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.workloads import (
    DAEMON_SET,
    WORKLOADS,
    CronJob,
    Template,
    Workload,
    count_of,
    pod_of,
    pods_of,
    templates_in,
)
from deviceshare.domain.placement.device_memory import memory_mib
from deviceshare.domain.placement.inventory import take
from deviceshare.domain.wording import counted

T = TypeVar("T")


class _WithMetadata(Struct, frozen=True):
    metadata: ObjectMeta = field(default_factory=ObjectMeta)


class PlainNode(Struct, frozen=True, forbid_unknown_fields=True):
    """A node in short form: name, devices and labels; it is shared and ready."""

    name: str
    devices: dict[str, int]
    labels: dict[str, str] = field(default_factory=dict)


class Wanted(NamedTuple):
    """What is planned, in the order of the files."""

    groups: list[Group]
    pods: list[Pod]
    daemons: frozenset[str]
    """Those of the pods, as `namespace/name`, that stand for one on each node that they match."""
    notes: list[str]
    """How objects were understood that don't say themselves which pods they make."""
    namespaces: list[NamespaceObject]
    quotas: list[DeviceQuota]


class Manifests(NamedTuple):
    """What the file describes: nodes with their ledgers, and groups, pods, namespaces and quotas where it has them."""

    nodes: list[Node]
    ledgers: list[NodeDevices]
    groups: list[Group]
    pods: list[Pod]
    namespaces: list[NamespaceObject]
    quotas: list[DeviceQuota]


_WANTED: Final[Mapping[str, type[Any]]] = {
    contract.GROUP_KIND: Group,
    contract.DEVICE_QUOTA_KIND: DeviceQuota,
    "Namespace": NamespaceObject,
    "Pod": Pod,
    "CronJob": CronJob,
    **dict.fromkeys((*WORKLOADS, DAEMON_SET), Workload),
}
_WITHOUT_PODS: Final = frozenset({"", "Node", contract.NODE_DEVICES_KIND, "PodTemplate", "CustomResourceDefinition"})
"""Kinds in which a template isn't looked for; those of the others that make no pods have none either."""
_GIVEN: Final = {
    "": PlainNode,
    "Node": Node,
    contract.NODE_DEVICES_KIND: NodeDevices,
    contract.GROUP_KIND: Group,
    contract.DEVICE_QUOTA_KIND: DeviceQuota,
    "Namespace": NamespaceObject,
    "Pod": Pod,
}
"""Kind → what it is read as; a document without a kind is a node in short form."""


def wanted(files: Iterable[Path], namespace: str) -> Wanted:
    """The groups, the pods of all workloads that name one or ask for a share, and the namespaces and quotas.

    Custom resources are searched for pod templates. Objects without a namespace are in `namespace`.

    Raises:
        UnreadableManifest: a file isn't YAML or JSON, or an object in it isn't what its kind says.
    """
    groups: dict[str, Group] = {}
    pods: list[Pod] = []
    daemons: set[str] = set()
    notes: list[str] = []
    namespaces: list[NamespaceObject] = []
    quotas: list[DeviceQuota] = []
    for document in documents(files):
        type_ = _WANTED.get(document.kind)
        found = document.named(type_) if type_ else None
        made: list[Pod] = []
        if isinstance(found, Group):
            groups[found.name] = replace(found, metadata=replace(found.metadata, uid=f"planned:{found.name}"))
        elif isinstance(found, NamespaceObject):
            namespaces.append(found)
        elif isinstance(found, DeviceQuota):
            quotas.append(found)
        elif isinstance(found, Pod):
            made = [found]
        elif isinstance(found, CronJob):
            made = _numbered(document, "Job", found.job)
            notes += [f"{document.title} is planned as one run of it"] * any(pod.wants_devices for pod in made)
        elif isinstance(found, Workload) and document.kind == DAEMON_SET:
            made = [pod_of(found.spec.template, found.metadata.name, found.metadata.namespace)]
        elif isinstance(found, Workload):
            made = _numbered(document, document.kind, found)
        elif document.kind not in _WITHOUT_PODS:
            made = list(_of_templates(document, notes))
        made = [_in_namespace(pod, namespace) for pod in made if pod.wants_devices]
        daemons |= {pod.metadata.key for pod in made if document.kind == DAEMON_SET}
        pods += made
    return Wanted(list(groups.values()), pods, frozenset(daemons), notes, namespaces, quotas)


def _numbered(document: Document, kind: str, workload: Workload) -> list[Pod]:
    count = document.few(count_of(kind, workload.spec))
    return pods_of(workload.spec.template, workload.metadata.name, workload.metadata.namespace, count)


def _of_templates(document: Document, notes: list[str]) -> Iterator[Pod]:
    """The pods of a custom resource; notes where their templates were found."""
    found = list(templates_in(document.body))
    meta = document.read(_WithMetadata).metadata if found else ObjectMeta()
    for each in found:
        try:
            template = decoder_of(Template).decode(msgspec.json.encode(each.body))
        except (msgspec.MsgspecError, TypeError) as error:
            notes.append(f"{document.title}: the pod template at {each.path} can't be read and is left out: {error}")
            continue
        name = f"{meta.name}-{each.name}" if len(found) > 1 and each.name else meta.name
        made = pods_of(template, name, meta.namespace, document.few(each.pods))
        if pod_of(template, name, "").wants_devices:
            notes.append(
                f"{document.title}: its pod template was found at {each.path}, planned as {counted(len(made), 'pod')}"
            )
        yield from made


def given(file: Path) -> Manifests:
    """Nodes, as Kubernetes objects or in short form; all devices of a node without a NodeDevices are free.

    Raises:
        UnreadableManifest: likewise, or there is no node in the file.
    """
    objects = [_node(each) if isinstance(each, PlainNode) else each for _, each in _objects([file], _GIVEN)]
    nodes = _those(objects, Node)
    if not nodes:
        raise UnreadableManifest(
            f"{file}: it holds no node; fill it with kubectl get nodes,nodedevices,sdg,dq,ns -o yaml"
        )
    ledgers = _those(objects, NodeDevices)
    known = {ledger.node for ledger in ledgers}
    ledgers += [_ledger(node) for node in nodes if node.metadata.name not in known]
    groups, pods = _those(objects, Group), _those(objects, Pod)
    return Manifests(nodes, ledgers, groups, pods, _those(objects, NamespaceObject), _those(objects, DeviceQuota))


def _those(objects: Iterable[Any], type_: type[T]) -> list[T]:
    return [each for each in objects if isinstance(each, type_)]


def _objects(files: Iterable[Path], types: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """Kind and object of the documents whose kind is one of `types`."""
    for document in documents(files):
        if type_ := types.get(document.kind):
            yield document.kind, document.named(type_) if document.kind else document.read(type_)


def _node(plain: PlainNode) -> Node:
    labels = {**plain.labels, contract.MODE_LABEL: contract.MODE_SHARED}
    status = NodeStatus({**plain.devices}, [Condition("Ready", "True")])
    return Node(metadata=ObjectMeta(name=plain.name, labels=labels), status=status)


def _ledger(node: Node) -> NodeDevices:
    ledger = NodeDevices(metadata=ObjectMeta(name=node.metadata.name))
    offer = take(node, ledger.status.hardware, ledger.status.published)
    status = LedgerStatus(
        devices=list(offer.devices),
        withheld=list(offer.withheld),
        memory_mib=memory_mib(node),
        for_shares=list(offer.for_shares),
        for_groups=list(offer.for_groups),
    )
    return replace(ledger, status=status)


def _in_namespace(pod: Pod, namespace: str) -> Pod:
    return replace(pod, metadata=replace(pod.metadata, namespace=pod.metadata.namespace or namespace))
