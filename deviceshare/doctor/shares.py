"""Shares: nodes where pods can't get parts of devices, for what another system left there or for unknown memory."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from deviceshare.doctor.findings import OK, WARNING, Check, Finding, check, listed, unread
from deviceshare.domain import vendors
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.shares import DIALECTS
from deviceshare.domain.placement import dialect_leftovers
from deviceshare.loops.kinds import NODE_DEVICES, NODES
from deviceshare.loops.ports import ApiError, Cluster

_SHAREABLE = {resource for dialect in DIALECTS.values() for resource in dialect.devices}


async def examine(api: Cluster) -> Check:
    """Looks at what shared nodes advertise, and at their ledgers."""
    try:
        nodes, ledgers = await api.list(NODES), await api.list(NODE_DEVICES)
    except ApiError as error:
        return check("shares", "", [unread("nodes and their ledgers (NodeDevices)", error)])
    said = "the memory of every device is known, and no node advertises a resource of shares itself"
    return check("shares", said, judge(nodes, ledgers))


def judge(nodes: Sequence[Node], ledgers: Iterable[NodeDevices]) -> list[Finding]:
    """One finding for each resource that nodes advertise, and one for each of which the memory is unknown."""
    shared = {node.metadata.name: node for node in nodes if node.shared}
    left: defaultdict[str, list[str]] = defaultdict(list)
    for name, node in shared.items():
        for resource in dialect_leftovers.advertised(node):
            left[resource].append(name)
    unknown: defaultdict[str, list[str]] = defaultdict(list)
    for ledger in (each for each in ledgers if each.node in shared):
        devices = [device for device in ledger.devices if not ledger.memory_of(device)]
        for resource in {device.resource for device in devices} & _SHAREABLE:
            unknown[resource].append(ledger.node)
    findings = [_left(resource, names) for resource, names in sorted(left.items())]
    return [*findings, *(_unknown(resource, names) for resource, names in sorted(unknown.items()))]


def _left(resource: str, names: list[str]) -> Finding:
    reason = dialect_leftovers.leftover_reason([resource])
    return Finding(WARNING, f"{resource} is advertised by {listed(names)}: {reason.text}", reason.cure)


def _unknown(resource: str, names: list[str]) -> Finding:
    """No warning: percent works, and so do groups."""
    what = f"pods that ask for an amount of memory don't go to {listed(names)}: that of {resource} isn't known there"
    if resource == vendors.NVIDIA.resource:
        cure = "run deviceshare's agent there (agent.enabled=true), or GPU feature discovery"
    else:
        cure = "run AMD's node labeller there, with -vram"
    return Finding(OK, what, f"{cure}; or say how much: {_label(resource)}")


def _label(resource: str) -> str:
    if resource == vendors.NVIDIA.resource:
        return f"kubectl label node NODE {resource}.memory=16384"
    return f"kubectl label node NODE {resource}.vram=16G"
