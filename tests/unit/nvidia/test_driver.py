"""NVML's start and end, and what people are told when it doesn't start."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deviceshare.nvidia import Driver, NoDriver, NvmlRefused, read_inventory, read_usage
from deviceshare_sandbox.nvml import Script

TESTS = Path(__file__).parent


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (9, "kernel module isn't loaded. Run nvidia-smi"),
        (18, "different versions, as after an upgrade. Reboot the node"),
        (999, "NVML doesn't start: Unknown Error .* Run nvidia-smi"),
    ],
)
def test_who_starts_without_a_driver_learns_the_next_step(script: Script, code: int, told: str) -> None:
    """Each cause has another cure."""
    script.error("nvmlInitWithFlags", code)
    with pytest.raises(NoDriver, match=told):
        Driver().__enter__()


@pytest.fixture
def no_library(tmp_path: Path) -> dict[str, str]:
    """An environment in which NVML can't be loaded, on a machine with GPUs neither."""
    (tmp_path / "libnvidia-ml.so.1").touch()
    return os.environ | {"LD_LIBRARY_PATH": str(tmp_path)}


def test_a_machine_without_nvml_is_told_from_a_broken_one(no_library: dict[str, str]) -> None:
    """A process of its own: a library stays loaded."""
    code = "from deviceshare.nvidia import Driver; Driver().__enter__()"
    done = subprocess.run([sys.executable, "-c", code], env=no_library, capture_output=True, text=True, check=False)
    assert "deviceshare.nvidia.NoLibrary: The library of NVIDIA's driver, libnvidia-ml.so.1" in done.stderr


def test_the_tests_for_real_gpus_fail_where_there_is_none(no_library: dict[str, str]) -> None:
    """They don't skip: who runs them wants to know that they ran."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(TESTS / "test_any_gpu.py")]
    environment = no_library | {"DEVICESHARE_GPU": "real"}
    done = subprocess.run(
        command, env=environment, cwd=TESTS.parents[2], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    assert "NoDriver" in done.stdout


@pytest.mark.parametrize("read", [read_inventory, read_usage])
def test_nothing_is_read_before_the_start_or_after_the_stop(script: Script, read: object) -> None:
    """NVML belongs to the process: nobody starts it in passing."""
    assert callable(read)
    script.gpus(1)
    with Driver():
        read()
    with pytest.raises(NoDriver, match="not been started"):
        read()


def test_a_stop_without_a_start_is_none() -> None:
    """As after a start that failed."""
    Driver().__exit__()


def test_a_driver_that_cannot_count_is_neither_gone_nor_without_gpus(script: Script, driver: Driver) -> None:
    """An empty inventory would say that the node has no GPUs."""
    script.gpus(2)
    script.error("nvmlDeviceGetCount_v2", 999)
    with pytest.raises(NvmlRefused, match="nvmlDeviceGetCount"):
        read_inventory()
