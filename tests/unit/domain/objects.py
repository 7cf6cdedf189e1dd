"""Nodes, ledgers, groups and pods in one line each, for tests that only look at a few of their fields."""

from collections.abc import Mapping
from typing import Any

import msgspec

from deviceshare.domain import contract, vendors
from deviceshare.domain.objects import shares
from deviceshare.domain.objects.devices import Device, Devices, as_json, devices_of
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import NodeDevices, new_ledger
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import devices_of_container, field_path
from deviceshare.domain.placement.device_states import device_states, free_devices
from deviceshare.domain.placement.fleet import Fleet

GPU = "nvidia.com/gpu"
AMD = "amd.com/gpu"

INJECTED = [
    {"name": vendor.env, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{vendor.annotation}']"}}}
    for vendor in vendors.VENDORS
]


def gpus(*indices: int) -> Devices:
    """The GPUs with these indices."""
    return tuple(Device(GPU, index) for index in sorted(indices))


def free_on(ledger: NodeDevices) -> Devices:
    """The devices that a group may get now."""
    return free_devices(device_states(ledger))


def a_node(
    name: str = "n1",
    devices: Mapping[str, int] | None = None,
    *,
    shared: bool = True,
    ready: bool = True,
    zone: str = "",
) -> Node:
    """A node; four GPUs unless told otherwise."""
    mode = {contract.MODE_LABEL: contract.MODE_SHARED} if shared else {}
    allocatable = {resource: str(count) for resource, count in ({GPU: 4} if devices is None else devices).items()}
    body = {
        "metadata": {"name": name, "uid": f"uid-of-{name}", "labels": {**mode, **({"zone": zone} if zone else {})}},
        "status": {
            "allocatable": allocatable,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }
    return msgspec.convert(body, Node)


def a_ledger(
    node: str = "n1", devices: Mapping[str, int] | None = None, *, releasing: tuple[str, ...] = (), **claims: Devices
) -> NodeDevices:
    """A ledger with the claims of groups by name; `releasing` names those that are marked."""
    body = new_ledger(node)
    held = {f"uid-of-{name}": {"group": name, "devices": as_json(mine)} for name, mine in claims.items()}
    body["spec"]["claims"] = held
    for name in releasing:
        body["spec"]["claims"][f"uid-of-{name}"]["releasing"] = "2026-01-01T00:00:00Z"
    have = devices_of({GPU: 4} if devices is None else devices)
    body["status"] = {"devices": [msgspec.to_builtins(device) for device in have]}
    body["metadata"]["resourceVersion"] = "7"
    return msgspec.convert(body, NodeDevices)


def a_group(
    name: str = "team", count: int = 2, *, node: str = "", status: Mapping[str, Any] | None = None, **spec: Any
) -> Group:
    """A group of GPUs, bound to `node` where that is given."""
    body = {
        "metadata": {"name": name, "uid": f"uid-of-{name}", "generation": 3, "resourceVersion": "5"},
        "spec": {"resources": {GPU: count}, **spec},
        "status": {**({"nodeName": node} if node else {}), **(status or {})},
    }
    return msgspec.convert(body, Group)


def a_pod(name: str = "p", group: str = "team", *, node: str = "", devices: Devices = (), injected: bool = True) -> Pod:
    """A pod of a group; on `node` with `devices`, or pending."""
    given: dict[str, str] = {}
    if node:
        text = ",".join(str(device.index) for device in devices)
        given = {
            contract.GROUP_UID: f"uid-of-{group}",
            contract.SELECTED_DEVICES: msgspec.json.encode({GPU: text} if text else {}).decode(),
        }
    body = {
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": f"uid-of-{name}",
            "labels": {contract.GROUP: group},
            "annotations": {contract.GROUP: group, **given},
        },
        "spec": {"nodeName": node, "containers": [{"name": "main", "env": INJECTED if injected else []}]},
    }
    return msgspec.convert(body, Pod)


def a_share_pod(
    name: str = "s", *, group: str = "", gib: int = 0, percent: int = 0, more: Mapping[str, Any] | None = None
) -> Pod:
    """A pending pod whose container `main` asks for a share; `more` are limits of further containers by name."""
    limits = {"main": {k: v for k, v in ((shares.GPU_MEM, gib), (shares.GPU_PERCENT, percent)) if v}, **(more or {})}
    named = {contract.GROUP: group} if group else {}
    body = {
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": f"uid-of-{name}",
            "resourceVersion": "1",
            "labels": {contract.GROUP: group},
            "annotations": named,
        },
        "spec": {"containers": [a_sharing_container(each, asked) for each, asked in limits.items()]},
    }
    return msgspec.convert(body, Pod)


def a_sharing_container(name: str, limits: Mapping[str, Any]) -> dict[str, Any]:
    """A container with these limits, as the webhook leaves it: it sees what it asks for, else what its group has."""
    env = [
        {
            "name": vendor.env,
            "valueFrom": {
                "fieldRef": {
                    "fieldPath": field_path(devices_of_container(vendor, name)) if limits else vendor.field_path
                }
            },
        }
        for vendor in vendors.VENDORS
    ]
    return {"name": name, "env": env, "resources": {"limits": {k: str(v) for k, v in limits.items()}}}


def a_fleet(*nodes: Node, ledgers: tuple[NodeDevices, ...] = (), pods: tuple[Pod, ...] = ()) -> Fleet:
    """A fleet that knows these."""
    fleet = Fleet()
    for node in nodes:
        fleet.set_node(node.metadata.name, node)
    for ledger in ledgers:
        fleet.set_ledger(ledger.node, ledger)
    for pod in pods:
        if pod.lives:
            fleet.set_living(pod.holder_uid, pod.metadata.key, pod.node)
    return fleet
