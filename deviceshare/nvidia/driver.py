"""NVML's initialization and shutdown, the GPUs it finds, and its errors as exceptions.

NVML belongs to the whole process, so a `Driver` has no state but NVML's own.
Reference: https://docs.nvidia.com/deploy/nvml-api/
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Self

import pynvml
from msgspec import Struct


class NoDriver(Exception):
    """NVML can't be used at all; the text says why, and what to do."""


class NoLibrary(NoDriver):
    """The library of NVIDIA's driver is not in the container."""


class NvmlRefused(Exception):
    """NVML answered with an error that says nothing about the GPU's health."""


class Lost(NvmlRefused):
    """The driver can't reach the GPU any more, or not before it is reset."""


class Gpu(Struct, frozen=True):
    """A GPU that answers. `handle` is NVML's, valid until the driver is stopped."""

    index: int
    uuid: str
    handle: Any


MIB: Final = 1024 * 1024

_LOST: Final = {
    pynvml.NVML_ERROR_GPU_IS_LOST: "the driver has lost the GPU",
    pynvml.NVML_ERROR_RESET_REQUIRED: "the GPU needs a reset",
}
_NO_DRIVER: Final = {
    pynvml.NVML_ERROR_UNINITIALIZED: "NVML has not been started.",
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: (
        "The library of NVIDIA's driver, libnvidia-ml.so.1, is not in the container. Run nvidia-smi on the node: if it "
        "works, give the pod the runtime class of NVIDIA's container toolkit, or recreate a pod that is older than the "
        "toolkit; if not, install the driver."
    ),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (
        "NVIDIA's kernel module isn't loaded. Run nvidia-smi on the node: it reports the cause."
    ),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "NVIDIA's kernel module and its library are of different versions, as after an upgrade. Reboot the node; where "
        "nvidia-smi works on it already, recreate this pod, which has the library from before."
    ),
}


def ask(function: Callable[..., Any], *arguments: object) -> Any:
    """The result of a function of `pynvml`.

    Raises:
        NoDriver: NVML is missing or not initialized.
        Lost: the GPU can't be reached.
        NvmlRefused: any other error.
    """
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        if error.value in _NO_DRIVER:
            kind = NoLibrary if error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND else NoDriver
            raise kind(_NO_DRIVER[error.value]) from error
        if error.value in _LOST:
            raise Lost(_LOST[error.value]) from error
        raise NvmlRefused(f"{error} ({function.__name__})") from error
    except UnicodeDecodeError as error:  # by pynvml: a board's memory may hold anything
        raise NvmlRefused(f"an answer that is no text ({function.__name__})") from error


def ask_if_known(function: Callable[..., Any], *arguments: object) -> Any:
    """Like `ask`, but None where this driver or this GPU doesn't support it."""
    try:
        return ask(function, *arguments)
    except Lost:
        raise
    except NvmlRefused:
        return None


class Driver:
    """NVML, from `start` to `stop`. In between the other functions of this package may be called."""

    def start(self) -> None:
        """Raises NoDriver."""
        try:
            ask(pynvml.nvmlInit)
        except NvmlRefused as error:
            raise NoDriver(f"NVML doesn't start: {error}. Run nvidia-smi on the node: it reports the cause.") from error

    def stop(self) -> None:
        """Releases NVML's hold on the GPUs; a GPU can't be reset before."""
        # NVML that didn't start needs no shutdown.
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()

    def restart(self) -> None:
        """Restarts NVML, which finds a GPU that it lost only when it starts.

        Handles and event sets from before are void. Raises NoDriver.
        """
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def find_gpus() -> tuple[list[Gpu], dict[int, str]]:
    """The GPUs that answer, and by index why each other one doesn't. Raises NoDriver and NvmlRefused."""
    answering: list[Gpu] = []
    silent: dict[int, str] = {}
    for index in range(ask(pynvml.nvmlDeviceGetCount)):
        try:
            handle = ask(pynvml.nvmlDeviceGetHandleByIndex, index)
            answering.append(Gpu(index, ask(pynvml.nvmlDeviceGetUUID, handle), handle))
        except NvmlRefused as error:
            # Unknown errors too: without a UUID the GPU can't be identified.
            silent[index] = str(error)
    return answering, silent


def read_memory(gpu: Gpu) -> Any:
    """NVML's `total` and `used`, in bytes; None where the GPU has no memory of its own. Raises NoDriver and Lost.

    Drivers before R510 count as used what they reserve. Later ones report that separately, in version 2 of the call.
    """
    memory = ask_if_known(pynvml.nvmlDeviceGetMemoryInfo, gpu.handle, pynvml.nvmlMemory_v2)
    return memory if memory is not None else ask_if_known(pynvml.nvmlDeviceGetMemoryInfo, gpu.handle)


def read_pci(function: Callable[..., Any], *arguments: object) -> str:
    """The PCI address that this function of `pynvml` answers, "" where there is none. Raises NoDriver and Lost."""
    info = ask_if_known(function, *arguments)
    try:
        return "" if info is None else _pci_address(info.busId)
    except ValueError:  # of a GPU without PCI, or no text at all
        return ""


def _pci_address(bus_id: str) -> str:
    """NVML's `00000000:3B:00.0` as Linux writes it, `0000:3b:00.0`."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"
