"""What a node's agent may write, and people who may write the status alone."""

import copy
from typing import Any

import pytest

from deviceshare.domain.admission.own_resource_review import review_deletion, review_repair, review_report

LEDGER: dict[str, Any] = {
    "apiVersion": "deviceshare.io/v1alpha1",
    "kind": "NodeDevices",
    "metadata": {
        "name": "n1",
        "uid": "1",
        "resourceVersion": "7",
        "generation": 2,
        "managedFields": [{"time": "then"}],
    },
    "spec": {"claims": {"uid": {"group": "team", "devices": [{"resource": "nvidia.com/gpu", "index": 0}]}}},
    "status": {"total": "nvidia.com/gpu=1", "hardware": {"driver": "550"}},
}


def changed(*path: str, to: Any) -> dict[str, Any]:
    whole = copy.deepcopy(LEDGER)
    place = whole
    for key in path[:-1]:
        place = place.setdefault(key, {})
    place[path[-1]] = to
    return whole


@pytest.mark.parametrize(
    ("path", "to"),
    [
        (("status", "hardware"), {"driver": "560"}),
        (("status", "hardware"), None),
        (("metadata", "managedFields"), []),
        (("metadata", "resourceVersion"), "8"),
        (("metadata", "generation"), 3),
    ],
)
def test_a_report_and_what_the_api_server_writes_beside_it_pass(path: tuple[str, ...], to: Any) -> None:
    """Server-side apply keeps its books in managedFields."""
    assert review_report(LEDGER, changed(*path, to=to), "n1") == ""


@pytest.mark.parametrize(
    ("path", "to", "named"),
    [
        (("spec", "claims"), {}, "spec.claims"),
        (("spec", "more"), 1, "spec.more"),
        (("status", "total"), "nvidia.com/gpu=8", "status.total"),
        (("status", "devices"), [], "status.devices"),
        (("metadata", "annotations"), {"deviceshare.io/recovered": "GPU-a@then"}, "metadata.annotations"),
        (("metadata", "ownerReferences"), [], "metadata.ownerReferences"),
        (("metadata", "finalizers"), ["x"], "metadata.finalizers"),
        (("more",), {"a": 1}, "more"),
    ],
)
def test_nothing_else_passes(path: tuple[str, ...], to: Any, named: str) -> None:
    """Above all not the claims, nor the annotation by which people say that a device is well."""
    assert review_report(LEDGER, changed(*path, to=to), "n1") == f"an agent may write status.hardware only, not {named}"


def test_a_first_report_passes() -> None:
    """The status isn't there yet, or is null."""
    for status in ({}, {"status": None}):
        old = {key: value for key, value in LEDGER.items() if key != "status"} | status
        assert review_report(old, {**old, "status": {"hardware": {}}}, "") == ""


def test_another_nodes_object_is_refused_whatever_is_written() -> None:
    """Told by the token, from Kubernetes 1.30 on."""
    assert review_report(LEDGER, LEDGER, "n2") == "the agent on node n2 may report on its own node only, not on 'n1'"
    assert review_report(LEDGER, LEDGER, "") == ""


REPAIRED = ["GPU-0@then"]


@pytest.mark.parametrize(("before", "after"), [({}, {"recovered": REPAIRED}), ({"recovered": REPAIRED}, {}), ({}, {})])
def test_people_may_report_repairs(before: dict[str, Any], after: dict[str, Any]) -> None:
    """And take a report back; what the API server writes beside it passes."""
    old, new = (changed("status", to={"total": "nvidia.com/gpu=1", **status}) for status in (before, after))
    new["metadata"]["resourceVersion"] = "8"
    assert review_repair(old, new) == ""


@pytest.mark.parametrize(
    ("path", "to"),
    [
        (("status", "hardware"), {"driver": "560"}),
        (("status", "hardware"), None),
        (("status", "devices"), []),
        (("status", "withheld"), []),
        (("status", "more"), 1),
        (("metadata", "annotations"), {"deviceshare.io/recovered": "GPU-a@then"}),
        (("spec", "claims"), {}),
    ],
)
def test_people_who_may_write_the_status_alone_misreport_no_device(path: tuple[str, ...], to: Any) -> None:
    """RBAC knows no single fields; the refusal names this one, and what may be written."""
    refusal = review_repair(LEDGER, changed(*path, to=to))
    assert refusal.startswith(f"only deviceshare and its agents write {'.'.join(path)}: who may not patch nodedevices")
    assert "status.recovered alone, as deviceshare recover does" in refusal


def test_nobody_deletes_what_has_claims() -> None:
    """Deviceshare itself never does; an empty one may go."""
    refused = "devices of node n1 are claimed (1 claims in its NodeDevices): deviceshare deletes it once the node"
    assert review_deletion(LEDGER).startswith(refused)
    assert review_deletion(changed("spec", "claims", to={})) == ""
    assert review_deletion(changed("spec", to={})) == ""


def test_a_null_hides_no_other_change() -> None:
    """It is a change itself, so that none beside it passes."""
    new = changed("status", "devices", to=[])
    new["spec"]["summary"] = None
    assert review_report(LEDGER, new, "n1") == "an agent may write status.hardware only, not spec.summary"
