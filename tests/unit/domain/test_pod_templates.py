"""Pod templates are found by their shape, in whatever kind of object, with the number of pods that they make."""

from typing import Any

import msgspec
import pytest

from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.workloads import pods_of, templates_in

POD: dict[str, Any] = {"metadata": {"annotations": {"a": "b"}}, "spec": {"containers": [{"name": "main"}]}}

RAY = {
    "headGroupSpec": {"template": POD},
    "workerGroupSpecs": [{"groupName": "GPU_large", "replicas": 3, "template": POD}],
}
JOB_SET = {
    "replicatedJobs": [
        {"name": "w", "replicas": 2, "template": {"spec": {"parallelism": 4, "completions": 3, "template": POD}}}
    ]
}
LEADERS = {"replicas": 2, "leaderWorkerTemplate": {"size": 4, "leaderTemplate": POD, "workerTemplate": POD}}
WITHOUT_LEADER = {"replicas": 2, "leaderWorkerTemplate": {"size": 4, "workerTemplate": POD}}


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        (
            RAY,
            [
                (".spec.headGroupSpec.template", 1, "headgroupspec"),
                (".spec.workerGroupSpecs[0].template", 3, "gpu-large"),
            ],
        ),
        (
            {
                "pytorchReplicaSpecs": {
                    "Master": {"replicas": 1, "template": POD},
                    "Worker": {"replicas": 2, "template": POD},
                }
            },
            [
                (".spec.pytorchReplicaSpecs.Master.template", 1, "master"),
                (".spec.pytorchReplicaSpecs.Worker.template", 2, "worker"),
            ],
        ),
        ({"replicas": 5, "template": POD}, [(".spec.template", 5, "")]),
        ({"podTemplate": POD}, [(".spec.podTemplate", 1, "")]),
        (JOB_SET, [(".spec.replicatedJobs[0].template.spec.template", 6, "replicatedjobs-0")]),
        (
            LEADERS,
            [
                (".spec.leaderWorkerTemplate.leaderTemplate", 2, "leadertemplate"),
                (".spec.leaderWorkerTemplate.workerTemplate", 6, "workertemplate"),
            ],
        ),
        (WITHOUT_LEADER, [(".spec.leaderWorkerTemplate.workerTemplate", 8, "workertemplate")]),
        (
            {"templates": [{"name": "train", "container": {"image": "x"}}, {"name": "dag", "dag": {}}]},
            [(".spec.templates[0]", 1, "train")],
        ),
        ({"replicas": "{{ n }}", "template": POD}, [(".spec.template", 1, "")]),
        ({"containers": [{"name": "of the object itself"}], "selector": {}}, []),
        ({"schema": {"spec": {"containers": {"type": "array"}}}}, []),
    ],
)
def test_templates_are_found_with_their_number_of_pods(spec: dict[str, Any], found: list[tuple[str, int, str]]) -> None:
    """RayCluster, PyTorchJob, Rollout, a Notebook of some kind, JobSet, LeaderWorkerSet, Workflow; and none."""
    document = {"kind": "Any", "metadata": {"name": "x"}, "spec": spec, "status": {"template": POD}}
    assert [(each.path, each.pods, each.name) for each in templates_in(document)] == found


def test_an_argo_step_has_its_metadata_and_container() -> None:
    """It isn't written as a pod's spec."""
    step = {"name": "s", "metadata": {"annotations": {"a": "b"}}, "container": {"image": "x"}}
    (found,) = templates_in({"spec": {"templates": [step]}})
    assert found.body["metadata"] == step["metadata"]
    assert found.body["spec"]["containers"] == [{"name": "main", "image": "x"}]


def test_nesting_without_end_ends() -> None:
    """What a stranger wrote."""
    document: dict[str, Any] = POD
    for _ in range(500):
        document = {"spec": document}
    assert list(templates_in(document)) == []


def test_pods_of_a_template_with_a_status_have_none() -> None:
    """It was copied from a pod that has ended, say, as `kubectl get pod -o yaml` shows it; its pods begin."""
    template = msgspec.convert({**POD, "status": {"phase": "Succeeded"}}, Pod)
    made = pods_of(template, "w", "ns", 2)
    assert [(pod.metadata.key, pod.pending, pod.finished) for pod in made] == [
        ("ns/w-0", True, False),
        ("ns/w-1", True, False),
    ]
