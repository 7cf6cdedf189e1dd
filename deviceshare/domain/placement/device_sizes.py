"""Device sizes: how much memory the devices of the shared nodes have, kept up to date at each change.

The webhook asks for the largest at each creation of a pod with a share, and thousands of nodes change all the time, but
hardly ever in this.
"""

from collections.abc import Collection, Iterable

from deviceshare.domain.placement.device_state import DeviceState


class DeviceSizes:
    """Mutable, but pure."""

    def __init__(self) -> None:
        self._of: dict[str, frozenset[tuple[str, int]]] = {}
        """By node, its devices' resources and MiB."""
        self._largest: dict[frozenset[str], int] = {}

    def put(self, name: str, states: Iterable[DeviceState]) -> None:
        """Takes in a node's devices; none where it isn't shared."""
        sizes = frozenset((state.device.resource, state.memory_mib) for state in states if state.offered)
        if sizes == self._of.get(name, frozenset()):
            return
        self._largest.clear()
        self._of[name] = sizes
        if not sizes:
            del self._of[name]

    def largest(self, resources: Collection[str]) -> int:
        """MiB of the largest device of these resources; 0 where that of some device is unknown."""
        key = frozenset(resources)
        if key not in self._largest:
            sizes = [size for each in self._of.values() for resource, size in each if resource in key]
            self._largest[key] = max(sizes) if sizes and all(sizes) else 0
        return self._largest[key]
