"""The utilization of each device in each minute of the last hour, in memory; an agent that restarts starts again."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from deviceshare.domain.objects.usage import MINUTES, UNKNOWN, DeviceHour, DeviceUsage, NodeUse, Usage

MINUTE: Final = 60.0
"""Seconds."""
MOST_DEVICES: Final = 256
"""Remembered; more than any node has."""


@dataclass(slots=True)
class _Minutes:
    """One device's."""

    last: int
    """The number of the minute under way."""
    means: deque[int] = field(default_factory=lambda: deque(maxlen=MINUTES - 1))
    """Of the minutes that are over."""
    total: int = 0
    looks: int = 0

    def pass_to(self, minute: int) -> None:
        for _ in range(min(minute - self.last, MINUTES)):
            self.means.append(self.mean)
            self.total = self.looks = 0
        self.last = max(self.last, minute)

    @property
    def mean(self) -> int:
        return round(self.total / self.looks) if self.looks else UNKNOWN


class LastHour:
    """Takes each reading of the devices' use."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` gives seconds that never go back."""
        self._clock = clock
        self._devices: dict[str, _Minutes] = {}
        self._usage = Usage("")

    def take(self, usage: Usage) -> None:
        """Remembers a reading; a device of which there was none for an hour is forgotten."""
        minute = int(self._clock() // MINUTE)
        self._usage = usage
        for device in usage.devices:
            if device.utilization is None:
                continue
            key = _key(device)
            if key not in self._devices and len(self._devices) >= MOST_DEVICES:
                continue
            minutes = self._devices.setdefault(key, _Minutes(minute))
            minutes.pass_to(minute)
            minutes.total += device.utilization
            minutes.looks += 1
        self._devices = {key: each for key, each in self._devices.items() if minute - each.last < MINUTES}

    def view(self) -> NodeUse:
        """The last reading with the hour before it."""
        minute = int(self._clock() // MINUTE)
        return NodeUse(self._usage.node, self._usage.time, [self._use(each, minute) for each in self._usage.devices])

    def _use(self, device: DeviceUsage, minute: int) -> DeviceHour:
        minutes = self._devices.get(_key(device))
        if minutes is not None:
            minutes.pass_to(minute)
        return DeviceHour(
            device.resource,
            device.index,
            device.uuid,
            memory_used_mib=device.memory_used_mib,
            memory_total_mib=device.memory_total_mib,
            utilization=device.utilization,
            hour=[*minutes.means, minutes.mean] if minutes else [],
        )


def _key(device: DeviceUsage) -> str:
    return device.uuid or f"{device.resource} {device.index}"
