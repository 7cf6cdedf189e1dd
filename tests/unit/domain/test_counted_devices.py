"""What a cluster says of a node's devices, told from what a device plugin makes of them."""

import json
from collections.abc import Mapping

import msgspec
import pytest

from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.placement.shared_resources import Counted, count_devices
from tests.unit.domain.objects import AMD, GPU

SHARED = "nvidia.com/gpu.shared"
REGISTER = "hami.io/node-nvidia-register"


def a_node_that_says(
    allocatable: Mapping[str, object],
    labels: Mapping[str, object] | None = None,
    annotations: Mapping[str, str] | None = None,
    capacity: Mapping[str, object] | None = None,
) -> Node:
    """Labels without a slash are NVIDIA's."""
    keys = {key if "/" in key else f"nvidia.com/{key}": str(value) for key, value in (labels or {}).items()}
    status = {"allocatable": allocatable, "capacity": allocatable if capacity is None else capacity}
    return msgspec.convert({"metadata": {"labels": keys, "annotations": annotations or {}}, "status": status}, Node)


def of_gpus(node: Node) -> Counted:
    return count_devices(node).get(GPU, Counted(0))


@pytest.mark.parametrize(
    ("allocatable", "labels", "number"),
    [
        ({GPU: "4"}, {}, 4),
        ({GPU: 4}, {}, 4),
        ({GPU: "4"}, {"gpu.count": 4, "gpu.replicas": 1, "gpu.sharing-strategy": "none", "gpu.product": "T4"}, 4),
        ({GPU: "4"}, {"gpu.count": 4, "gpu.replicas": 0, "mig.strategy": "single", "gpu.product": "A100"}, 4),
        ({GPU: "16"}, {"gpu.count": 4, "gpu.replicas": 4, "gpu.sharing-strategy": "time-slicing"}, 4),
        ({GPU: "16"}, {"gpu.count": 4, "gpu.replicas": 4, "gpu.sharing-strategy": "mps"}, 4),
        ({GPU: "16"}, {"gpu.replicas": 4}, 4),
        ({GPU: "16"}, {"gpu.count": 4, "gpu.product": "T4-SHARED"}, 4),
        ({GPU: "0", SHARED: "16"}, {"gpu.count": 4, "gpu.replicas": 4}, 4),
        ({SHARED: "16"}, {"gpu.count": 4}, 4),
        ({GPU: "1k"}, {}, 1000),
        ({GPU: "0"}, {"gpu.count": 4}, 0),
        ({}, {}, 0),
    ],
)
def test_gpus_are_counted_and_not_the_turns_on_them(
    allocatable: Mapping[str, object], labels: Mapping[str, object], number: int
) -> None:
    """By the labels of GPU feature discovery, older ones too."""
    counted = of_gpus(a_node_that_says(allocatable, labels))
    assert (counted.number, counted.trouble) == (number, "")


@pytest.mark.parametrize(
    ("allocatable", "labels", "trouble"),
    [
        ({GPU: "16"}, {"gpu.count": 4}, "(nvidia.com/gpu.count=4) contradict 16 allocatable"),
        ({GPU: "3"}, {"gpu.count": 4, "gpu.replicas": 1}, "contradict 3 allocatable"),
        ({GPU: "16"}, {"gpu.count": 4, "gpu.replicas": 3}, "contradict 16 allocatable"),
        ({GPU: "16"}, {"gpu.count": "x"}, "label nvidia.com/gpu.count=x is not a number"),
        ({GPU: "16"}, {"gpu.replicas": "-4"}, "label nvidia.com/gpu.replicas=-4 is not a number"),
        ({GPU: "16"}, {"gpu.product": "T4-SHARED"}, "several pods share each"),
        ({GPU: "16"}, {"gpu.sharing-strategy": "mps"}, "several pods share each"),
        ({SHARED: "16"}, {}, "several pods share each"),
        ({GPU: "28"}, {"gpu.product": "A100-MIG-1g.5gb", "gpu.count": 28, "mig.strategy": "single"}, "split by MIG"),
        ({GPU: "0"}, {"gpu.product": "A100-MIG-INVALID", "gpu.count": 0}, "split by MIG"),
        ({GPU: "3", "nvidia.com/mig-1g.5gb": "7"}, {"mig.strategy": "mixed"}, "split by MIG"),
        ({"nvidia.com/mig-1g.5gb.shared": "7"}, {}, "split by MIG"),
        ({GPU: "many"}, {}, "'many' of nvidia.com/gpu is not a number of devices"),
        ({GPU: "500m"}, {}, "is not a number of devices"),
        ({GPU: "9223372036854775807"}, {}, "it reports 9223372036854775807"),
    ],
)
def test_gpus_that_cannot_be_counted_are_not_and_the_cure_is_named(
    allocatable: Mapping[str, object], labels: Mapping[str, object], trouble: str
) -> None:
    """A device that isn't there must not be given to anybody."""
    counted = of_gpus(a_node_that_says(allocatable, labels))
    assert counted.number is None
    assert trouble in counted.trouble
    assert "kubectl annotate node NODE deviceshare.io/devices=nvidia.com/gpu=" in counted.cure


