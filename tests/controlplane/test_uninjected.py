"""Pods that a controller created while admission was away, with the real ReplicaSet and Job controllers."""

import pytest

from tests.controlplane.admission import injection_away
from tests.controlplane.pool import Pool, deployment, job, refers

pytestmark = pytest.mark.rough


def said(pool: Pool, kind: str) -> str:
    """What the Events of objects of this kind say of uninjected pods."""
    chosen = f"reason=NotInjected,involvedObject.kind={kind}"
    return pool.kubectl("get", "events", "-n", pool.name, "--field-selector", chosen, "-o", "jsonpath={..message}")


def test_a_controllers_pod_created_while_admission_was_away_is_recreated(pool: Pool) -> None:
    """It never ran; the Deployment's next pod is injected. A Job that would fail with its pod is left alone."""
    pool.node()
    group = pool.group()
    only = job("once", group)
    only["spec"]["backoffLimit"] = 0
    with injection_away(pool):
        pool.apply(deployment("served", group, 1), only)
        [first] = pool.eventually(lambda: pool.get("pods", "-l", "app=served"))
        pool.eventually(lambda: pool.get("pods", "-l", "job-name=once"))

    def running() -> list[dict[str, dict[str, object]]]:
        return [each for each in pool.get("pods", "-l", "app=served") if each["status"]["phase"] == "Running"]

    [again] = pool.eventually(running)
    assert again["metadata"]["uid"] != first["metadata"]["uid"]
    owner, name = first["metadata"]["ownerReferences"][0]["name"], first["metadata"]["name"]
    pool.eventually(
        lambda: said(pool, "ReplicaSet"), refers(f"deleted pod {name}, so that ReplicaSet {owner} recreates")
    )
    kept_for = "Job once would fail if the pod were deleted (backoffLimit 0, failed 0)"
    pool.eventually(lambda: said(pool, "Pod"), refers(kept_for))
    [kept] = pool.get("pods", "-l", "job-name=once")
    assert "nodeName" not in kept["spec"]
