"""Waiting pods that are barred by their own node affinity, which no change of nodes or devices helps."""

from collections.abc import Iterable, Sequence

from deviceshare.doctor.findings import WARNING, Check, Finding, check, listed, unread
from deviceshare.domain import contract
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import Reason
from deviceshare.domain.placement.barred_pods import barred, ruled_out
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.join_obstacles import request_of
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, NODES, PODS
from deviceshare.loops.ports import ApiError, Cluster


async def examine(api: Cluster) -> Check:
    """Lists the groups' pods, and the nodes that they could go to."""
    try:
        nodes, ledgers = await api.list(NODES), await api.list(NODE_DEVICES)
        groups, pods = await api.list(GROUPS), await api.list(PODS, label_selector=contract.GROUP)
    except ApiError as error:
        return check("waiting pods", "", [unread("nodes, ledgers, groups and their pods", error)])
    waiting = sum(pod.pending for pod in pods)
    said = f"{waiting} waiting, none of them barred by its own node affinity"
    return check("waiting pods", said, judge(nodes, ledgers, groups, pods))


def judge(
    nodes: Iterable[Node], ledgers: Iterable[NodeDevices], groups: Iterable[Group], pods: Sequence[Pod]
) -> list[Finding]:
    """One finding for each reason and cure."""
    fleet = Fleet()
    for node in nodes:
        fleet.set_node(node.metadata.name, node)
    for ledger in ledgers:
        fleet.set_ledger(ledger.node, ledger)
    alike: dict[Reason, list[str]] = {}
    for group in groups:
        for each in barred(fleet, group, [pod for pod in pods if pod.group == group.name]):
            alike.setdefault(each.reason, []).append(each.pod.metadata.key)
    lines: dict[str, list[Pod]] = {}
    for pod in pods:
        if pod.pending and not pod.group:
            lines.setdefault(pod.line, []).append(pod)
    for mine in lines.values():
        request = request_of(mine[0], None)
        for each in ruled_out(fleet, request, mine) if request else ():
            alike.setdefault(each.reason, []).append(each.pod.metadata.key)
    return [
        Finding(WARNING, f"{listed(pods)} can't be bound: {reason.text}", reason.cure) for reason, pods in alike.items()
    ]
