"""How close GPUs are to one another."""

from pathlib import Path

import pytest

from deviceshare.domain.objects.hardware import NUMA, NVLINK, SWITCH, Link
from deviceshare.nvidia import Driver, read_inventory
from deviceshare_sandbox.nvml import Script


def found(sysfs: Path = Path("/nowhere")) -> dict[tuple[int, int], tuple[str, int]]:
    """The pairs that are joined: how, and by how many NVLinks."""
    return {(link.a, link.b): (link.kind, link.lanes) for link in read_inventory(sysfs).links}


def test_gpus_are_joined_by_pcie_where_they_have_no_nvlink(script: Script, driver: Driver) -> None:
    """A switch is closer than a NUMA node; pairs on different nodes are not written down."""
    script.gpus(5)
    assert found() == {
        (0, 1): (SWITCH, 0),
        (2, 3): (SWITCH, 0),
        (0, 2): (NUMA, 0),
        (0, 3): (NUMA, 0),
        (1, 2): (NUMA, 0),
        (1, 3): (NUMA, 0),
    }


def test_nvlinks_are_counted_between_neighbours(script: Script, driver: Driver) -> None:
    """The way by PCIe doesn't matter then."""
    script.gpus(4, nvlink_pairs=True, lanes=4)
    links = found()
    assert links[0, 1] == links[2, 3] == (NVLINK, 4)
    assert links[1, 2] == (NUMA, 0)


def test_gpus_on_nvswitches_all_reach_one_another(script: Script, driver: Driver) -> None:
    """Through all their lanes, on whatever NUMA node they are."""
    script.gpus(8, nvswitch=True, lanes=18)
    assert set(found().values()) == {(NVLINK, 18)}
    assert len(found()) == 28


def test_a_gpu_without_a_lane_to_the_switches_is_left_out(script: Script, driver: Driver) -> None:
    """Its links are down, as before the fabric manager has run."""
    uuids = script.gpus(3, nvswitch=True)
    script.error("nvmlDeviceGetNvLinkState", 3, uuids[2])
    assert found() == {(0, 1): (NVLINK, 4), (0, 2): (NUMA, 0), (1, 2): (NUMA, 0)}


def test_inactive_nvlinks_do_not_count(script: Script, driver: Driver) -> None:
    """A bridge may be pulled, or the link may have failed."""
    script.gpus(2, nvlink_pairs=True, active=False)
    assert found() == {(0, 1): (SWITCH, 0)}


@pytest.mark.parametrize(
    ("level", "kind"), [(0, SWITCH), (10, SWITCH), (20, SWITCH), (30, NUMA), (40, NUMA), (50, None)]
)
def test_each_level_of_the_topology_has_its_kind(script: Script, driver: Driver, level: int, kind: str | None) -> None:
    """From two GPUs on one board to two on different sockets."""
    script.gpus(2, ancestor=level)
    assert found() == ({(0, 1): (kind, 0)} if kind else {})


def test_linux_says_which_gpus_share_a_numa_node_where_nvml_cannot(
    script: Script, driver: Driver, tmp_path: Path
) -> None:
    """As in some virtual machines."""
    script.gpus(5)
    script.numa(tmp_path)
    script.error("nvmlDeviceGetTopologyCommonAncestor", 3)
    assert found(tmp_path) == {(a, b): (NUMA, 0) for a in range(4) for b in range(a + 1, 4)}
    assert found() == {}


def test_a_gpu_that_is_lost_meanwhile_has_only_the_links_of_the_others(script: Script, driver: Driver) -> None:
    """The other end of an NVLink still reports it."""
    uuids = script.gpus(2, nvlink_pairs=True)
    script.error("nvmlDeviceGetNvLinkState", 15, uuids[0])
    assert read_inventory().links == [Link(resource="nvidia.com/gpu", a=0, b=1, kind=NVLINK, lanes=4)]
    script.error("nvmlDeviceGetNvLinkState", 15, uuids[1])
    assert found() == {(0, 1): (SWITCH, 0)}
