"""The device reader: NVML in a thread, through the real ctypes path, and processes in /proc."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from deviceshare import nvidia
from deviceshare.agent import device_reader
from deviceshare.agent.device_reader import HUNG, CdiSpecs, DeviceReader
from deviceshare.agent.process_table import ProcessTable
from deviceshare.domain.device_health.containers import ControlGroup, ProcessUse
from deviceshare.domain.device_health.examination import Reading, examine
from deviceshare.domain.objects.hardware import Hardware
from deviceshare_sandbox.nvml import Script, build, load
from tests.unit.amd.machine import Sysfs
from tests.unit.kube.scripted import until

POD = "3f6c1a52-9d0e-4b8a-8c1d-2f7e6a5b4c3d"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def script(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    """A machine without GPUs yet, where a look takes no time and nobody waits for the next.

    No reader outlives its test: NVML belongs to the process, and the next test starts it for itself.
    """
    load(library)
    script = Script(tmp_path / "nvml")
    for name, value in script.environment(library).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(device_reader, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(device_reader, "RETRY_SECONDS", 0.05)
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("boot-1\n")
    yield script
    for thread in threading.enumerate():
        if thread.name == "device-reader":
            thread.join(60)
            assert not thread.is_alive()


@asynccontextmanager
async def looking(proc: Path) -> AsyncIterator[tuple[list[Reading], DeviceReader]]:
    """What is seen while the block runs."""
    readings: list[Reading] = []
    seeing = DeviceReader(
        readings.append, processes=ProcessTable(proc), sysfs=proc, specs=CdiSpecs([proc / "cdi"]), visible="void"
    )
    task = asyncio.create_task(seeing.run())
    try:
        yield readings, seeing
    finally:
        task.cancel()
        await asyncio.wait({task})


async def seen(readings: list[Reading], true: Callable[[Reading], object]) -> Reading:
    """The first reading from now on of which it is true."""
    readings.clear()
    await until(lambda: any(true(reading) for reading in readings))
    return next(reading for reading in readings if true(reading))


def uuids(reading: Reading) -> list[str]:
    return [part.uuid for part in reading.devices]


async def test_devices_and_who_is_on_them_are_seen(script: Script, tmp_path: Path) -> None:
    """A process that ended between two questions is left out."""
    first, second = script.gpus(2, nvlink_pairs=True)
    script.use(first, used_mib=4096, percent=37)
    script.processes(first, {100: 2048, 101: None, 102: 1})
    for pid, path in ((100, f"/kubepods/pod{POD}/{'0a' * 32}"), (101, "/user.slice")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_text("a) S 1 (b\n")
        (tmp_path / str(pid) / "cgroup").write_text(f"0::{path}\n")
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a) S 1 (b) S {' '.join(map(str, range(4, 53)))}\n")

    async with looking(tmp_path) as (readings, _):
        reading = await seen(readings, uuids)
    use = reading.uses[0]
    assert uuids(reading) == [first, second]
    assert reading.inventory is not None
    assert (reading.inventory.driver, reading.boot_id, reading.trouble) == ("550.54.15", "boot-1", "")
    assert [(link.a, link.b, link.kind) for link in reading.inventory.links] == [(0, 1, "nvlink")]
    assert (use.memory_used_mib, use.utilization) == (4096, 37)
    assert use.processes == [
        ProcessUse(100, 2048, "a) S 1 (b", 22, ControlGroup(POD, "0a" * 32)),
        ProcessUse(101, None, "a) S 1 (b", 22),
    ]


async def test_processes_that_proc_does_not_show_are_told_once(script: Script, tmp_path: Path) -> None:
    """As without hostPID, or with hidepid: else nobody would know why no process has a pod."""
    script.processes(script.gpus(1)[0], {100: 1})
    with capture_logs() as logs:
        async with looking(tmp_path) as (readings, _):
            await until(lambda: len(readings) > 5)
    assert [line["pids"] for line in logs if "/proc" in line["event"]] == [[100]]


async def test_processes_that_end_are_not_missed(tmp_path: Path) -> None:
    """Each between the driver's word and the kernel's; another time the warning comes again."""
    seeing = DeviceReader(print, processes=ProcessTable(tmp_path), sysfs=tmp_path, specs=CdiSpecs([]))
    with capture_logs() as logs:
        for pids in ({1}, {2}, {3, 4}, {4}, {4}, set(), {5}, {5}):
            seeing._warn_of_unseen(pids)
    assert [line["pids"] for line in logs if "/proc" in line["event"]] == [[4], [5]]


async def test_what_the_runtime_can_be_told_is_seen(script: Script, tmp_path: Path) -> None:
    """As soon as it can: the device plugin may write its specification later."""
    [uuid] = script.gpus(1)
    (tmp_path / "cdi").mkdir()
    async with looking(tmp_path) as (readings, _):
        assert (await seen(readings, uuids)).cdi_kinds == []
        spec = {"kind": "k8s.device-plugin.nvidia.com/gpu", "devices": [{"name": uuid}]}
        (tmp_path / "cdi/plugin.json").write_text(json.dumps(spec))
        reading = await seen(readings, lambda reading: reading.cdi_kinds)
        assert (reading.cdi_kinds, reading.runtime) == ([spec["kind"]], "cdi")


async def test_an_error_is_told_once(script: Script, tmp_path: Path) -> None:
    """With its name."""
    [uuid] = script.gpus(1)
    async with looking(tmp_path) as (readings, _):
        await seen(readings, uuids)
        script.xid(uuid, 79)
        reading = await seen(readings, lambda reading: reading.xids)
        await seen(readings, lambda reading: not reading.xids)
    assert [(xid.uuid, xid.text) for xid in reading.xids] == [(uuid, "Xid 79: GPU has fallen off the bus")]
    assert [xid for reading in readings for xid in reading.xids] == []


async def test_a_lost_device_is_missed_at_once_and_the_others_are_heard_on(script: Script, tmp_path: Path) -> None:
    """NVML must be initialized again for that: it keeps reporting the one that it lost."""
    first, second = script.gpus(2)
    async with looking(tmp_path) as (readings, _):
        await seen(readings, uuids)
        script.lose(first)
        reading = await seen(readings, lambda reading: uuids(reading) == [second])
        assert reading.inventory and 0 in reading.inventory.silent
        await seen(readings, lambda reading: uuids(reading) == [second])
        script.xid(second, 48)
        assert (await seen(readings, lambda reading: reading.xids)).xids[0].uuid == second


async def test_a_device_that_comes_back_is_found_by_a_new_start(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as one is known to be missing."""
    monkeypatch.setattr(device_reader, "RESTART_SECONDS", 0.3)
    starts = []
    start = nvidia.Driver.__enter__

    def counted(driver: nvidia.Driver) -> nvidia.Driver:
        starts.append(driver)
        return start(driver)

    monkeypatch.setattr(nvidia.Driver, "__enter__", counted)
    script.gpus(2)
    async with looking(tmp_path) as (readings, seeing):
        await seen(readings, uuids)
        assert len(starts) == 1
        seeing.missing = lambda: True
        await until(lambda: len(starts) >= 2)
        seeing.missing = lambda: False
        await seen(readings, uuids)


