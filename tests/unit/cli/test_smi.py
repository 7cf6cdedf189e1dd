"""`deviceshare smi`, in processes that load the NVML of the tests as they would NVIDIA's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deviceshare.domain.objects.usage import Sighting, decode
from deviceshare_sandbox.nvml import Script, build


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """NVML."""
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """What it answers."""
    return Script(tmp_path / "script")


def smi(environment: dict[str, str], *arguments: str) -> tuple[int, str]:
    """Exit code and output, in an environment with this and no other device variable."""
    kept = {key: value for key, value in os.environ.items() if not key.endswith("VISIBLE_DEVICES")}
    modules = {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "deviceshare", "smi", *arguments]
    environment = kept | modules | environment
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


def shown(library: Path, script: Script, visible: str) -> list[list[str]]:
    """The table's lines in words, where the variable says this."""
    code, said = smi({**script.environment(library), "NVIDIA_VISIBLE_DEVICES": visible})
    assert code == 0, said
    return [line.split() for line in said.splitlines()[1:]]


def devices(library: Path, script: Script, visible: str) -> list[str]:
    """The numbers of the devices that are shown."""
    return [line[0] for line in shown(library, script, visible)]


def test_a_pods_device_is_shown_with_its_use(library: Path, script: Script) -> None:
    """And its processes, by name where this PID namespace knows them."""
    [gpu] = script.gpus(1)
    script.use(gpu, used_mib=1200, percent=42)
    script.processes(gpu, {os.getpid(): 1000, 4194305: None})
    name = Path("/proc/self/comm").read_text().split()

    assert shown(library, script, gpu) == [
        ["0", "42%", "1200", "/", "81559", "NVIDIA", "H100", "80GB", "HBM3", gpu],
        ["1000", *name, str(os.getpid())],
        ["-", "-", "4194305"],
    ]


def test_devices_of_others_are_left_out_where_the_runtime_shows_all(library: Path, script: Script) -> None:
    """As to a privileged container: told by UUID or by the node's number."""
    uuids = script.gpus(4)

    assert devices(library, script, f"{uuids[1]},{uuids[3]}") == ["1", "3"]
    assert devices(library, script, "2,3") == ["2", "3"]
    assert devices(library, script, "all") == ["0", "1", "2", "3"]


def test_devices_that_the_runtime_numbers_anew_are_the_pods_own(library: Path, script: Script) -> None:
    """Inside, the node's devices 2 and 3 are 0 and 1."""
    script.gpus(2)

    assert devices(library, script, "2,3") == ["0", "1"]


def test_devices_that_were_injected_by_cdi_are_the_pods_own(library: Path, script: Script) -> None:
    """The runtime leaves `void` behind, or names that are qualified by their kind."""
    uuids = script.gpus(4)
    kind = "k8s.device-plugin.nvidia.com/gpu"

    assert devices(library, script, "void") == ["0", "1", "2", "3"]
    assert devices(library, script, f"{kind}={uuids[1]},{kind}={uuids[3]}") == ["1", "3"]
    assert devices(library, script, "nvidia.com/gpu=all") == ["0", "1", "2", "3"]


def test_void_without_a_device_means_none(library: Path, script: Script, tmp_path: Path) -> None:
    """Whether the runtime injected no driver, either, or the driver shows nothing."""
    script.gpus(0)
    for environment in ({"LD_LIBRARY_PATH": str(tmp_path)}, script.environment(library)):
        code, said = smi({**environment, "NVIDIA_VISIBLE_DEVICES": "void"})
        assert (code, "NVIDIA_VISIBLE_DEVICES is void" in said) == (1, True), said


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({}, "NVIDIA_VISIBLE_DEVICES is not set"),
        ({"NVIDIA_VISIBLE_DEVICES": ""}, "NVIDIA_VISIBLE_DEVICES is empty"),
        ({"NVIDIA_VISIBLE_DEVICES": "none"}, "NVIDIA_VISIBLE_DEVICES is none"),
        ({"NVIDIA_VISIBLE_DEVICES": "", "AMD_VISIBLE_DEVICES": "0,1"}, "This pod has AMD_VISIBLE_DEVICES=0,1"),
    ],
)
def test_a_pod_without_a_device_is_told_why(
    library: Path, script: Script, environment: dict[str, str], reason: str
) -> None:
    """Even where the container could see one."""
    script.gpus(1)

    code, said = smi({**script.environment(library), **environment})

    assert code == 1
    assert reason in said
    assert "Traceback" not in said


def test_a_device_that_is_gone_is_missed(library: Path, script: Script) -> None:
    """Rather than shown as an empty table."""
    script.gpus(1)

    code, said = smi({**script.environment(library), "NVIDIA_VISIBLE_DEVICES": "GPU-gone"})

    assert (code, "names GPU-gone, but none of them is here" in said) == (1, True)


def test_without_a_driver_the_way_out_is_named(tmp_path: Path) -> None:
    """The variable alone brings no library."""
    code, said = smi({"LD_LIBRARY_PATH": str(tmp_path), "NVIDIA_VISIBLE_DEVICES": "0"})

    assert (code, "Run nvidia-smi on the node" in said) == (1, True)


def sighting(tmp_path: Path, environment: dict[str, str]) -> Sighting | None:
    """What a canary of `doctor --gpu` leaves as its termination message."""
    file = tmp_path / "termination-log"
    assert smi(environment, f"--report={file}") == (0, "")
    return decode(file.read_text())


def test_a_canary_tells_all_that_it_sees(library: Path, script: Script, tmp_path: Path) -> None:
    """Its own or not: the doctor compares."""
    uuids = script.gpus(2)
    environment = script.environment(library)

    assert sighting(tmp_path, {**environment, "NVIDIA_VISIBLE_DEVICES": "1"}) == Sighting("1", uuids)
    assert sighting(tmp_path, environment) == Sighting(None, uuids)
    script.gpus(0)
    assert sighting(tmp_path, {**environment, "NVIDIA_VISIBLE_DEVICES": "void"}) == Sighting("void")


def test_a_canary_tells_a_missing_library_from_a_driver_that_fails(
    library: Path, script: Script, tmp_path: Path
) -> None:
    """The one is the runtime's fault, the other the node's."""
    script.gpus(1)
    none = sighting(tmp_path, {"LD_LIBRARY_PATH": str(tmp_path), "NVIDIA_VISIBLE_DEVICES": "0"})
    assert none is not None and (none.variable, none.library) == ("0", False)
    script.error("nvmlInitWithFlags", 9)
    broken = sighting(tmp_path, {**script.environment(library), "NVIDIA_VISIBLE_DEVICES": "0"})
    assert broken is not None and (broken.library, broken.devices) == (True, [])
    assert "kernel module isn't loaded" in broken.error
