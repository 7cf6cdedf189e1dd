"""Device counts: how many devices each shared node has, free or not, kept up to date at each change.

Every group that waits asks whether any node could ever have what it wants. Most nodes of a cluster have as many devices
as others, so that few different counts are compared, however many nodes there are.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.placement import counted_devices
from deviceshare.domain.placement.device_state import DeviceState
from deviceshare.domain.placement.nodes_alike import NodesAlike

UNKNOWN: Final = sys.maxsize
"""The count where a node may have any number of devices."""

_Count = frozenset[tuple[str, int]]
_ANY: Final[_Count] = frozenset({("", UNKNOWN)})
"""Of a node that may have anything: its ledger is missing, or names no devices yet."""


class DeviceCounts:
    """Mutable, but pure."""

    def __init__(self) -> None:
        self._alike: NodesAlike[_Count] = NodesAlike()

    def put(self, name: str, node: Node | None, ledger: NodeDevices | None, states: Iterable[DeviceState]) -> None:
        """Takes in a node's devices; what is lost or withheld counts, since it may come back."""
        count = _count(node, ledger, states) if node is not None and node.shared else None
        self._alike.put(name, node.metadata.labels if node else {}, count)

    def version(self, selector: Mapping[str, str]) -> int:
        """Another one whenever `most` may be another."""
        return self._alike.version(selector)

    def most(self, wanted: Mapping[str, int], selector: Mapping[str, str]) -> dict[str, int] | None:
        """The most devices that one node has of each wanted resource; None where some node has, or may have, them all.

        The nodes that count are the shared ones that the selector matches. None also where there is none.
        """
        different = self._alike.names(selector)
        if not different:
            return None
        most = dict.fromkeys(wanted, 0)
        for each in different:
            count = dict(each)
            rest = count.get("", 0)
            mine = {resource: max(count.get(resource, 0), rest) for resource in wanted}
            if all(mine[resource] >= number for resource, number in wanted.items()):
                return None
            most = {resource: max(number, mine[resource]) for resource, number in most.items()}
        return most


def _count(node: Node, ledger: NodeDevices | None, states: Iterable[DeviceState]) -> _Count:
    if ledger is None or ledger.metadata.unreadable or node.metadata.unreadable:
        return _ANY
    if not ledger.status.devices and (ledger.hardware.devices or counted_devices.count(node)):
        return _ANY  # it was just created, or its device plugin restarts
    count = Counter(state.device.resource for state in states)
    unknown = {each.resource: UNKNOWN for each in ledger.status.withheld if not each.devices}
    return frozenset((count | Counter(unknown)).items())
