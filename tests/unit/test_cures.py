"""Every command that a text names as a cure has a test that performs it on a real control plane."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTROL_PLANE = ROOT / "tests/controlplane"

CURES = {
    "kubectl uncordon": "test_cures.py::test_a_cordoned_node_is_uncordoned",
    "kubectl label node": "test_cures.py::test_a_node_that_is_not_shared_any_more_is_labelled_again",
    "kubectl patch node": "test_cures.py::test_what_another_plugin_left_on_a_node_is_removed",
    "kubectl annotate node": "test_cures.py::test_a_node_without_devices_is_annotated",
    "kubectl patch sdg": "test_node_loss.py::test_a_group_that_stays_on_a_node_out_of_service_is_let_go_by_its_policy",
    "kubectl delete sdg": "test_cures.py::test_a_degraded_group_is_well_elsewhere_when_it_is_created_again",
    "recreate it": "test_cures.py::test_a_bound_group_gets_another_selector_by_being_created_again",
    "create it": "test_waiting.py::test_a_pod_may_come_before_its_group",
    "recreate the pod": "test_cures.py::test_a_pod_whose_own_affinity_rules_its_groups_node_out_is_recreated",
    "delete and recreate the pod": "rough/test_admission_away.py::test_a_pod_admitted_past_the_webhook_is_never_bound",
    "deviceshare rebind": "test_rebind.py::test_a_broken_device_is_replaced_in_place_and_comes_back_when_it_is_mended",
    "deviceshare recover": "test_rebind.py::test_a_broken_device_is_replaced_in_place_and_comes_back_when_it_is_mended",
    "kubectl delete pod": "test_handover.py::test_after_a_rebind_by_cdi_only_a_recreated_pod_sees_other_devices",
    "kubectl annotate secret": "test_trust.py::test_nobody_notices_that_certificates_change",
}
"""What waiting pods' people are told to do, and who does it."""

_COMMAND = re.compile(
    r"kubectl (?:uncordon|(?:label|annotate|delete|patch|scale|apply) \w+)|deviceshare (?:rebind|recover)"
)


def texts() -> Iterator[str]:
    """Every string in what words a group, a pod or a node; a placeholder in it is an X."""
    for folder in ("domain", "loops", "certificates"):
        for file in sorted((ROOT / "deviceshare" / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.JoinedStr):
                    yield "".join(str(each.value) if isinstance(each, ast.Constant) else "X" for each in node.values)
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


def test_every_command_that_a_text_names_has_its_test() -> None:
    """A new cure needs one, too: a cure that doesn't cure is worse than none."""
    named = {command for text in texts() for command in _COMMAND.findall(text)}
    assert named >= {"kubectl uncordon", "kubectl delete sdg", "deviceshare rebind"}
    assert named - CURES.keys() == set()


@pytest.mark.parametrize("cure", CURES)
def test_the_test_of_a_cure_is_there_and_so_is_the_text(cure: str) -> None:
    """Neither is forgotten when the other goes."""
    file, _, name = CURES[cure].partition("::")
    tests = {node.name for node in ast.parse((CONTROL_PLANE / file).read_text()).body if hasattr(node, "name")}
    assert name in tests
    assert any(cure in text for text in texts())
