"""The conditions and Events of groups on lost nodes: what their policy does, which pods keep it, and the way out."""

from collections.abc import Collection

from deviceshare.domain.objects.groups import MOVE, Group
from deviceshare.domain.objects.nodes import OUT_OF_SERVICE, Node
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.placement.join_obstacles import recreating
from deviceshare.domain.placement.lost_nodes import is_lost, left_behind, moves
from deviceshare.domain.wording import listed

SHOWN_PODS = 3
REBOUND = "its next pod binds it again"


def loss(group: Group, home: Node | None, pods: Collection[Pod]) -> Reason | None:
    """Why a bound group is degraded by the loss of its node, and what ends that; None where its node isn't lost."""
    if not is_lost(home):
        return None
    kind = ReasonKind.NODE_GONE if home is None else ReasonKind.NODE_OUT_OF_SERVICE
    text = f"node {group.node} {how_lost(home)}"
    if not moves(group):
        return Reason(kind, text, _ways_out(group, home))
    if left := left_behind(group, pods):
        names = listed(sorted(pod.metadata.key for pod in left), most=SHOWN_PODS)
        waits = f"{text}; the group leaves it once these pods are deleted: {names}"
        return Reason(kind, waits, "if they stay, and nothing of them runs any more, kubectl delete pod --force")
    return Reason(kind, f"{text}; the group is leaving it, and {REBOUND}")


def how_lost(home: Node | None) -> str:
    """`is gone`, or `is out of service`."""
    return "is gone" if home is None else "is out of service"


def moved(node: str, home: Node | None) -> Reason:
    """Why a group has no node any more that left its lost one."""
    return Reason(ReasonKind.RELEASED, f"left node {node}, which {how_lost(home)}; {REBOUND}")


def down_for_good(group: Group) -> str:
    """How a group gets off a node that only isn't Ready: that alone doesn't say that its pods have ended."""
    taint = f"kubectl taint node {group.node} {OUT_OF_SERVICE}=nodeshutdown:NoExecute"
    also = "" if group.spec.node_loss_policy == MOVE else f" and {_let_it_move(group)}"
    return f"if its machine is down for good, {taint}{also}"


def _ways_out(group: Group, home: Node | None) -> str:
    back = "bring the node back"
    if home is not None:
        back = f"once the node is up again, kubectl taint node {group.node} {OUT_OF_SERVICE}-"
    return f"{recreating(group.holder)}; or {_let_it_move(group)}; or {back}"


def _let_it_move(group: Group) -> str:
    patch = '{"spec":{"nodeLossPolicy":"Move"}}'
    return f"let it move (kubectl patch sdg {group.name} --type=merge -p '{patch}')"
