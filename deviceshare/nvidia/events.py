"""Xid errors, in the order in which the driver reports them."""

import time
from contextlib import suppress
from ctypes import c_void_p, cast
from typing import Any

import pynvml
from msgspec import Struct

from deviceshare.nvidia.driver import NvmlRefused, ask, find_gpus


class XidError(Struct, frozen=True):
    """One error. The driver may report one fault repeatedly, and as several errors."""

    uuid: str
    """The GPU's, also where the error was in one of its MIG instances; empty where the driver doesn't report it."""
    number: int


class Watch:
    """A subscription to the errors of all GPUs that answer. Create it before reading the inventory.

    Earlier errors aren't reported: those between the two would be in neither. `unwatched` says why the other GPUs are
    not watched, by UUID, or by index where a GPU doesn't report it.
    """

    def __init__(self) -> None:
        """Needs a started Driver. Raises NoDriver, and NvmlRefused where this driver supports no events."""
        gpus, silent = find_gpus()
        self.unwatched = {str(index): reason for index, reason in silent.items()}
        self._events = ask(pynvml.nvmlEventSetCreate)
        self._uuids: dict[int | None, str] = {}
        for gpu in gpus:
            try:
                ask(pynvml.nvmlDeviceRegisterEvents, gpu.handle, pynvml.nvmlEventTypeXidCriticalError, self._events)
            except NvmlRefused as error:
                self.unwatched[gpu.uuid] = str(error)
            else:
                self._uuids[_address(gpu.handle)] = gpu.uuid

    def next(self, timeout: float) -> XidError | None:
        """The next Xid error, or None when none came within `timeout` seconds.

        Raises:
            Lost: NVML lost a GPU, and doesn't say which. Each later call raises it at once: read the inventory,
                restart the driver before the next watch, and pause between retries.
            NoDriver: the driver was unloaded.
            NvmlRefused: any other error.
        """
        if not self._uuids:
            # NVML doesn't document what waiting on an empty event set does.
            time.sleep(timeout)
            return None
        event = ask(_wait, self._events, round(timeout * 1000))
        return None if event is None else XidError(self._uuid(event.device), event.eventData)

    def close(self) -> None:
        """Ends the watch; idempotent. Call it before the driver is stopped or restarted."""
        events, self._events = self._events, None
        if events is not None:  # NVML would free it twice.
            with suppress(pynvml.NVMLError):
                pynvml.nvmlEventSetFree(events)

    def _uuid(self, handle: Any) -> str:
        # A GPU that just fell off the bus may not answer, but its handle is unchanged.
        try:
            return str(ask(pynvml.nvmlDeviceGetUUID, handle))
        except NvmlRefused:
            return self._uuids.get(_address(handle), "")


def _wait(events: Any, milliseconds: int) -> Any:
    try:
        return pynvml.nvmlEventSetWait_v2(events, milliseconds)
    except pynvml.NVMLError_Timeout:
        return None


def _address(handle: Any) -> int | None:
    return cast(handle, c_void_p).value
