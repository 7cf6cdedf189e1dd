"""Fit, choice and score: which devices a group gets on a node, and which node is better.

All or nothing: a group of several resources takes all of them on one node, or none.
"""

from collections.abc import Collection, Mapping

from deviceshare.domain.objects.devices import Device, Devices
from deviceshare.domain.objects.hardware import Link
from deviceshare.domain.placement import topology
from deviceshare.domain.wording import listed

MAX_SCORE = 10
"""kube-scheduler's MaxExtenderPriority (k8s.io/kube-scheduler/extender/v1)."""


def shortage(wants: Mapping[str, int], free: Mapping[str, int], total: Mapping[str, int]) -> str:
    """What is missing on a node with `free` of `total` devices by resource, or "" when the group fits."""
    return listed(
        f"{count} {resource} ({free.get(resource, 0)} of {total.get(resource, 0)} free)"
        for resource, count in sorted(wants.items())
        if free.get(resource, 0) < count
    )


def choose(wants: Mapping[str, int], free: Collection[Device], links: Collection[Link] = ()) -> Devices | None:
    """The devices a group gets: of each resource the best connected, else the lowest indices. None if they don't do."""
    chosen: list[Device] = []
    for resource, count in wants.items():
        candidates = sorted(device for device in free if device.resource == resource)
        if len(candidates) < count:
            return None
        chosen.extend(topology.closest(candidates, count, links))
    return tuple(sorted(chosen))


def scores(strategy: str, free: Mapping[str, int]) -> dict[str, int]:
    """How good each node is, 0 to `MAX_SCORE`, from its number of free devices.

    binpack prefers nodes with fewer free devices, spread those with more. Nodes are ranked by the distinct numbers of
    free devices among them, so that any difference shows, whatever the nodes' sizes; past eleven distinct numbers
    neighbouring ranks share a score.
    """
    ranks = {count: rank for rank, count in enumerate(sorted(set(free.values()), reverse=strategy == "binpack"))}
    top = max(len(ranks) - 1, 1)
    if len(ranks) == 1:
        return dict.fromkeys(free, MAX_SCORE)
    return {node: round(MAX_SCORE * ranks[count] / top) for node, count in free.items()}
