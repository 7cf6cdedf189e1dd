"""Tells people of processes on devices that are somebody else's, and, where they ask for it, ends their pods.

What is seen once may be a process that is just going, or a pod that the watch hasn't told of: it counts when it is
seen twice in a row.
"""

from collections.abc import Callable, Iterable
from typing import Final

import structlog

from deviceshare.domain.hardware import Trespass
from deviceshare.domain.ledger import NodeDevices
from deviceshare.domain.trespass import Occupant, as_trespass, trespassers
from deviceshare.loops.agent.evicting import Intruder
from deviceshare.loops.kinds import NODES, PODS
from deviceshare.loops.ports import Recorder

log = structlog.get_logger(__name__)

SPARED: Final = "kube-system"
"""The namespace whose pods are never evicted: the cluster's own, such as device plugins."""


class Guard:
    """Compares each look with the one before."""

    def __init__(self, node: str, recorder: Recorder, evict: Callable[[Intruder], object] | None = None) -> None:
        """`evict` is told of each pod to evict, at each look again; None where nobody is to be evicted."""
        self._node = node
        self._recorder = recorder
        self._evict = evict
        self._before: set[Trespass] = set()
        self._told: set[Trespass] = set()

    def remember(self, reported: Iterable[Trespass]) -> None:
        """Takes over what an agent before this one reported, so that its successor doesn't take it back."""
        self._before = self._told = set(reported)

    def look(self, ledger: NodeDevices, occupants: Iterable[Occupant]) -> list[Occupant]:
        """The trespassers that were there at the last look, too."""
        found = [(as_trespass(each), each) for each in trespassers(ledger, occupants)]
        stayed = [(row, each) for row, each in found if row in self._before]
        self._before = {row for row, _ in found}
        for row, occupant in {row: (row, each) for row, each in stayed}.values():
            if row not in self._told:
                self._tell(ledger, occupant)
            if self._evict and occupant.pod_uid and not occupant.pod.startswith(f"{SPARED}/"):
                namespace, _, name = occupant.pod.partition("/")
                self._evict(Intruder(namespace, name, occupant.pod_uid))
        self._told = {row for row, _ in stayed}
        return [each for _, each in stayed]

    def _tell(self, ledger: NodeDevices, occupant: Occupant) -> None:
        holders = [claim.group for claim in ledger.claims.values() if occupant.device in ledger.reserved(claim)]
        groups = ", ".join(sorted(holders))
        log.warning(
            "Found a trespasser", device=str(occupant.device), groups=groups, pod=occupant.pod, process=occupant.name
        )
        message = (
            f"process {occupant.name} uses {occupant.device} of node {self._node}, which SharedDeviceGroup {groups}"
            " holds, but belongs to no pod of it"
        )
        namespace, _, name = occupant.pod.rpartition("/")
        who = (PODS, name, namespace, occupant.pod_uid) if occupant.pod_uid else (NODES, self._node, "", self._node)
        self._recorder.event(*who, type_="Warning", reason="Trespass", message=message)
