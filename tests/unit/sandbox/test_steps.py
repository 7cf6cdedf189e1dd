"""What the simulated kubelet does next, one step after the other."""

import datetime
import json
from typing import Any

import msgspec

from deviceshare.timestamps import timestamp
from deviceshare_sandbox.simulated_pods import ENV, JOB_SECONDS, RUN_FOR, KubeletPod, Patch, Remove, Wait, next_step

NOW = datetime.datetime(2026, 1, 1, 12, 0, 0, tzinfo=datetime.UTC)
LATER = NOW + datetime.timedelta(hours=1)


def pod(**changes: Any) -> dict[str, Any]:
    """A scheduled pod with one container whose environment is one annotation."""
    reference = {"fieldRef": {"fieldPath": "metadata.annotations['devices']"}}
    container = {"name": "main", "image": "busybox", "env": [{"name": "DEVICES", "valueFrom": reference}]}
    spec = {"nodeName": "node-1", "containers": [container], **changes.pop("spec", {})}
    metadata = {"name": "p", "namespace": "ns", "uid": "u-1", "annotations": {"devices": "0,1"}}
    return {"metadata": metadata | changes, "spec": spec, "status": {"phase": "Pending"}}


def step(document: dict[str, Any], now: datetime.datetime = NOW) -> Patch | Remove | Wait:
    """The next step for the pod as the API server would send it."""
    return next_step(msgspec.convert(document, KubeletPod), now)


def take(document: dict[str, Any], now: datetime.datetime = NOW) -> dict[str, Any]:
    """The pod after its next step, which must be a patch."""
    patch = step(document, now)
    assert isinstance(patch, Patch)
    changed: dict[str, Any] = json.loads(json.dumps(document))
    changed["status"] |= patch.body.get("status", {})
    changed["metadata"]["annotations"] |= patch.body.get("metadata", {}).get("annotations", {})
    return changed


def record(document: dict[str, Any]) -> Any:
    """The recorded environment."""
    return json.loads(document["metadata"]["annotations"][ENV])


def test_the_environment_is_recorded_before_the_pod_runs() -> None:
    """A client that waits for Running finds the record there."""
    recorded = take(pod())
    assert record(recorded) == {"main": {"DEVICES": "0,1"}}
    assert recorded["status"]["phase"] == "Pending"
    running = take(recorded)
    assert running["status"]["phase"] == "Running"
    assert step(running) == Wait()


def test_a_running_pod_is_ready_and_has_an_address() -> None:
    """What Deployments and people look at."""
    status = take(take(pod()))["status"]
    assert {each["type"]: each["status"] for each in status["conditions"]}["Ready"] == "True"
    assert status["containerStatuses"][0]["state"] == {"running": {"startedAt": timestamp(NOW)}}
    assert status["podIP"]


def test_a_record_copied_with_a_manifest_is_replaced() -> None:
    """`kubectl get pod -o yaml | kubectl apply` brings another pod's record along."""
    copied = pod()
    copied["metadata"]["annotations"][ENV] = '{"main":{"DEVICES":"7"},"gone":{}}'
    assert record(take(copied)) == {"main": {"DEVICES": "0,1"}}


def test_annotations_changed_under_a_running_container_change_nothing() -> None:
    """A process keeps the environment it was started with."""
    running = take(take(pod()))
    running["metadata"]["annotations"]["devices"] = "2,3"
    assert step(running) == Wait()


def test_an_ephemeral_container_gets_the_environment_of_its_own_start() -> None:
    """It starts later than the others and sees the annotations as they are then."""
    running = take(take(pod()))
    running["metadata"]["annotations"]["devices"] = "2,3"
    running["spec"]["ephemeralContainers"] = [{**running["spec"]["containers"][0], "name": "debug"}]
    assert record(take(running)) == {"main": {"DEVICES": "0,1"}, "debug": {"DEVICES": "2,3"}}


def test_init_containers_are_recorded_too() -> None:
    """They see devices like any other container."""
    waiting = pod()
    waiting["spec"]["initContainers"] = [{**waiting["spec"]["containers"][0], "name": "init"}]
    assert record(take(waiting)) == {"init": {"DEVICES": "0,1"}, "main": {"DEVICES": "0,1"}}


