"""Nodes: whether any is shared, whether shared ones have devices, and labels with slips."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from typing import Final

from deviceshare.doctor.findings import OK, PROBLEM, WARNING, Check, Finding, check, listed, logs, unread
from deviceshare.domain import contract
from deviceshare.domain.objects.hardware import NO_HARDWARE, Withheld
from deviceshare.domain.objects.ledger import LedgerStatus, NodeDevices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.placement import counted_devices
from deviceshare.domain.placement.dedicated_devices import AnnotationFault
from deviceshare.domain.placement.device_states import device_states
from deviceshare.domain.placement.inventory import KEPT_OUT, take
from deviceshare.loops.kinds import NODE_DEVICES, NODES
from deviceshare.loops.ports import ApiError, Cluster

ALIKE: Final = 0.85
"""How similar a label's key must be to ours to be regarded as a slip, as `deviceshare/mode` is."""
_SHARE: Final = f"kubectl label node NODE --overwrite {contract.MODE_LABEL}={contract.MODE_SHARED}"


async def examine(api: Cluster, release: str) -> Check:
    """Lists all nodes, and the ledgers of the shared ones."""
    try:
        nodes = await api.list(NODES)
    except ApiError as error:
        return check("nodes", "", [unread("nodes", error)])
    try:
        ledgers = await api.list(NODE_DEVICES)
    except ApiError as error:
        return check("nodes", "", [*judge(nodes, None, release), unread("ledgers (NodeDevices)", error)])
    shared = [node for node in nodes if node.shared]
    total = sum(len(ledger.devices) for ledger in ledgers)
    free = sum(state.free for ledger in ledgers for state in device_states(ledger))
    return check("nodes", f"{len(shared)} shared, {total} devices, {free} of them free", judge(nodes, ledgers, release))


def judge(nodes: Sequence[Node], ledgers: Iterable[NodeDevices] | None, release: str) -> list[Finding]:
    """What is wrong with the nodes; without ledgers, as far as node objects show it."""
    findings = [*_unshared(nodes), *_slips(nodes)]
    books = None if ledgers is None else {ledger.node: ledger for ledger in ledgers}
    bare, unbooked, unready = [], [], []
    withheld: dict[str, tuple[Withheld, list[str]]] = {}
    for node in (each for each in nodes if each.shared):
        name = node.metadata.name
        book = (books or {}).get(name)
        status = book.status if book else LedgerStatus()
        inventory = take(node, status.hardware, status.published)
        kept_out = [each for each in inventory.withheld if each.reason == KEPT_OUT and not inventory.faults]
        for each in (*kept_out, *inventory.untold):
            withheld.setdefault(str(each), (each, []))[1].append(name)
        if not inventory.devices and not inventory.withheld:
            bare.append(name)
        elif books is not None and book is None:
            unbooked.append(name)
        if not node.ready:
            unready.append(name)
        findings += [_misread(name, fault) for fault in inventory.faults]
    findings += [_withheld(each, names) for each, names in withheld.values()]
    findings += _found(nodes)
    if bare:
        cure = (
            "run the vendor's device plugin or deviceshare's agent there, or declare the devices: "
            f"kubectl annotate node NODE {contract.INVENTORY_ANNOTATION}=nvidia.com/gpu=4"
        )
        findings.append(Finding(WARNING, f"shared, but without devices: {listed(bare)}", cure))
    if unbooked:
        what = f"shared, but without a ledger (NodeDevices), so no leader is running: {listed(unbooked)}"
        findings.append(Finding(PROBLEM, what, logs(release, contract.NAME)))
    if unready:
        findings.append(Finding(WARNING, f"shared, but not Ready: {listed(unready)}", "kubectl describe node NODE"))
    return findings


def _unshared(nodes: Sequence[Node]) -> list[Finding]:
    if any(node.shared for node in nodes):
        return []
    able = [node.metadata.name for node in nodes if take(node, NO_HARDWARE).devices]
    hint = f"; these have devices: {listed(able)}" if able else ""
    return [Finding(PROBLEM, f"no node is shared, so no group can be placed{hint}", _SHARE)]


def _slips(nodes: Iterable[Node]) -> list[Finding]:
    slips: defaultdict[str, list[str]] = defaultdict(list)
    for node in nodes:
        for key, value in node.metadata.labels.items():
            if _slip(key, value):
                slips[f"{key}={value}"].append(node.metadata.name)
    return [
        Finding(
            WARNING, f"the label {label} has no meaning: {listed(names)}", f"{_SHARE}; kubectl label node NODE {key}-"
        )
        if (key := label.partition("=")[0]) != contract.MODE_LABEL
        else Finding(WARNING, f"the label {label} shares nothing: {listed(names)}", _SHARE)
        for label, names in sorted(slips.items())
    ]


def _slip(key: str, value: str) -> bool:
    if key == contract.MODE_LABEL:
        return value != contract.MODE_SHARED
    if key == contract.HANDOVER_LABEL:
        return False  # handover.py reports a wrong value, which makes the node offer nothing
    return key.startswith(contract.PREFIX) or SequenceMatcher(None, key.lower(), contract.MODE_LABEL).ratio() >= ALIKE


def _misread(node: str, fault: AnnotationFault) -> Finding:
    cure = f"kubectl annotate node {node} --overwrite {fault.annotation}=nvidia.com/gpu=0-3"
    return Finding(PROBLEM, f"annotation {fault.annotation} of {node}: {fault.text}", cure)


def _withheld(each: Withheld, nodes: list[str]) -> Finding:
    if each.reason == KEPT_OUT:
        return Finding(OK, f"{each}: {listed(nodes)}", "")
    return Finding(WARNING, f"no group gets {each.named}: {each.reason}: {listed(nodes)}", each.cure)


def _found(nodes: Iterable[Node]) -> list[Finding]:
    """How the devices of shared nodes were counted where labels, annotations or plugins describe sharing."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for node in (each for each in nodes if each.shared):
        for resource, counted in counted_devices.count(node).items():
            if counted.found and counted.number:
                found[f"{counted.number} {resource} ({counted.found})"].append(node.metadata.name)
    return [Finding(OK, f"{what}: {listed(names)}", "") for what, names in sorted(found.items())]
