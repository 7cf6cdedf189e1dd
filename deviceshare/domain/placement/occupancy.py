"""Occupancy: what the pods on each node request of it, kept up to date at each change of a pod.

Besides pods that are bound it counts those whose scheduling gate was lifted, and those that are being placed just now:
kube-scheduler will count them a moment later.
"""

from typing import NamedTuple

from deviceshare.domain.objects.pod_requests import Amounts, requests_of
from deviceshare.domain.objects.pod_spec import TERMINAL
from deviceshare.domain.objects.pods import Pod


class PlacedRequests(NamedTuple):
    """One pod's node, and what it requests there."""

    node: str
    requests: Amounts


class Occupancy:
    """Mutable, but pure: no await, no clock, no log."""

    def __init__(self) -> None:
        self._seats: dict[str, PlacedRequests] = {}
        """By the pod's UID."""
        self._assumed: dict[str, PlacedRequests] = {}
        self._used: dict[str, Amounts] = {}

    def change(self, old: Pod | None, new: Pod | None) -> bool:
        """Takes in a change of one pod; returns whether a node has more left than before."""
        before = self._seats.pop(old.metadata.uid, None) if old else None
        # Its phase alone decides for kube-scheduler, too. Its devices are another matter (Pod.lives).
        seated = new is not None and bool(new.node) and new.status.phase not in TERMINAL
        now = PlacedRequests(new.node, requests_of(new)) if new and seated else None
        if new and now:
            self._seats[new.metadata.uid] = now
        if before == now:
            return False
        self._count(before, -1)
        self._count(now, 1)
        return before is not None

    def assume(self, pod: Pod, node: str) -> None:
        """Counts the pod while it is being placed on the node."""
        self.forget(pod)
        self._assumed[pod.metadata.uid] = seat = PlacedRequests(node, requests_of(pod))
        self._count(seat, 1)

    def forget(self, pod: Pod) -> None:
        """Ends an assumption: the pod was placed, which a change of it shows, or could not be."""
        self._count(self._assumed.pop(pod.metadata.uid, None), -1)

    def assumed(self, pod: Pod) -> bool:
        """Whether the pod is being placed."""
        return pod.metadata.uid in self._assumed

    def used(self, node: str) -> Amounts:
        """What is requested of the node already."""
        return self._used.get(node, {})

    def _count(self, seat: PlacedRequests | None, sign: int) -> None:
        if seat is None:
            return
        used = self._used.setdefault(seat.node, {})
        for resource, number in seat.requests.items():
            used[resource] = used.get(resource, 0) + sign * number
        if not any(used.values()):
            del self._used[seat.node]
