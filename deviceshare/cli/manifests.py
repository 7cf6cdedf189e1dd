"""The files that `plan` reads: manifests to plan, and nodes to plan them for; YAML or JSON, lists unpacked.

An error names the file, the document and the field: nobody finds `Expected int` in 40 documents. Others' manifests, as
in CI, neither hang nor crash a plan: an alias costs a few bytes and stands for any number of nodes, aliases among them,
and loaders of nested YAML call themselves, so deep nesting exhausts the stack, which ends the process without a word.
https://yaml.org/spec/1.2.2/#71-alias-nodes
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import click
import msgspec
import yaml
from msgspec import Struct, field
from msgspec.structs import replace

from deviceshare.domain import contract
from deviceshare.domain.objects import workloads
from deviceshare.domain.objects.device_quota import DeviceQuota
from deviceshare.domain.objects.groups import Group, NamespaceObject
from deviceshare.domain.objects.hardware import NO_HARDWARE
from deviceshare.domain.objects.ledger import LedgerStatus, NodeDevices
from deviceshare.domain.objects.nodes import Node, NodeStatus
from deviceshare.domain.objects.object_decoder import Condition, NamedObject, ObjectMeta, decoder_of
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.workloads import DAEMON_SET, WORKLOADS, Workload
from deviceshare.domain.placement.inventory import take
from deviceshare.domain.placement.shared_resources import memory_mib
from deviceshare.domain.wording import counted

T = TypeVar("T")

MOST_PODS: Final = 10_000
"""In one plan: each is placed by itself."""
DEEPEST: Final = 100
"""Levels, in each document; those of Kubernetes objects, with the schemas in CRDs, are a third of it."""
MOST_BY_ALIASES: Final = 100_000
"""Nodes that aliases stand for, in one text."""


class PlainNode(Struct, frozen=True, forbid_unknown_fields=True):
    """A node in short form: name, devices and labels; it is shared and ready."""

    name: str
    devices: dict[str, int]
    labels: dict[str, str] = field(default_factory=dict)

    def full(self) -> Node:
        labels = {**self.labels, contract.MODE_LABEL: contract.MODE_SHARED}
        status = NodeStatus({**self.devices}, [Condition("Ready", "True")])
        return Node(metadata=ObjectMeta(name=self.name, labels=labels), status=status)


class Manifests(Struct):
    """What files hold, in their order."""

    groups: dict[str, Group] = field(default_factory=dict)
    pods: list[Pod] = field(default_factory=list)
    namespaces: list[NamespaceObject] = field(default_factory=list)
    quotas: list[DeviceQuota] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    ledgers: list[NodeDevices] = field(default_factory=list)
    daemons: set[str] = field(default_factory=set)
    """The pods, as `namespace/name`, that stand for one on each node that they match."""
    notes: list[str] = field(default_factory=list)
    """How objects were understood that don't say themselves which pods they make."""

    def add(self, found: Any) -> None:
        """An object that has a place here; others are left out."""
        homes: dict[type, list[Any]] = {Pod: self.pods, NamespaceObject: self.namespaces, DeviceQuota: self.quotas}
        homes |= {Node: self.nodes, NodeDevices: self.ledgers}
        if isinstance(found, Group):
            self.groups[found.name] = found
        elif type(found) in homes:
            homes[type(found)].append(found)


_Kinds = Mapping[str, type[Any]]
_BOTH: Final[_Kinds] = {
    contract.GROUP_KIND: Group,
    contract.DEVICE_QUOTA_KIND: DeviceQuota,
    "Namespace": NamespaceObject,
    "Pod": Pod,
}
"""What kinds are read as."""
_WANTED: Final[_Kinds] = {**_BOTH, **dict.fromkeys((*WORKLOADS, DAEMON_SET), Workload)}
_GIVEN: Final[_Kinds] = {**_BOTH, "": PlainNode, "Node": Node, contract.NODE_DEVICES_KIND: NodeDevices}
"""A document without a kind is a node in short form."""
_WITHOUT_PODS: Final = frozenset({"", "Node", contract.NODE_DEVICES_KIND, "PodTemplate", "CustomResourceDefinition"})
"""Kinds in which a template isn't looked for; those of the others that make no pods have none either."""


