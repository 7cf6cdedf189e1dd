"""A failed pod keeps its devices until its containers have ended, whatever its phase says."""

import json
from typing import Any

from tests.controlplane.pool import Pool, pod

GRACE_SECONDS = 2
MAIN = {"name": "main", "image": "", "imageID": "", "ready": False, "restartCount": 0}


def report(pool: Pool, name: str, **status: Any) -> None:
    """As its kubelet does."""
    found = pool.get("pod", name)
    containers = [container["name"] for container in found["spec"]["containers"]]
    states = status.pop("states", None)
    if states:
        status["containerStatuses"] = [{**MAIN, "name": each, "state": states} for each in containers]
    found["status"] = {**found["status"], **status}
    path = f"/api/v1/namespaces/{found['metadata']['namespace']}/pods/{name}/status"
    pool.kubectl("replace", "--raw", path, "-f", "-", stdin=json.dumps(found))


def a_failed_pod(pool: Pool, seconds: int) -> str:
    """Evicted by an old kubelet, which has yet to kill it; returns the name of its group."""
    pool.node(2)
    group = pool.group("first", 2, deletionPolicy="Refuse")
    pool.apply(pod("evicted", group, terminationGracePeriodSeconds=seconds))
    pool.running("evicted")
    pool.eventually(lambda: pool.status(group).get("podCount") == 1)
    report(pool, "evicted", phase="Failed", reason="Evicted", states={"running": {}})
    assert "is used by 1 pod" in pool.kubectl("delete", "sdg", group, fails=True)
    return group


def test_devices_of_a_failed_pod_are_given_on_once_its_containers_have_ended(pool: Pool) -> None:
    """The next group gets them when the kubelet says so."""
    group = a_failed_pod(pool, 3600)
    second = pool.group("second", 2)
    pool.apply(pod("next", second))
    pool.eventually(lambda: pool.reason("next"))
    assert pool.placed("next") == ""
    report(pool, "evicted", states={"terminated": {"exitCode": 137}})
    pool.eventually(lambda: pool.status(group).get("podCount") == 0)
    pool.eventually(lambda: pool.sandbox.kubectl("delete", "sdg", group).returncode == 0)
    pool.running("next")


def test_devices_of_a_failed_pod_are_given_on_after_its_grace_period(pool: Pool) -> None:
    """Its kubelet never says that its containers have ended; the leader writes down that it waited."""
    group = a_failed_pod(pool, GRACE_SECONDS)
    pool.eventually(lambda: "deviceshare.io/ended" in pool.get("pod", "evicted")["metadata"]["annotations"])
    pool.eventually(lambda: pool.sandbox.kubectl("delete", "sdg", group).returncode == 0)
    pool.apply(pod("next", pool.group("second", 2)))
    pool.running("next")
