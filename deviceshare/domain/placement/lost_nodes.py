"""Lost nodes: which nodes nothing runs on any more, for certain, and which pods still keep a group on one.

A node that isn't Ready, or can't be reached, may still run its pods. One whose object is gone, or that bears the taint
node.kubernetes.io/out-of-service, was given up by an administrator or the cloud's controller.
https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/#non-graceful-node-shutdown (KEP-2268)
"""

from collections.abc import Iterable

from deviceshare.domain.objects.groups import MOVE, Group
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.pods import Pod


def is_lost(node: Node | None) -> bool:
    """Whether the node's groups may move; None is a node whose object is gone."""
    return node is None or (node.out_of_service and not node.metadata.unreadable)


def moves(group: Group) -> bool:
    """Whether the group leaves a lost node; one that is being deleted ends with its last pod."""
    return group.spec.node_loss_policy == MOVE and not (group.deleting or group.metadata.unreadable)


def left_behind(group: Group, pods: Iterable[Pod]) -> list[Pod]:
    """The pods because of which the group stays on its lost node: their objects are there, so they may still run.

    That a pod has failed doesn't prove it, since others than its kubelet may have written so; that it succeeded does.
    """
    node, uid = group.node, group.uid
    return [pod for pod in pods if _may_be_on(pod, node) and _may_be_of(pod, uid) and pod.status.phase != "Succeeded"]


def _may_be_on(pod: Pod, node: str) -> bool:
    return pod.node == node or (not pod.node and pod.metadata.hides("spec.nodeName"))


def _may_be_of(pod: Pod, uid: str) -> bool:
    known = bool(pod.holder_uid) or not pod.metadata.hides("metadata.annotations")
    return uid in (pod.holder_uid, pod.share_uid) or not known
