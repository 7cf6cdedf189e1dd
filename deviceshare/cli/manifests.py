"""The files that `plan` reads: manifests to plan, and nodes to plan them for.

An error names the file, the document and the field: nobody finds `Expected int` in 40 documents.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import click
import msgspec
import yaml
from msgspec import Struct, field
from msgspec.structs import replace

from deviceshare.domain import contract
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import LedgerStatus, NodeDevices
from deviceshare.domain.objects.nodes import Node, NodeStatus
from deviceshare.domain.objects.object_decoder import decoder_of
from deviceshare.domain.objects.object_meta import Condition, ObjectMeta
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.workloads import WORKLOADS, Workload, pods_of
from deviceshare.domain.placement.device_memory import memory_mib
from deviceshare.domain.placement.inventory import take

T = TypeVar("T")


class UnreadableManifest(click.ClickException):
    """A file can't be read as what it should be. Shown as `Error: …`, exit status 2."""

    exit_code = 2


class PlainNode(Struct, frozen=True, forbid_unknown_fields=True):
    """A node in short form: name, devices and labels; it is shared and ready."""

    name: str
    devices: dict[str, int]
    labels: dict[str, str] = field(default_factory=dict)


class Wanted(NamedTuple):
    """What is planned, in the order of the files."""

    groups: list[Group]
    pods: list[Pod]


class Manifests(NamedTuple):
    """What the file describes: nodes with their ledgers, and groups and pods where it has them."""

    nodes: list[Node]
    ledgers: list[NodeDevices]
    groups: list[Group]
    pods: list[Pod]


class _Document(NamedTuple):
    where: str
    """The file and the document, for people."""
    body: Any

    def __str__(self) -> str:
        metadata = self.body.get("metadata")
        name = metadata.get("name", "") if isinstance(metadata, dict) else ""
        return f"{self.where} ({self.kind} {name})" if self.kind else self.where

    @property
    def kind(self) -> str:
        return str(self.body.get("kind", ""))

    def read(self, type_: type[T]) -> T:
        try:
            return decoder_of(type_).decode(msgspec.json.encode(self.body))
        except (msgspec.MsgspecError, TypeError) as error:
            what, _, path = str(error).partition(" - at `$")
            raise UnreadableManifest(
                f"{self}, {path.strip('.`') or 'as a whole'}: {what[:1].lower()}{what[1:]}"
            ) from error


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc] # chosen at run time
    """Leaves timestamps as they are written, as Kubernetes does."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}


_WANTED: Final = {contract.GROUP_KIND: Group, "Pod": Pod, **dict.fromkeys(WORKLOADS, Workload)}
_GIVEN: Final = {
    "": PlainNode,
    "Node": Node,
    contract.NODE_DEVICES_KIND: NodeDevices,
    contract.GROUP_KIND: Group,
    "Pod": Pod,
}
"""Kind → what it is read as; a document without a kind is a node in short form."""


def wanted(files: Iterable[Path]) -> Wanted:
    """The groups, and the pods of all workloads that name one or ask for a share; other kinds are ignored.

    Raises:
        UnreadableManifest: a file isn't YAML or JSON, or an object in it isn't what its kind says.
    """
    groups: dict[str, Group] = {}
    pods: list[Pod] = []
    for kind, found in _objects(files, _WANTED):
        if isinstance(found, Group):
            groups[found.name] = replace(found, metadata=replace(found.metadata, uid=f"planned:{found.name}"))
        elif isinstance(found, Pod):
            pods.append(found)
        elif isinstance(found, Workload):
            pods += pods_of(kind, found)
    return Wanted(list(groups.values()), [_in_namespace(pod) for pod in pods if pod.wants_devices])


def given(file: Path) -> Manifests:
    """Nodes, as Kubernetes objects or in short form; all devices of a node without a NodeDevices are free.

    Raises:
        UnreadableManifest: likewise, or there is no node in the file.
    """
    objects = [_node(each) if isinstance(each, PlainNode) else each for _, each in _objects([file], _GIVEN)]
    nodes = [each for each in objects if isinstance(each, Node)]
    if not nodes:
        raise UnreadableManifest(f"{file}: it holds no node; fill it with kubectl get nodes,nodedevices -o yaml")
    ledgers = [each for each in objects if isinstance(each, NodeDevices)]
    known = {ledger.node for ledger in ledgers}
    ledgers += [_ledger(node) for node in nodes if node.metadata.name not in known]
    groups = [each for each in objects if isinstance(each, Group)]
    return Manifests(nodes, ledgers, groups, [each for each in objects if isinstance(each, Pod)])


def _objects(files: Iterable[Path], types: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """Kind and object of the documents whose kind is one of `types`."""
    for document in _documents(files):
        if type_ := types.get(document.kind):
            found = document.read(type_)
            if document.kind and not found.metadata.name:
                raise UnreadableManifest(f"{document}, metadata.name: it is missing")
            yield document.kind, found


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


def _documents(files: Iterable[Path]) -> Iterable[_Document]:
    for file in files:
        name = "standard input" if str(file) == "-" else str(file)
        try:
            with click.open_file(str(file), encoding="utf-8") as stream:
                bodies = list(yaml.load_all(stream, Loader=_Loader))
        except (OSError, UnicodeDecodeError) as error:
            raise UnreadableManifest(f"{name}: {getattr(error, 'strerror', None) or error}") from error
        except yaml.YAMLError as error:
            raise UnreadableManifest(f"{name} is neither YAML nor JSON: {' '.join(str(error).split())}") from error
        for number, body in enumerate(bodies, 1):
            yield from _unpacked(f"{name}, document {number}", body)


def _unpacked(where: str, body: Any) -> Iterable[_Document]:
    if body is None:
        return
    if isinstance(body, dict) and isinstance(body.get("items"), list) and str(body.get("kind", "")).endswith("List"):
        body = body["items"]
    if isinstance(body, list):
        for number, item in enumerate(body, 1):
            yield from _unpacked(f"{where}, item {number}", item)
        return
    if not isinstance(body, dict):
        raise UnreadableManifest(
            f"{where}: an object with apiVersion, kind and metadata was expected, not {body!r:.40}"
        )
    yield _Document(where, body)


def _in_namespace(pod: Pod) -> Pod:
    return replace(pod, metadata=replace(pod.metadata, namespace=pod.metadata.namespace or "default"))