def wanted(files: Iterable[Path], namespace: str) -> Manifests:
    """The groups, the pods of all workloads that name one or ask for a share, and the namespaces and quotas.

    Custom resources are searched for pod templates. Objects without a namespace are in `namespace`. Raises
    UnreadableManifest where a file isn't YAML or JSON, or an object in it isn't what its kind says.
    """
    new = Manifests()
    for document in documents(files):
        type_ = _WANTED.get(document.kind)
        found = document.named(type_) if type_ else None
        if isinstance(found, Group):
            found = replace(found, metadata=replace(found.metadata, uid=f"planned:{found.name}"))
        if not isinstance(found, Pod):
            new.add(found)
        for pod in _pods_of(document, found, new.notes):
            if pod.wants_devices:
                within = pod.metadata.namespace or namespace
                new.add(placed := replace(pod, metadata=replace(pod.metadata, namespace=within)))
                if document.kind == DAEMON_SET:
                    new.daemons.add(placed.metadata.key)
    return new


def _pods_of(document: "Document", found: object, notes: list[str]) -> Iterable[Pod]:
    """The pods that an object is or makes."""
    if isinstance(found, Pod):
        return [found]
    if not isinstance(found, Workload):
        return [] if found is not None or document.kind in _WITHOUT_PODS else _of_templates(document, notes)
    kind, spec, name, namespace = document.kind, found.spec, found.metadata.name, found.metadata.namespace
    if kind == DAEMON_SET:
        return [workloads.pod_of(spec.template, name, namespace)]
    if kind == "CronJob":
        kind, spec = "Job", spec.job_template.spec if spec.job_template else spec
    made = workloads.pods_of(spec.template, name, namespace, document.few(workloads.count_of(kind, spec)))
    if kind != document.kind and any(pod.wants_devices for pod in made):
        notes.append(f"{document.title} is planned as one run of it")
    return made


def _of_templates(document: "Document", notes: list[str]) -> Iterator[Pod]:
    """The pods of a custom resource; notes where their templates were found."""
    found = list(workloads.templates_in(document.body))
    meta = document.read(NamedObject).metadata if found else ObjectMeta()
    for each in found:
        try:
            template = decoder_of(Pod).decode(msgspec.json.encode(each.body))
        except (msgspec.MsgspecError, TypeError) as error:
            notes.append(f"{document.title}: the pod template at {each.path} can't be read and is left out: {error}")
            continue
        name = f"{meta.name}-{each.name}" if len(found) > 1 and each.name else meta.name
        made = workloads.pods_of(template, name, meta.namespace, document.few(each.pods))
        if template.wants_devices:
            pods = counted(len(made), "pod")
            notes.append(f"{document.title}: its pod template was found at {each.path}, planned as {pods}")
        yield from made


def given(file: Path) -> Manifests:
    """Nodes, as Kubernetes objects or in short form, and what else the file has; all devices of a node without a
    NodeDevices are free. Raises UnreadableManifest as `wanted` does, and where there is no node in the file.
    """
    known = Manifests()
    for document in documents([file]):
        if document.kind in _GIVEN:
            read = document.named if document.kind else document.read
            found = read(_GIVEN[document.kind])
            known.add(found.full() if isinstance(found, PlainNode) else found)
    if not known.nodes:
        fill = "fill it with kubectl get nodes,nodedevices,sdg,dq,ns -o yaml"
        raise UnreadableManifest(f"{file}: it holds no node; {fill}")
    names = {ledger.node for ledger in known.ledgers}
    for node in (each for each in known.nodes if each.metadata.name not in names):
        offer = take(node, NO_HARDWARE)
        status = LedgerStatus(
            devices=list(offer.devices),
            withheld=list(offer.withheld),
            memory_mib=memory_mib(node),
            for_shares=list(offer.for_shares),
            for_groups=list(offer.for_groups),
        )
        known.ledgers.append(NodeDevices(metadata=ObjectMeta(name=node.metadata.name), status=status))
    return known


class UnreadableManifest(click.ClickException):
    """A file can't be read as what it should be. Shown as `Error: …`, exit status 2."""

    exit_code = 2


