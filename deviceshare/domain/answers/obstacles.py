"""Why one pod waits, and what a group says of itself, in words for people; `waiting` says why a group waits."""

from collections.abc import Collection, Iterable

from deviceshare.domain.answers import group_status
from deviceshare.domain.answers.waiting import behind_gates
from deviceshare.domain.objects.groups import Group, group_faults
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.object_meta import Condition
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement.barred_pods import barred
from deviceshare.domain.placement.blind_spots import pod_fault
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.vendors import vendors_of
from deviceshare.domain.wording import listed


def pod_obstacle(pod: Pod, group: Group | None) -> str:
    """Why the pod can't be bound to any node, whatever is free there, or ""."""
    if pod.left_out:
        return left_out_text(pod)
    if lacking := pod.lacking(vendors_of(group.spec.resources) if group else ()):
        return f"the pod {pod_fault(pod)}" if pod.metadata.fault else not_injected(lacking)
    if group is None:
        return f"group {pod.group} does not exist: create it"
    if group.deleting:
        return f"group {pod.group} is being deleted and takes nobody in: create it again when it is gone"
    if faults := group_faults(group):
        return f"group {group.name} is invalid: {faults[0]}"
    return f"the pod {behind_gates([pod])}" if pod.gates else ""


def not_injected(lacking: Iterable[str]) -> str:
    """Why a pod can't be bound that lacks these parts of the injection."""
    return (
        f"deviceshare's webhook did not inject {listed(lacking)}, so the pod's containers could see other devices than"
        " the group's: delete and recreate the pod"
    )


def left_out_text(pod: Pod) -> str:
    """Why a pod can't join the group that it names: its namespace is left out (guard.py)."""
    namespace = pod.metadata.namespace
    return (
        f"deviceshare's webhooks leave namespace {namespace} out, so none of its pods can join group {pod.left_out}:"
        " create it in another one, or take this one out of webhooks.excludedNamespaces in the chart's values"
        " (--excluded-namespaces)"
    )


def node_obstacle(fleet: Fleet, name: str) -> str:
    """Why no group gets devices on the node, whatever is free there, or ""; kube-scheduler's reasons among them."""
    if obstacle := fleet.obstacle(name):
        return obstacle
    node = fleet.node(name)
    if node is not None and not node.ready:
        return "the node is not Ready"
    if node is not None and node.spec.unschedulable:
        return f"the node is cordoned (kubectl uncordon {name})"
    return ""


def group_message(fleet: Fleet, group: Group, pods: Collection[Pod]) -> str:
    """What the group's condition Bound says; `pods` are those that name the group."""
    return group_status.bound(group, fleet, pods).message


def conditions(fleet: Fleet, group: Group, pods: Collection[Pod], home: Node | None) -> dict[str, Condition]:
    """The group's conditions by type as the leader writes them, but for their times; `home` is the group's node."""
    wanted = group_status.desired_status(group, fleet, home=home, pods=pods, now="")
    return {condition.type: condition for condition in wanted.conditions}


def why_it_waits(fleet: Fleet, pod: Pod, group: Group | None, message: str) -> str:
    """What a pending pod waits for; `message` is its group's (`group_message`)."""
    obstacle = pod_obstacle(pod, group)
    if obstacle or group is None:
        return obstacle
    if found := barred(fleet, group, [pod]):
        return found[0].text
    return why_members_wait(fleet, group, scheduler_said(pod), message)


def why_members_wait(fleet: Fleet, group: Group, said: str, message: str) -> str:
    """What pods of the group wait for that nothing is wrong with, and of which kube-scheduler `said` this.

    Where devices are not what they lack, its word is the best there is.
    """
    home = fleet.home(group)
    if home:
        obstacle = fleet.joining_obstacle(group, home) or node_obstacle(fleet, home)
        return obstacle or said or f"kube-scheduler has not tried it yet; its group lives on node {home}"
    fits = fleet.filter(group, fleet.names()).fits
    return said or message if fits else message


def scheduler_said(pod: Pod) -> str:
    """Why kube-scheduler found no node when it last tried the pod, or ""."""
    return pod.refusal.message if pod.refusal else ""
