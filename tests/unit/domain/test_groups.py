"""What may be wrong with a group, field by field and with the way out."""

import msgspec
import pytest

from deviceshare.domain import vendors
from deviceshare.domain.objects.groups import MAX_COUNT, Group, GroupSpec, name_fault, spec_faults

GPU = "nvidia.com/gpu"


def faults(**fields: object) -> list[str]:
    return spec_faults(GroupSpec(**{"resources": {GPU: 1}, **fields}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"resources": {GPU: MAX_COUNT}},
        {"resources": {GPU: 1, "amd.com/gpu": 2, "huawei.com/Ascend910": 3}},
        {"scheduling_strategy": "spread"},
        {"node_selector": {"zone": "west", "topology.kubernetes.io/zone": "", "a.b/c_d": "E.f-1"}},
    ],
    ids=str,
)
def test_what_is_possible_has_no_fault(fields: dict[str, object]) -> None:
    """The bounds themselves, every vendor, everything that a label may be."""
    assert faults(**fields) == []


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"resources": {}}, "spec.resources is empty"),
        ({"resources": {GPU: 0}}, "spec.resources[nvidia.com/gpu]: 0 is not between 1 and 1024"),
        ({"resources": {GPU: -3}}, "-3 is not between"),
        ({"resources": {GPU: 10**12}}, "is not between"),
        ({"resources": {"huawei.com/Ascend[/x]": 1}}, "no resource can be called 'huawei.com/Ascend[/x]'; known"),
        ({"resources": {"huawei.com/Ascend\x1b]0;": 1}}, "no resource can be called 'huawei.com/Ascend\\x1b]0;'"),
        ({"resources": {"huawei.com/Ascend" + "x" * 58: 1}}, "no resource can be called 'huawei.com/Ascendxxx"),
        ({"resources": {"y" * 254 + "/x": 1}}, "…'; known are nvidia.com/gpu"),
        ({"resources": {GPU: 1, "cpu": 1}}, "unknown resource 'cpu'; known are nvidia.com/gpu"),
        (
            {"resources": {"huawei.com/Ascend310": 1, "huawei.com/Ascend910": 1}},
            "share the variable ASCEND_VISIBLE_DEVICES; use two groups",
        ),
        ({"scheduling_strategy": "random"}, "spec.schedulingStrategy: 'random' is neither binpack nor spread"),
        ({"node_selector": {"no key": "x"}}, "spec.nodeSelector: 'no key' can't be a label's key"),
        ({"node_selector": {"/x": "x"}}, "can't be a label's key"),
        ({"node_selector": {"A.b/x": "x"}}, "can't be a label's key"),
        ({"node_selector": {"zone": "no value"}}, "spec.nodeSelector[zone]: 'no value' can't be a label's value"),
        ({"node_selector": {"zone": "x" * 64}}, "can't be a label's value"),
    ],
    ids=str,
)
def test_what_is_impossible_is_named(fields: dict[str, object], says: str) -> None:
    """One fault, one sentence."""
    (fault,) = faults(**fields)
    assert says in fault


def test_every_fault_is_named_at_once() -> None:
    """Nobody should have to try three times."""
    assert len(faults(resources={"cpu": 0}, scheduling_strategy="", node_selector={"": "-"})) == 5


@pytest.mark.parametrize("name", ["a", "team-a", "0", "a.b", "a" * 63])
def test_a_name_that_pods_can_carry_is_fine(name: str) -> None:
    """As a label's value and as an object's name."""
    assert name_fault(name) == ""


@pytest.mark.parametrize(
    ("name", "says"),
    [("", "empty"), ("a" * 64, "64 characters"), ("Team", "lower case"), ("a_b", "lower case"), ("-a", "lower case")],
)
def test_a_name_that_no_pod_can_carry_is_refused(name: str, says: str) -> None:
    """With what to do about it."""
    assert says in name_fault(name)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("huawei.com/Ascend910", True),
        ("huawei.com/Ascend310P-1c.x_y", True),
        ("huawei.com/Ascend" + "x" * 57, True),
        ("huawei.com/Ascend" + "x" * 58, False),
        ("huawei.com/Ascend[/x]", False),
        ("huawei.com/Ascend910-", False),
        ("huawei.com/Ascend/910", False),
        ("huawei.com/Ascend910\n", False),
        ("huawei.com/Ascend\u202e", False),
    ],
)
def test_a_vendor_is_known_by_valid_names_only(name: str, known: bool) -> None:
    """Names reach variables, annotations, metrics and terminals."""
    assert (vendors.vendor_of(name) is vendors.ASCEND) is known


@pytest.mark.parametrize(
    ("managers", "cleared"),
    [([], False), (["Update"], True), (["Update", "Update"], True), (["Update", "Apply"], False), ([""], False)],
)
def test_a_write_clears_the_record_of_managers_unless_somebody_applies(managers: list[str], cleared: bool) -> None:
    """An empty record is none; an unknown operation may be anything."""
    meta = {"name": "team", "resourceVersion": "7", "managedFields": [{"operation": each} for each in managers]}
    group = msgspec.convert({"metadata": meta}, Group)
    assert group.as_read == {"resourceVersion": "7", **({"managedFields": [{}]} if cleared else {})}
