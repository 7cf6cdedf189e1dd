"""The objects of a large cluster, as an API server stores them: nodes, their ledgers, groups, and pods.

Each bound group holds six of the eight devices of a node of its own. Every other node has one to four devices, all
free, so that groups of five and more wait. Every second waiting group has a node selector, one of `RACKS`.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from deviceshare.domain import contract, vendors
from deviceshare.domain.objects.devices import devices_of, selected, visible

GPU = "nvidia.com/gpu"
LARGE, HELD = 8, 6
RACKS = 20
CREATED = "2026-01-01T00:00:00Z"
REFUSED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available"}
REFERENCES = [
    {"name": vendor.env, "valueFrom": {"fieldRef": {"fieldPath": vendor.field_path}}} for vendor in vendors.VENDORS
]

Raw = dict[str, Any]


class Size(NamedTuple):
    """How many of each there are."""

    nodes: int
    groups: int
    waiting: int
    """Of the groups."""
    pods: int

    @property
    def bound(self) -> int:
        """The groups that have a node."""
        return self.groups - self.waiting

    def __str__(self) -> str:
        return f"{self.nodes:,} nodes, {self.groups:,} groups ({self.waiting:,} waiting), {self.pods:,} pods"


def uid_of(name: str) -> str:
    """As an API server would choose it."""
    return f"00000000-0000-0000-0000-{name:>12}".replace(" ", "0")


def devices_on(number: int, size: Size) -> int:
    """How many devices the node with this number has."""
    return LARGE if number < size.bound else 1 + number % 4


def nodes(size: Size) -> Iterator[Raw]:
    """node-0 and so on."""
    for number in range(size.nodes):
        labels = {contract.MODE_LABEL: contract.MODE_SHARED, "rack": f"r{number % RACKS}"}
        count = {GPU: str(devices_on(number, size)), "cpu": "64", "memory": "512Gi", "pods": "110"}
        ready = {"type": "Ready", "status": "True"}
        yield {
            "metadata": {"name": f"node-{number}", "labels": labels},
            "status": {"allocatable": count, "capacity": count, "conditions": [ready]},
        }


def ledgers(size: Size, uids: list[str]) -> Iterator[Raw]:
    """Open ones; `uids` are those of the groups."""
    for number in range(size.nodes):
        held = msgspec.to_builtins(devices_of({GPU: HELD}))
        claims = {uids[number]: {"group": f"group-{number}", "devices": held}} if number < size.bound else {}
        devices = msgspec.to_builtins(devices_of({GPU: devices_on(number, size)}))
        yield {"metadata": {"name": f"node-{number}"}, "spec": {"claims": claims}, "status": {"devices": devices}}


def groups(size: Size) -> Iterator[Raw]:
    """group-0 and so on, the bound ones first."""
    for number in range(size.groups):
        bound = number < size.bound
        spec: Raw = {"resources": {GPU: HELD if bound else 5 + number % 4}}
        if not bound and number % 2:
            spec["nodeSelector"] = {"rack": f"r{number % RACKS}"}
        status = {"phase": "Bound", "nodeName": f"node-{number}", "selectedDevices": selected(devices_of({GPU: HELD}))}
        yield {"metadata": {"name": f"group-{number}"}, "spec": spec, "status": status if bound else {}}


def pods(size: Size, uids: list[str]) -> Iterator[Raw]:
    """pod-0 and so on, of the groups in turn; those of bound groups are on their nodes."""
    held = devices_of({GPU: HELD})
    given = {**visible(held, {}), contract.SELECTED_DEVICES: msgspec.json.encode(selected(held)).decode()}
    for number in range(size.pods):
        mine = number % size.groups
        bound, named = mine < size.bound, {contract.GROUP: f"group-{mine}"}
        annotations = named | (given | {contract.GROUP_UID: uids[mine]} if bound else {})
        limits = {"cpu": "1", "memory": "8Gi"}
        container = {
            "name": "main",
            "image": "example.com/team/training:1.0",
            "env": REFERENCES,
            "resources": {"limits": limits, "requests": limits},
        }
        spec = {"schedulerName": contract.SCHEDULER_NAME, "containers": [container]}
        yield {
            "metadata": {"name": f"pod-{number}", "namespace": "default", "labels": named, "annotations": annotations},
            "spec": spec | ({"nodeName": f"node-{mine}"} if bound else {}),
            "status": {"phase": "Running"} if bound else {"phase": "Pending", "conditions": [REFUSED]},
        }
