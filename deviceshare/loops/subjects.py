"""The subjects of Events: which object an Event is about."""

from typing import Any

from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.pods import Pod
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, NODES, PODS
from deviceshare.loops.ports import Kind, Subject

_KINDS: dict[type, Kind[Any]] = {kind.type: kind for kind in (GROUPS, NODE_DEVICES, PODS)}


def subject_of(obj: Group | NodeDevices | Node | Pod) -> Subject:
    if isinstance(obj, Node):
        return node_subject(obj.metadata.name)
    meta = obj.metadata
    return Subject(_KINDS[type(obj)], meta.name, meta.namespace, meta.uid)


def node_subject(name: str) -> Subject:
    """Events about nodes carry the name as UID, as the kubelet's do: `kubectl describe node` looks for that."""
    return Subject(NODES, name, uid=name)
