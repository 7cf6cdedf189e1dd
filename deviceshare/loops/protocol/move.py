"""The claim protocol's move: a group leaves a node that is lost, once its pods are gone (claims.md, move).

The steps are those of a release, with one before them: where the ledger is gone with its node, it is recreated first,
with the group's claim marked. A leader that recreated it from groups that say `Bound`, when the node is back, would let
a pod join whose binder has not heard that the group left.
"""

from collections.abc import Awaitable, Callable, Collection

from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.object_meta import ObjectMeta
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement.lost_nodes import left_behind, moves
from deviceshare.loops.api_objects import find
from deviceshare.loops.kinds import NODE_DEVICES
from deviceshare.loops.ports import Cluster
from deviceshare.loops.protocol import repair


async def ensure_ledger(
    cluster: Cluster,
    name: str,
    node: Node | None,
    *,
    mark: str,
    wait_out_binds: Callable[[], Awaitable[None]],
) -> None:
    """Recreates the ledger of a lost node where it is missing; without an owner where the node is gone.

    Raises:
        AlreadyExists: somebody else created it; retry.
        ApiError: a request failed; retry.
    """
    if await find(cluster, NODE_DEVICES, name) is not None:
        return
    owner = node or Node(metadata=ObjectMeta(name=name))
    await repair.recreate(
        cluster, owner, gather=lambda: repair.fenced_evidence(cluster), mark=mark, wait_out_binds=wait_out_binds
    )


def stays(group: Group, pods: Collection[Pod]) -> bool:
    """Whether the group stays on its lost node: its policy was changed, or the API server still has a pod of it.

    A pending pod doesn't keep it: it waits for a node that runs nothing.
    """
    return not moves(group) or bool(left_behind(group, pods))
