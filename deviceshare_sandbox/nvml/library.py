"""Compiles nvml.c, and loads it. The tests bring the compiler themselves where a bare Debian has none."""

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Final

from deviceshare_sandbox import debian
from deviceshare_sandbox.reports import Progress, SandboxError

VARIABLE: Final = "DEVICESHARE_NVML_SCRIPT"
"""The environment variable that names the script; read at each call of NVML."""
SONAME: Final = "libnvidia-ml.so.1"
"""What pynvml asks the dynamic linker for."""
_SOURCE: Final = Path(__file__).with_name("nvml.c")
_PACKAGES: Final = ["gcc", "libc6-dev"]
_BY_HAND: Final = f"Run this and try again: sudo apt-get install --no-install-recommends {' '.join(_PACKAGES)}"


def build(directory: Path, *, old: bool = False) -> Path:
    """Compiles the library into `directory`, and returns it. `old` leaves out what came late to NVML.

    Installs the compiler where there is none; raises SandboxError with the command that does it by hand.
    """
    compiler = shutil.which("gcc") or shutil.which("cc") or _install()
    library = directory / SONAME
    # Without its soname the loader wouldn't take a library that is loaded already for the one that pynvml asks for.
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{SONAME}"]
    if old:
        flags.append("-DOLD_DRIVER")
    done = subprocess.run(
        [compiler, *flags, "-o", str(library), str(_SOURCE)], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode != 0:  # A compiler without the C library's headers, most likely.
        raise SandboxError(f"{compiler} failed:\n{done.stderr}", _BY_HAND)
    return library


def load(library: Path) -> None:
    """Makes this process's pynvml use the library, unless it has loaded another already."""
    ctypes.CDLL(str(library))


def _install() -> str:
    try:
        debian.install(_PACKAGES, Progress())
    except SandboxError as error:
        raise SandboxError(str(error), "" if _BY_HAND in str(error) else _BY_HAND) from error
    return "gcc"
