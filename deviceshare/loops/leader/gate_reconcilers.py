"""The reconcilers that work only where pods are placed behind scheduling gates, and what they share (decision 16)."""

from typing import Any

from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.pods import Pod
from deviceshare.loops.leader.avoidance import Avoidance
from deviceshare.loops.leader.leaving_groups import LeavingGroups
from deviceshare.loops.leader.placer import Placer
from deviceshare.loops.leader.share_capacities import ShareCapacities
from deviceshare.loops.leader.term import GatePlacement, Term
from deviceshare.loops.leader.unschedulable_pods import UnschedulablePods
from deviceshare.loops.ports import ObjectChange
from deviceshare.loops.queue import Queue


class GateReconcilers:
    """The Placer, and those that lead a pod that did not fit back to a decision."""

    def __init__(self, term: Term, placement: GatePlacement) -> None:
        avoidance = Avoidance()
        self.placer = Placer(term, placement, avoidance)
        self._leaving = LeavingGroups(term)
        self._unschedulable = UnschedulablePods(term, avoidance, self._leaving)
        self._capacities = ShareCapacities(term, placement.share_resources)

    @property
    def queues(self) -> tuple[Queue[Any], ...]:
        """For the controller to run."""
        return self.placer.queue, self._leaving.queue, self._unschedulable.queue, self._capacities.queue

    def change_pod(self, change: ObjectChange[Pod]) -> None:
        """Takes in a change of a pod that wants devices."""
        self.placer.change(change)
        self._unschedulable.change(change)

    def change_node(self, change: ObjectChange[Node]) -> None:
        """Takes in a change of a node, heartbeats included."""
        self.placer.change_node(change)
        self._capacities.change(change)

    async def close(self) -> None:
        """Ends what is under way."""
        await self.placer.close()
