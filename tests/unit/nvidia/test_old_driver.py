"""A driver that lacks the newer half of NVML: the symbols themselves are missing.

In a process of its own, because pynvml keeps the functions that it found once.
"""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from deviceshare.domain.device_health.containers import ProcessUse
from deviceshare.domain.device_health.examination import DeviceUse, Inventory
from deviceshare.domain.objects.hardware import NUMA, NVLINK, SWITCH
from deviceshare_sandbox.nvml import Script, build

READ = """
import msgspec, sys
from deviceshare.nvidia import Driver, read_inventory, read_usage
with Driver():
    sys.stdout.buffer.write(msgspec.json.encode((read_inventory(), read_usage())))
"""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Its library."""
    return build(tmp_path, old=True)


def read(script: Script, library: Path) -> tuple[Inventory, list[DeviceUse]]:
    """What such a machine tells."""
    environment = os.environ | script.environment(library)
    done = subprocess.run([sys.executable, "-c", READ], env=environment, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return msgspec.json.decode(done.stdout, type=tuple[Inventory, list[DeviceUse]])


def test_an_old_driver_tells_what_it_can(old: Path, tmp_path: Path) -> None:
    """Memory and processes by the older functions, NVLinks by their addresses, and nothing of MIG."""
    script = Script(tmp_path / "script", driver="470.256.02")
    uuids = script.gpus(4, nvlink_pairs=True, memory_mib=16384)
    script.use(uuids[0], used_mib=300, percent=5)
    script.processes(uuids[0], {77: 250})
    script.mig(uuids[3])
    inventory, usage = read(script, old)
    assert inventory.driver == "470.256.02"
    assert [(part.uuid, part.memory_mib, part.mig) for part in inventory.devices] == [(u, 16384, False) for u in uuids]
    assert [link.kind for link in inventory.links] == [NVLINK, NUMA, NUMA, NUMA, NUMA, NVLINK]
    assert usage[0] == DeviceUse(0, uuids[0], 300, 16384, 5, [ProcessUse(77, 250)])


def test_an_old_driver_does_not_know_a_switch_from_a_gpu(old: Path, tmp_path: Path) -> None:
    """Then only PCIe is written down: too little rather than too much."""
    script = Script(tmp_path / "script")
    script.gpus(2, nvswitch=True)
    assert [link.kind for link in read(script, old)[0].links] == [SWITCH]