async def test_a_driver_that_is_not_there_is_told_and_awaited(script: Script, tmp_path: Path) -> None:
    """It may be installed while the agent runs."""
    script.gpus(1)
    script.error("nvmlInitWithFlags", 9)
    async with looking(tmp_path) as (readings, _):
        reading = await seen(readings, lambda reading: reading.trouble)
        assert (reading.inventory, reading.boot_id) == (None, "boot-1")
        assert "kernel module" in reading.trouble
        Script(script.path).gpus(1)
        await seen(readings, uuids)


async def test_a_driver_that_hangs_counts_as_one_that_does_not_answer(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And keeps nobody from stopping."""
    script.gpus(1)
    monkeypatch.setattr(device_reader, "HANG_SECONDS", 0.2)
    hanging = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hang() -> None:
        asyncio.run_coroutine_threadsafe(hanging.wait(), loop).result(60)

    async with looking(tmp_path) as (readings, _):
        await seen(readings, uuids)
        monkeypatch.setattr(nvidia, "read_usage", hang)
        reading = await seen(readings, lambda reading: reading.trouble == HUNG)
        assert reading.inventory is None
    hanging.set()


async def test_a_driver_that_tells_of_no_errors_is_looked_at_all_the_same(script: Script, tmp_path: Path) -> None:
    """As on some virtual GPUs."""
    [uuid] = script.gpus(1)
    script.error("nvmlEventSetCreate", 3)
    async with looking(tmp_path) as (readings, _):
        await seen(readings, lambda reading: uuids(reading) == [uuid])
        await seen(readings, lambda reading: uuids(reading) == [uuid])


@pytest.mark.parametrize("function", ["nvmlEventSetCreate", "nvmlEventSetWait_v2"])
async def test_errors_that_cannot_be_listened_to_are_no_trouble_of_the_devices(
    script: Script, tmp_path: Path, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are looked at as often as others, and the log has it once, however often NVML is restarted."""
    monkeypatch.setattr(device_reader, "RESTART_SECONDS", 0.3)
    [uuid] = script.gpus(1)
    script.error(function, 999)
    with capture_logs() as logs:
        async with looking(tmp_path) as (readings, _):
            await until(lambda: len(readings) > 9)
    assert {(tuple(uuids(reading)), reading.trouble) for reading in readings} == {((uuid,), "")}
    assert [line["event"] for line in logs if "subscribe" in line["event"]] == ["Failed to subscribe to Xid errors"]


async def test_amds_devices_are_seen_without_nvml_and_one_that_is_gone_is_lost(script: Script, tmp_path: Path) -> None:
    """NVIDIA's variable in the agent's own container says nothing of how these are handed over."""
    script.error("nvmlInitWithFlags", 9)
    sysfs = Sysfs(tmp_path)
    sysfs.gpu("0000:05:00.0")
    sysfs.gpu("0000:06:00.0")
    async with looking(tmp_path) as (readings, _):
        reading = await seen(readings, uuids)
        assert reading.inventory and [part.resource for part in reading.devices] == ["amd.com/gpu"] * 2
        assert (reading.boot_id, reading.runtime, reading.uses[0].utilization) == ("boot-1", "", 7)
        before, _ = examine(Hardware(), reading, faults={}, repaired=(), now="1")
        (sysfs.driver / "0000:05:00.0").unlink()
        assert "amdgpu has 1 GPUs and KFD 2" in (await seen(readings, lambda reading: reading.trouble)).trouble
        (sysfs.nodes / "1/properties").unlink()
        reading = await seen(readings, lambda reading: len(uuids(reading)) == 1)
    after, [change] = examine(before, reading, faults={}, repaired=(), now="2")
    assert (change.part.pci, change.part.lost) == ("0000:05:00.0", True)
    assert [(part.index, part.lost) for part in after.devices] == [(0, True), (0, False)]


async def test_a_mistake_of_ours_is_no_healthy_device(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread goes on, and what it fails to see is unknown."""
    script.gpus(1)
    monkeypatch.setattr(nvidia, "read_usage", lambda: 1 / 0)
    async with looking(tmp_path) as (readings, _):
        reading = await seen(readings, lambda reading: reading.trouble)
        assert reading.inventory is None and "the agent failed" in reading.trouble
