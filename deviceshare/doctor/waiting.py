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


async def examine(api: Cluster, *, gates: bool = False) -> Check:
    """Lists the groups' pods, and the nodes that they could go to; `gates` says that the leader places pods itself."""
    try:
        nodes, ledgers = await api.list(NODES), await api.list(NODE_DEVICES)
        groups, pods = await api.list(GROUPS), await api.list(PODS, label_selector=contract.GROUP)
    except ApiError as error:
        return check("waiting pods", "", [unread("nodes, ledgers, groups and their pods", error)])
    waiting = sum(pod.pending for pod in pods)
    said = f"{waiting} waiting, none of them barred by its own node affinity"
    found = [*judge(nodes, ledgers, groups, pods), *judge_placement(pods, gates=gates)]
    return check("waiting pods", said, found)


def judge_placement(pods: Iterable[Pod], *, gates: bool) -> list[Finding]:
    """Pods that were admitted under the other setting of `placement`, and those that did not fit where they are."""
    findings, known = [], list(pods)
    left = sorted(pod.metadata.key for pod in known if pod.pending and _of_the_other(pod, gates=gates))
    if left:
        other = "a kube-scheduler of deviceshare's" if gates else "deviceshare to lift its scheduling gate"
        what = f"{listed(left)} wait for {other}, as this was before `placement` was changed"
        findings.append(Finding(WARNING, what, "delete and recreate the pods"))
    for pod in known:
        if pod.placed_on and pod.refusal and not pod.metadata.controller:
            what = f"{pod.metadata.key} was placed on {pod.placed_on}, where it does not fit: {pod.refusal.message}"
            findings.append(Finding(WARNING, what, "delete the pod and create it again"))
    return findings


def _of_the_other(pod: Pod, *, gates: bool) -> bool:
    if not gates:
        return pod.awaits_placement
    return pod.spec.scheduler_name == contract.SCHEDULER_NAME and not pod.spec.scheduling_gates


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
            lines.setdefault(pod.queue_key, []).append(pod)
    for mine in lines.values():
        request = request_of(mine[0], None)
        for each in ruled_out(fleet, request, mine) if request else ():
            alike.setdefault(each.reason, []).append(each.pod.metadata.key)
    return [
        Finding(WARNING, f"{listed(pods)} can't be bound: {reason.text}", reason.cure) for reason, pods in alike.items()
    ]
