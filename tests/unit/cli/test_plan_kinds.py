"""`deviceshare plan` of CronJobs, DaemonSets, ReplicationControllers and custom resources."""

import json
from pathlib import Path
from typing import Any

from click.testing import Result

from tests.unit.cli.test_plan import GROUP, plan

TEMPLATE: dict[str, Any] = {
    "metadata": {"annotations": {"deviceshare.io/group": "team"}},
    "spec": {"containers": [{"name": "main"}]},
}
SHARE: dict[str, Any] = {
    "spec": {"containers": [{"name": "main", "resources": {"limits": {"deviceshare.io/gpu-percent": 60}}}]}
}


def planned(directory: Path, *documents: dict[str, Any], flags: tuple[str, ...] = ()) -> Result:
    """The plan of these objects and the group `team`, on gpu-1 with four devices in zone west and gpu-2 with eight."""
    return plan(directory, GROUP, *map(json.dumps, documents), flags=("-o", "json", *flags))


def an_object(kind: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "x/v1", "kind": kind, "metadata": {"name": "w"}, "spec": spec}


def test_a_cron_job_is_planned_as_one_run(tmp_path: Path) -> None:
    """Which is said."""
    job = {"spec": {"parallelism": 2, "template": TEMPLATE}}
    result = planned(tmp_path, an_object("CronJob", schedule="@daily", jobTemplate=job))
    answer = json.loads(result.stdout)
    assert answer["groups"][0]["pods"] == ["default/w-0", "default/w-1"]
    assert answer["notes"] == ["CronJob w is planned as one run of it"]
    assert "Note: CronJob w is planned as one run of it" in result.stderr


def test_a_replication_controller_is_a_workload(tmp_path: Path) -> None:
    """The oldest of them; in the namespace that the flag names."""
    result = planned(tmp_path, an_object("ReplicationController", replicas=1, template=TEMPLATE), flags=("-n", "lab"))
    assert json.loads(result.stdout)["groups"][0]["pods"] == ["lab/w-0"]


def test_a_daemon_set_has_a_pod_on_each_node_that_it_matches(tmp_path: Path) -> None:
    """Each with its share there; a nodeSelector leaves nodes out."""
    everywhere = json.loads(planned(tmp_path, an_object("DaemonSet", template=SHARE)).stdout)
    assert [(each["pod"], each["node"]) for each in everywhere["pods"]] == [
        ("default/w-gpu-1", "gpu-1"),
        ("default/w-gpu-2", "gpu-2"),
    ]
    west = {"spec": {**SHARE["spec"], "nodeSelector": {"zone": "west"}}}
    some = json.loads(planned(tmp_path, an_object("DaemonSet", template=west)).stdout)
    assert [each["node"] for each in some["pods"]] == ["gpu-1"]


def test_a_daemon_sets_pods_that_fit_nowhere_else_wait_for_their_own_node(tmp_path: Path) -> None:
    """A group lives on one node, so the pods of the others can't join; a full node is named as such."""
    result = planned(tmp_path, an_object("DaemonSet", template=TEMPLATE))
    answer = json.loads(result.stdout)
    assert result.exit_code == 3
    assert answer["groups"][0]["pods"] == ["default/w-gpu-1"]
    (waits,) = answer["waiting"]
    assert waits["pod"] == "default/w-gpu-2"
    assert "rules out node gpu-1, where group team lives" in waits["reason"]

    large = {"spec": {"containers": [{"name": "main", "resources": {"limits": {"deviceshare.io/gpu-percent": 500}}}]}}
    answer = json.loads(planned(tmp_path, an_object("DaemonSet", template=large)).stdout)
    assert [each["node"] for each in answer["pods"]] == ["gpu-2"]
    assert answer["waiting"][0]["reason"].startswith("gpu-1: ")


def test_templates_of_custom_resources_are_found_and_their_place_is_said(tmp_path: Path) -> None:
    """With as many pods as the fields beside them say."""
    head = {"template": {"spec": {"containers": [{"name": "head"}]}}}
    workers = {"groupName": "gpu", "replicas": 2, "template": TEMPLATE}
    result = planned(tmp_path, an_object("RayCluster", headGroupSpec=head, workerGroupSpecs=[workers]))
    answer = json.loads(result.stdout)
    assert answer["groups"][0]["pods"] == ["default/w-gpu-0", "default/w-gpu-1"]
    assert answer["notes"] == [
        "RayCluster w: its pod template was found at .spec.workerGroupSpecs[0].template, planned as 2 pods"
    ]


def test_a_template_that_can_not_be_read_is_left_out_and_said(tmp_path: Path) -> None:
    """Another operator's object may look like one; that stops no plan."""
    result = planned(tmp_path, an_object("Odd", template={"spec": {"containers": [{"name": {}}]}}))
    assert result.exit_code == 0
    assert "Odd w: the pod template at .spec.template can't be read and is left out" in result.stderr


def test_more_pods_than_can_be_planned_are_refused(tmp_path: Path) -> None:
    """Rather than that the command runs out of memory."""
    result = planned(tmp_path, an_object("RayCluster", replicas=10**9, template=TEMPLATE))
    assert result.exit_code == 2
    assert "1000000000 pods are more than the 10000 that a plan takes" in result.output
