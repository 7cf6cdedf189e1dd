"""The demo's objects, and what must be true of them at each step; pure, so that the judgement can itself be tested.

Two nodes with four GPUs each. `training` takes three and `notebooks` two, so they can't share a node, and three GPUs
stay free: not enough for `rendering`, which wants three on one node.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from deviceshare.domain import contract, vendors
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.object_decoder import decoder_of
from deviceshare_sandbox.simulated_pods import ENV, KubeletPod

NODES = 2
DEVICES = 4
RESOURCE = vendors.NVIDIA.resource
VISIBLE = vendors.NVIDIA.env


def _list(*items: dict[str, Any]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def _group(name: str, count: int) -> dict[str, Any]:
    kind = {"apiVersion": f"{contract.API_GROUP}/{contract.API_VERSION}", "kind": contract.GROUP_KIND}
    return {**kind, "metadata": {"name": name}, "spec": {"resources": {RESOURCE: count}}}


def _namespace(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def _pod(namespace: str, name: str, group: str) -> dict[str, Any]:
    """A pod that joins the group by the annotation alone."""
    metadata = {"namespace": namespace, "name": name, "annotations": {contract.GROUP: group}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": _SPEC}


def _deployment(namespace: str, name: str, group: str, replicas: int) -> dict[str, Any]:
    """A Deployment whose pods join the group by the annotation in their template."""
    labels = {"app": name}
    template = {"metadata": {"labels": labels, "annotations": {contract.GROUP: group}}, "spec": _SPEC}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    metadata = {"namespace": namespace, "name": name}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


_SPEC = {"containers": [{"name": "main", "image": "busybox"}]}
TWO_GROUPS = _list(_group("training", 3), _group("notebooks", 2))
FIVE_PODS = _list(
    _namespace("research"),
    _namespace("serving"),
    _deployment("research", "trainer", "training", 2),
    _pod("serving", "preview", "training"),
    _pod("research", "ada", "notebooks"),
    _pod("serving", "bob", "notebooks"),
)
MEMBERS = {"training": 3, "notebooks": 2}
"""How many pods join each group."""
THIRD_GROUP = _list(_group("rendering", 3), _pod("serving", "render", "rendering"))


class ContainerView(NamedTuple):
    """What one container of a pod sees."""

    namespace: str
    pod: str
    group: str
    node: str
    container: str
    visible: str


class _List(msgspec.Struct):
    items: list[msgspec.Raw]


def sights(pods_json: str) -> list[ContainerView]:
    """What every container of every pod of a group sees, from `kubectl get pods -A -o json`; those not started none."""
    seen = []
    for raw in msgspec.json.decode(pods_json, type=_List).items:
        pod = decoder_of(KubeletPod).decode(raw)
        meta = pod.metadata
        group, record = meta.annotations.get(contract.GROUP), meta.annotations.get(ENV)
        if group is None or record is None:
            continue
        for container, env in json.loads(record).items():
            seen.append(
                ContainerView(
                    meta.namespace, meta.name, group, pod.spec.node_name, container, env.get(VISIBLE, "(unset)")
                )
            )
    return seen


def groups(groups_json: str) -> dict[str, Group]:
    """By name, from `kubectl get sdg -o json`."""
    found = [decoder_of(Group).decode(raw) for raw in msgspec.json.decode(groups_json, type=_List).items]
    return {group.name: group for group in found}


def sharing_fault(seen: Iterable[ContainerView], known: dict[str, Group], members: dict[str, int]) -> str:
    """What contradicts that every group has its pods on its one node, that all of them see the same devices, the
    group's, and that no device serves two groups; or "".
    """
    holders: dict[tuple[str, str], str] = {}
    table = sorted(seen)
    for name, count in members.items():
        group = known.get(name)
        rows = [sight for sight in table if sight.group == name]
        if group is None or group.status.phase != "Bound":
            return f"group {name} is {group.status.phase or 'new' if group else 'missing'}, not Bound"
        if (started := len({(sight.namespace, sight.pod) for sight in rows})) != count:
            return f"{started} of {count} pods of group {name} have started"
        devices = group.status.selected_devices.get(RESOURCE, "")
        for sight in rows:
            if (sight.node, sight.visible) != (group.node, devices):
                where = f"{sight.namespace}/{sight.pod} on {sight.node} sees {sight.visible!r}"
                return f"{where}, but group {name} has {devices!r} on {group.node}"
        if (listed := len(group.status.allocated_pods)) != count:
            return f"group {name} lists {listed} of its {count} pods"
        if devices.count(",") + 1 != group.spec.resources[RESOURCE]:
            return f"group {name} has {devices!r}, not {group.spec.resources[RESOURCE]} devices"
        for device in devices.split(","):
            other = holders.setdefault((group.node, device), name)
            if other != name:
                return f"GPU {device} of {group.node} is in both {other} and {name}"
    return ""


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows as kubectl prints a table: each column as wide as its widest cell, three spaces between."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = ("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
