"""Why one pod waits, and what a group says of itself, in words for people; `waiting` says why a group waits."""

from collections.abc import Collection
from typing import Final

from deviceshare.domain import status
from deviceshare.domain.fleet import Fleet
from deviceshare.domain.groups import Group, spec_faults
from deviceshare.domain.meta import Condition
from deviceshare.domain.nodes import Node
from deviceshare.domain.pods import Pod

NOT_INJECTED: Final = (
    "the pod was admitted while deviceshare's webhook was away, so its containers would not see the group's devices:"
    " delete and recreate the pod"
)


def pod_obstacle(pod: Pod, group: Group | None) -> str:
    """Why the pod can't be bound to any node, whatever is free there, or ""."""
    if not pod.admitted:
        return NOT_INJECTED
    if group is None:
        return f"group {pod.group} does not exist: create it"
    if group.deleting:
        return f"group {pod.group} is being deleted and takes nobody in: create it again when it is gone"
    faults = spec_faults(group.spec)
    return f"group {group.name} is invalid: {faults[0]}" if faults else ""


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
    return status.bound(group, fleet, pods).message


def conditions(fleet: Fleet, group: Group, pods: Collection[Pod], home: Node | None) -> dict[str, Condition]:
    """The group's conditions by type as the leader writes them, but for their times; `home` is the group's node."""
    wanted = status.desired_status(group, fleet, home=home, pods=pods, now="")
    return {condition.type: condition for condition in wanted.conditions}


def why_it_waits(fleet: Fleet, pod: Pod, group: Group | None, message: str) -> str:
    """What a pending pod waits for; `message` is its group's (`group_message`)."""
    obstacle = pod_obstacle(pod, group)
    if obstacle or group is None:
        return obstacle
    return why_members_wait(fleet, group, scheduler_said(pod), message)


def why_members_wait(fleet: Fleet, group: Group, said: str, message: str) -> str:
    """What pods of the group wait for that nothing is wrong with, and of which kube-scheduler `said` this.

    Where devices are not what they lack, its word is the best there is.
    """
    home = fleet.home(group)
    if home:
        obstacle = fleet.joining_obstacle(group, home)
        return obstacle or said or f"kube-scheduler has not tried it yet; its group lives on node {home}"
    fits = fleet.filter(group, fleet.names()).fits
    return said or message if fits else message


def scheduler_said(pod: Pod) -> str:
    """Why kube-scheduler found no node when it last tried the pod, or ""."""
    return next((c.message for c in pod.status.conditions if c.type == "PodScheduled" and c.status == "False"), "")
