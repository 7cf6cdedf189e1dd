"""Xid errors, as the driver reports them while they happen."""

import time
from contextlib import suppress
from ctypes import c_void_p, cast
from typing import Any

import pynvml
from msgspec import Struct

from deviceshare.nvidia.driver import NvmlRefused, ask, find_gpus


class XidError(Struct, frozen=True):
    """One error. The driver may report one fault more than once, and one fault as several errors."""

    uuid: str
    """The GPU's, also where a MIG part of it was hit; empty where the driver doesn't tell."""
    number: int


class Watch:
    """Listens on all GPUs that answer. What happened before isn't told, so watch first and read the inventory then.

    `unwatched` says of the others why not: by UUID, or by index where a GPU doesn't tell it.
    """

    def __init__(self) -> None:
        """Needs a started Driver. Raises NoDriver, and Refused where this driver knows no events at all."""
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
            Lost: NVML lost a GPU, and doesn't say which. It says so again at each call, at once: look at the inventory,
                restart the driver before the next watch, and pause between two tries.
            NoDriver: the driver went away.
            Refused: any other error.
        """
        if not self._uuids:
            # NVML's documents don't say what waiting for nobody does.
            time.sleep(timeout)
            return None
        event = ask(_wait, self._events, round(timeout * 1000))
        return None if event is None else XidError(self._uuid(event.device), event.eventData)

    def close(self) -> None:
        """Ends the watch, which may have ended already. Call it before the driver is stopped or restarted."""
        events, self._events = self._events, None
        if events is not None:  # NVML would free it twice.
            with suppress(pynvml.NVMLError):
                pynvml.nvmlEventSetFree(events)

    def _uuid(self, handle: Any) -> str:
        # A GPU that just fell off the bus may not answer any more, but its handle is still what it was.
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