@pytest.mark.parametrize(
    ("allocatable", "labels", "said"),
    [
        ({GPU: "3"}, {}, "1 of its 4"),
        ({GPU: "12"}, {"gpu.replicas": 4}, "1 of its 4"),
        ({GPU: "0"}, {}, "none of its 4"),
    ],
)
def test_unhealthy_devices_without_an_agent_are_unknown_ones(
    allocatable: Mapping[str, object], labels: Mapping[str, object], said: str
) -> None:
    """A device plugin takes them out of allocatable, and says no number."""
    capacity = {GPU: "16" if labels else "4"}
    counted = of_gpus(a_node_that_says(allocatable, labels, capacity=capacity))
    assert counted.number == 4
    assert said in counted.trouble


OLD_REGISTER = "GPU-a,10,32768,100,NVIDIA-V100,0,true:GPU-b,10,32768,100,NVIDIA-V100,0,true:"
NINE_FIELDS = "GPU-a,10,1,100,V,0,true,0,hami-core:GPU-b,10,1,100,V,0,true,1,hami-core:"
JSON_REGISTER = json.dumps([{"id": "GPU-a", "count": 10, "health": True}, {"id": "GPU-b", "count": 10}])


@pytest.mark.parametrize("register", [OLD_REGISTER, NINE_FIELDS, JSON_REGISTER])
@pytest.mark.parametrize("allocatable", ["20", "2"])
def test_hamis_annotation_tells_the_gpus_that_it_splits(register: str, allocatable: str) -> None:
    """In each of its forms; it stays behind where HAMi is taken away."""
    counted = of_gpus(a_node_that_says({GPU: allocatable}, annotations={REGISTER: register}))
    assert (counted.number, counted.trouble) == (2, "")


@pytest.mark.parametrize(
    "register",
    [
        "nonsense",
        "[1]",
        "[{}]",
        '[{"id": "GPU-a", "count": true}]',
        OLD_REGISTER[:60],
        NINE_FIELDS.replace("hami-core", "mig"),
        JSON_REGISTER.replace("10", "-10"),
        '[{"count": 99999999999999999999999}]',
        "[" * 5000,
        '[{"id": ' + "[" * 100_000,
    ],
)
def test_an_annotation_of_hamis_that_says_something_else_is_not_believed(register: str) -> None:
    """It may be another version's, or cut off."""
    counted = of_gpus(a_node_that_says({GPU: "20"}, annotations={REGISTER: register}))
    assert counted.number is None
    assert "HAMi" in counted.trouble


@pytest.mark.parametrize(
    ("allocatable", "labels", "number"),
    [
        ({AMD: "8"}, {}, 8),
        ({AMD: "8"}, {"amd.com/compute-memory-partition": "spx_nps1"}, 8),
        ({AMD: "64"}, {"amd.com/compute-memory-partition": "cpx_nps4"}, None),
        ({AMD: "2", "amd.com/cpx_nps4": "8"}, {}, None),
    ],
)
def test_partitions_of_amds_gpus_are_not_gpus(
    allocatable: Mapping[str, object], labels: Mapping[str, object], number: int | None
) -> None:
    """Told by AMD's node labeller, or by the names of its plugin's mixed strategy."""
    assert count_devices(a_node_that_says(allocatable, labels))[AMD].number == number


def test_virtual_npus_are_not_npus() -> None:
    """Huawei's plugin names them after the NPU; HAMi splits them under its own name."""
    virtual = "huawei.com/Ascend910-2c"
    assert count_devices(a_node_that_says({virtual: "8"}))[virtual].number is None
    whole = "huawei.com/Ascend910B"
    assert count_devices(a_node_that_says({whole: "8"}))[whole].number == 8
    split = a_node_that_says({whole: "8"}, annotations={"hami.io/node-register-Ascend910B": "…"})
    assert count_devices(split)[whole].number is None


def test_only_what_is_not_a_mere_number_is_worth_telling() -> None:
    """doctor prints it."""
    assert of_gpus(a_node_that_says({GPU: "4"}, {"gpu.count": 4, "gpu.replicas": 1})).found == ""
    labels = {"gpu.count": 4, "gpu.replicas": 4, "gpu.sharing-strategy": "time-slicing"}
    assert of_gpus(a_node_that_says({GPU: "16"}, labels)).found == "time-slicing, 4 replicas"
