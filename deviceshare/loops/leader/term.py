"""One term as the leader: what all its reconcilers share."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.handover import DEFAULT, HandoverSetting
from deviceshare.loops.leader.members import Members
from deviceshare.loops.ports import Cluster, Mirror, Recorder
from deviceshare.loops.protocol.bind import BINDS_OVER_SECONDS


@dataclass(frozen=True, kw_only=True)
class Term:
    """What reconcilers read the cluster from and change it through; the next term gets a new one."""

    cluster: Cluster
    fleet: Fleet
    """Fed from the same mirrors, before they call the controller."""
    groups: Mirror[Group]
    ledgers: Mirror[NodeDevices]
    nodes: Mirror[Node]
    pods: Mirror[Pod]
    recorder: Recorder
    members: Members = field(default_factory=Members)
    """Kept up to date by the controller."""
    binds_over: float = BINDS_OVER_SECONDS
    """As the claim protocol says of this API server."""
    handover: HandoverSetting = DEFAULT
    clock: Callable[[], float] = time.monotonic
    on_uncovered: Callable[[int], object] = lambda _: None
    """Called with the number of pods that run with devices that another holds, each time it changes."""