def test_a_jobs_pod_succeeds_after_a_second() -> None:
    """As a short job would."""
    owner = {"kind": "Job", "name": "j", "uid": "j-1"}
    running = take(take(pod(ownerReferences=[owner], spec={"restartPolicy": "Never"})))
    assert step(running) == Wait(JOB_SECONDS)
    done = take(running, NOW + datetime.timedelta(seconds=JOB_SECONDS))
    assert done["status"]["phase"] == "Succeeded"
    assert step(done, LATER) == Wait()


def test_a_pod_that_says_how_long_it_runs_succeeds_then() -> None:
    """For pods without a Job, and for Jobs that take longer."""
    running = take(take(pod(spec={"restartPolicy": "OnFailure"})))
    running["metadata"]["annotations"][RUN_FOR] = "2.5"
    assert step(running) == Wait(2.5)
    assert take(running, LATER)["status"]["phase"] == "Succeeded"


def test_a_pod_that_is_always_restarted_runs_on() -> None:
    """Its containers would be started again, so it never succeeds."""
    running = take(take(pod()))
    running["metadata"]["annotations"][RUN_FOR] = "1"
    assert step(running, LATER) == Wait()


def test_a_lifetime_that_is_no_number_is_no_lifetime() -> None:
    """A typing error must not end somebody's pod, nor the kubelet."""
    running = take(take(pod(spec={"restartPolicy": "Never"})))
    running["metadata"]["annotations"][RUN_FOR] = "soon"
    assert step(running, LATER) == Wait()


def test_a_deleted_pod_is_removed_whatever_it_was_doing() -> None:
    """The API server waits for the kubelet to say that the containers have ended."""
    assert step(pod(deletionTimestamp=timestamp(NOW))) == Remove()


def container(**changes: Any) -> dict[str, Any]:
    """A container without an environment."""
    return {"name": "main", "image": "busybox", **changes}


def run(**spec: Any) -> dict[str, Any]:
    """A pod that runs, with these containers."""
    return take(take(pod(spec=spec)))


def test_a_sidecar_runs_on_beside_the_main_container() -> None:
    """kubectl counts it among those that should be ready; another init container has ended."""
    inits = [container(name="sidecar", restartPolicy="Always"), container(name="setup")]
    status = run(containers=[container()], initContainers=inits)["status"]
    ready = {each["name"]: each["ready"] for each in status["initContainerStatuses"] + status["containerStatuses"]}
    assert ready == {"sidecar": True, "setup": False, "main": True}
    assert [list(each["state"]) for each in status["initContainerStatuses"]] == [["running"], ["terminated"]]


def test_the_sidecar_of_a_job_ends_with_it() -> None:
    """Nothing of it is reported as running afterwards."""
    inits = [container(name="sidecar", restartPolicy="Always")]
    running = run(containers=[container()], initContainers=inits, restartPolicy="Never")
    running["metadata"]["annotations"][RUN_FOR] = "5"
    status = take(running, LATER)["status"]
    assert status["phase"] == "Succeeded"
    assert [list(each["state"]) for each in status["initContainerStatuses"]] == [["terminated"]]


def test_a_container_is_resized_in_place() -> None:
    """The API server takes the new limit into the spec; the kubelet reports when it holds."""
    running = run(containers=[container(resources={"requests": {"cpu": "1"}})])
    assert running["status"]["containerStatuses"][0]["allocatedResources"] == {"cpu": "1"}
    assert step(running) == Wait()
    running["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "2"}}
    resized = take(running, LATER)
    assert resized["status"]["containerStatuses"][0]["resources"] == {"requests": {"cpu": "2"}}
    assert resized["status"]["containerStatuses"][0]["state"] == running["status"]["containerStatuses"][0]["state"]
    assert step(resized) == Wait()


def test_a_pod_is_resized_as_a_whole() -> None:
    """By its own resources, which newer releases have beside the containers'."""
    running = run(containers=[container()], resources={"limits": {"memory": "1Gi"}})
    assert running["status"]["resources"] == {"limits": {"memory": "1Gi"}}
    running["spec"]["resources"] = {"limits": {"memory": "2Gi"}}
    assert take(running)["status"]["resources"] == {"limits": {"memory": "2Gi"}}


def test_an_api_server_that_stores_no_resources_of_statuses_is_not_written_to_again() -> None:
    """Before 1.27 the field is dropped; comparing with it would never end."""
    running = run(containers=[container(resources={"requests": {"cpu": "1"}})])
    for each in running["status"]["containerStatuses"]:
        del each["resources"], each["allocatedResources"]
    assert step(running) == Wait()
