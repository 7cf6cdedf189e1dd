"""How much memory a node's devices have, by what the node says, and when that isn't believed."""

from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceshare.domain.objects.hardware import Hardware, Part
from deviceshare.domain.objects.ledger import LedgerStatus, NodeDevices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.placement.shared_resources import LEAST_MIB, MOST_MIB, memory_mib
from tests.unit.domain.objects import AMD, GPU, gpus

MEM, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
MEMORY = f"{GPU}.memory"


def a_node_that_says(
    labels: Mapping[str, object], capacity: Mapping[str, object] | None = None, allocatable: object = None
) -> Node:
    capacity = {GPU: "4"} if capacity is None else capacity
    status = {"capacity": capacity, "allocatable": capacity if allocatable is None else allocatable}
    return msgspec.convert({"metadata": {"name": "n1", "labels": labels}, "status": status}, Node)


@pytest.mark.parametrize(
    ("labels", "capacity", "mib"),
    [
        ({MEMORY: "16384"}, {GPU: "4"}, 16384),
        ({MEMORY: "16384"}, {}, 16384),  # as where the annotation says what it has
        ({MEMORY: "16384", f"{GPU}.count": "4", f"{GPU}.replicas": "4"}, {GPU: "16"}, 16384),
        ({MEMORY: "15360", "nvidia.com/mig.strategy": "single", "nvidia.com/mig.capable": "false"}, {GPU: "1"}, 15360),
        ({MEMORY: "40960", "nvidia.com/mig.strategy": "single", "nvidia.com/mig.config": "all-disabled"}, None, 40960),
        ({}, {MEM: "30", COUNT: "2"}, 15 * 1024),
        ({}, {MEM: "32552", COUNT: "2"}, 16276),
        ({MEMORY: "16276"}, {MEM: "30", COUNT: "2"}, 16276),
        ({}, {MEM: "30", COUNT: "2", GPU: "2"}, 15 * 1024),
    ],
)
def test_memory_comes_from_labels_else_from_what_gpushare_divides(
    labels: Mapping[str, str], capacity: Mapping[str, str] | None, mib: int
) -> None:
    """MiB in the label; GiB in gpushare's resource, or MiB where they are many."""
    assert memory_mib(a_node_that_says(labels, capacity)) == {GPU: mib}


@pytest.mark.parametrize(
    "labels",
    [
        {},
        {MEMORY: ""},
        {MEMORY: "0"},
        {MEMORY: "-16384"},
        {MEMORY: "16"},
        {MEMORY: "16Gi"},
        {MEMORY: "16384.0"},
        {MEMORY: "1e5"},
        {MEMORY: "１６３８４"},
        {MEMORY: " 16384"},
        {MEMORY: "9" * 63},
        {MEMORY: "999999999"},
        {MEMORY: "4864", f"{GPU}.product": "A100-MIG-1g.5gb", f"{GPU}.count": "4", "nvidia.com/mig.strategy": "single"},
        {MEMORY: "4864", f"{GPU}.slices.gi": "1"},
        {MEMORY: "0", f"{GPU}.product": "A100-MIG-INVALID"},
        {MEMORY: "40960", "nvidia.com/mig.config": "all-1g.5gb"},
        {MEMORY: "40960", "nvidia.com/mig.strategy": "mixed", "nvidia.com/mig-1g.5gb.count": "7"},
        {MEMORY: "16384", f"{GPU}.count": "2"},  # the other two are of another model
    ],
)
def test_a_label_that_may_be_of_something_else_is_not_taken(labels: Mapping[str, str]) -> None:
    """Of a part of a GPU by MIG, of one of several models, in another unit, or of nothing."""
    assert memory_mib(a_node_that_says(labels)) == {}


@pytest.mark.parametrize(
    "capacity",
    [
        {MEM: "31", COUNT: "2"},
        {MEM: "30", COUNT: "0"},
        {MEM: "30"},
        {COUNT: "2"},
        {MEM: "0", COUNT: "2"},
        {MEM: None, COUNT: None},
        {MEM: "-30", COUNT: "2"},
        {MEM: "30", COUNT: "-2"},
        {MEM: "many", COUNT: "2"},
        {MEM: "30", COUNT: "1.5"},
        {MEM: "30", COUNT: "1000000"},
        {MEM: "9223372036854775807", COUNT: "1"},
        {MEM: "800", COUNT: "2"},
    ],
)
def test_what_gpushare_says_counts_only_if_it_adds_up(capacity: Mapping[str, str | None]) -> None:
    """Whoever may write a node's status may write anything there."""
    assert memory_mib(a_node_that_says({}, capacity)) == {}


@pytest.mark.parametrize(
    ("labels", "mib"),
    [
        ({"amd.com/gpu.vram": "192G"}, 192 * 1024 - 512),
        ({"beta.amd.com/gpu.vram": "16G", "beta.amd.com/gpu.vram.16G": "4"}, 16 * 1024 - 512),
        ({"beta.amd.com/gpu.vram.16G": "1"}, 16 * 1024 - 512),
        ({"amd.com/gpu.vram.16G": "1", "amd.com/gpu.vram.32G": "3"}, 0),
        ({"amd.com/gpu.vram": "16G", "beta.amd.com/gpu.vram": "32G"}, 0),
        ({"amd.com/gpu.vram": "0G"}, 0),
        ({"amd.com/gpu.vram": "16"}, 0),
        ({"amd.com/gpu.vram": "-16G"}, 0),
        ({"amd.com/gpu.vram": "99999G"}, 0),
        ({"amd.com/gpu.vram": ""}, 0),
        ({"amd.com/gpu.vram-gb": "24"}, 0),
        ({"amd.com/gpu.vram": "24G", "amd.com/compute-memory-partition": "cpx_nps4"}, 0),
    ],
)
def test_amds_labels_are_rounded_so_half_a_gib_may_be_missing(labels: Mapping[str, str], mib: int) -> None:
    """The sum of shares must not exceed what a device has."""
    assert memory_mib(a_node_that_says(labels, {AMD: "4"})) == ({AMD: mib} if mib else {})


@given(
    st.dictionaries(st.sampled_from([MEMORY, f"{GPU}.count", "amd.com/gpu.vram", "nvidia.com/mig.config"]), st.text()),
    st.dictionaries(st.sampled_from([MEM, COUNT, GPU]), st.none() | st.text(max_size=40) | st.integers() | st.floats()),
)
def test_no_node_makes_us_believe_in_a_device_that_cannot_be(
    labels: dict[str, str], capacity: dict[str, object]
) -> None:
    """Nor fail."""
    found = memory_mib(a_node_that_says(labels, capacity))
    assert all(LEAST_MIB <= mib <= MOST_MIB for mib in found.values())


def test_an_agents_report_wins_for_each_device() -> None:
    """Cards of two sizes on one node are exact then; what the agent doesn't know comes from the label."""
    parts = [Part(GPU, 0, "GPU-0", memory_mib=24576), Part(GPU, 1, "GPU-1")]
    seen = NodeDevices(status=LedgerStatus(memory_mib={GPU: 16384}, hardware=Hardware(devices=parts)))
    assert [seen.memory_of(device) for device in gpus(0, 1)] == [24576, 16384]