class Document(NamedTuple):
    """One object of a file."""

    where: str
    """The file and the document, for people."""
    kind: str
    name: str
    body: Any

    def __str__(self) -> str:
        return f"{self.where} ({self.title})" if self.kind else self.where

    @property
    def title(self) -> str:
        """Its kind and name."""
        return f"{self.kind} {self.name}"

    def few(self, count: int) -> int:
        """The number of pods, if so many can be planned."""
        if count > MOST_PODS:
            raise UnreadableManifest(f"{self}: {count} pods are more than the {MOST_PODS} that a plan takes")
        return count

    def named(self, type_: type[T]) -> T:
        """What it is read as, which must have a name."""
        found = self.read(type_)
        if not self.name:
            raise UnreadableManifest(f"{self}, metadata.name: it is missing")
        return found

    def read(self, type_: type[T]) -> T:
        try:
            return decoder_of(type_).decode(msgspec.json.encode(self.body))
        except (msgspec.MsgspecError, TypeError) as error:
            what, _, path = str(error).partition(" - at `$")
            where = path.strip(".`") or "as a whole"
            raise UnreadableManifest(f"{self}, {where}: {what[:1].lower()}{what[1:]}") from error


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc] # chosen at run time
    """Leaves timestamps as they are written, as Kubernetes does."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}


def documents(files: Iterable[Path]) -> Iterator[Document]:
    """The objects of all documents, lists unpacked."""
    for file in files:
        name = "standard input" if str(file) == "-" else str(file)
        try:
            with click.open_file(str(file), encoding="utf-8") as stream:
                text = stream.read()
            _check_nesting(text)
            bodies = list(yaml.load_all(text, Loader=_Loader))
        except (OSError, UnicodeDecodeError) as error:
            raise UnreadableManifest(f"{name}: {getattr(error, 'strerror', None) or error}") from error
        except yaml.YAMLError as error:
            raise UnreadableManifest(f"{name} is neither YAML nor JSON: {' '.join(str(error).split())}") from error
        for number, body in enumerate(bodies, 1):
            yield from _unpacked(f"{name}, document {number}", body)


def _unpacked(where: str, body: Any) -> Iterator[Document]:
    if isinstance(body, dict) and isinstance(body.get("items"), list) and str(body.get("kind", "")).endswith("List"):
        body = body["items"]
    if isinstance(body, list):
        for number, item in enumerate(body, 1):
            yield from _unpacked(f"{where}, item {number}", item)
    elif isinstance(body, dict):
        metadata = body.get("metadata")
        name = metadata.get("name", "") if isinstance(metadata, dict) else ""
        yield Document(where, str(body.get("kind", "")), str(name), body)
    elif body is not None:
        text = f"{where}: an object with apiVersion, kind and metadata was expected, not {body!r:.40}"
        raise UnreadableManifest(text)


def _check_nesting(text: str) -> None:
    """Reads the text's events, which takes no stack. Raises YAMLError where the text is no YAML, is nested too deeply,
    or where an alias stands for too much or for what contains it.
    """
    anchors: dict[str, tuple[int, int]] = {}  # anchor → nodes and levels below it, itself included
    within: list[tuple[str | None, int, int]] = []  # likewise, of the nodes around
    by_aliases = 0
    for event in yaml.parse(text, Loader=_Loader):
        nodes, levels = 0, 0
        if isinstance(event, yaml.DocumentStartEvent):
            anchors.clear()
        elif isinstance(event, yaml.CollectionStartEvent):
            anchors.pop(event.anchor or "", None)
            within.append((event.anchor, 1, 1))
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in anchors:
                raise _fault(f"the alias *{event.anchor} stands for what contains it, or for nothing", event)
            nodes, levels = anchors[event.anchor]
            by_aliases += nodes
            if by_aliases > MOST_BY_ALIASES:
                raise _fault(f"its aliases stand for more than {MOST_BY_ALIASES} values; write them out", event)
        elif isinstance(event, yaml.CollectionEndEvent | yaml.ScalarEvent):
            anchor, nodes, levels = (event.anchor, 1, 1) if isinstance(event, yaml.ScalarEvent) else within.pop()
            anchors |= {anchor: (nodes, levels)} if anchor else {}
        if len(within) + levels > DEEPEST:
            raise _fault(f"it is nested more than {DEEPEST} levels deep", event)
        if within and levels:
            anchor, all_nodes, deepest = within[-1]
            within[-1] = anchor, all_nodes + nodes, max(deepest, levels + 1)


def _fault(what: str, event: yaml.Event) -> yaml.YAMLError:
    where = f" in line {event.start_mark.line + 1}" if event.start_mark else ""
    return yaml.YAMLError(f"{what}{where}")
