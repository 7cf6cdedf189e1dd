"""Memory, utilisation and processes of GPUs."""

from deviceshare.domain.device_health.containers import ProcessUse
from deviceshare.domain.device_health.examination import DeviceUse
from deviceshare.nvidia import Driver, read_usage
from deviceshare_sandbox.nvml import Script


def test_memory_and_utilization_are_read_per_gpu(script: Script, driver: Driver) -> None:
    """Memory in MiB."""
    uuids = script.gpus(2, memory_mib=40960)
    script.use(uuids[1], used_mib=1024, percent=87)
    assert read_usage() == [
        DeviceUse(0, uuids[0], memory_used_mib=0, memory_total_mib=40960, utilization=0, processes=[]),
        DeviceUse(1, uuids[1], memory_used_mib=1024, memory_total_mib=40960, utilization=87, processes=[]),
    ]


def test_a_process_stands_once_whatever_lists_it_is_in(script: Script, driver: Driver) -> None:
    """One that computes and draws has the same memory in both lists."""
    uuids = script.gpus(1)
    script.processes(uuids[0], {300: 512, 20: 100})
    script.processes(uuids[0], {300: 512, 7: 64}, kind="graphics")
    script.processes(uuids[0], {20: 100, 21: 30}, kind="mps")
    assert read_usage()[0].processes == [
        ProcessUse(7, 64),
        ProcessUse(20, 100),
        ProcessUse(21, 30),
        ProcessUse(300, 512),
    ]


def test_a_process_is_seen_though_its_memory_is_not_known(script: Script, driver: Driver) -> None:
    """Trespass is told by the PID."""
    uuids = script.gpus(1)
    script.processes(uuids[0], {5: None, 6: 10})
    assert read_usage()[0].processes == [ProcessUse(5, None), ProcessUse(6, 10)]


def test_a_process_in_two_parts_of_a_split_gpu_has_the_memory_of_both(script: Script, driver: Driver) -> None:
    """With MIG a list has one entry for each part. The driver can't tell such a GPU's utilisation."""
    uuids = script.gpus(1)
    script.mig(uuids[0])
    script.processes(uuids[0], [(5, 100), (5, 20)])
    use = read_usage()[0]
    assert use.processes == [ProcessUse(5, 120)]
    assert use.utilization is None


def test_many_processes_are_all_read(script: Script, driver: Driver) -> None:
    """NVML is asked for their number first."""
    uuids = script.gpus(1)
    script.processes(uuids[0], dict.fromkeys(range(1, 101), 1))
    assert len(read_usage()[0].processes) == 100


def test_a_lost_gpu_has_no_usage(script: Script, driver: Driver) -> None:
    """The others have."""
    uuids = script.gpus(3)
    script.lose(uuids[0])
    script.error("nvmlDeviceGetUtilizationRates", 15, uuids[1])
    assert [use.uuid for use in read_usage()] == [uuids[2]]


def test_what_a_driver_cannot_tell_of_the_usage_is_left_out(script: Script, driver: Driver) -> None:
    """A GPU that shares the machine's memory has none of its own."""
    uuids = script.gpus(1)
    for function in ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetUtilizationRates"):
        script.error(function, 3)
    assert read_usage() == [DeviceUse(0, uuids[0], None, None, None, [])]
