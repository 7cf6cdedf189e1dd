"""What happens while admission is away: slipped pods, groups deleted under their pods, with the real controllers."""

from tests.controlplane.admission import injection_away, validation_away
from tests.controlplane.pool import Pool, deployment, job, pod, refers
from tests.controlplane.test_controller import claims, pod_events


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


def test_a_group_deleted_under_its_pods_keeps_its_devices_until_they_end(pool: Pool) -> None:
    """The webhook was not there to refuse it; a waiting pod goes on waiting, and is then bound."""
    node = pool.node()
    group = pool.group("first", 3, deletionPolicy="Refuse")
    pool.apply(pod("user", group))
    pool.running("user")
    with validation_away(pool, "user"):
        pool.kubectl("delete", "sdg", group)
    pool.eventually(lambda: claims(pool, node), lambda held: held == {group: "0,1,2*"})
    pool.eventually(lambda: pod_events(pool, "user"), lambda said: "GroupDeleted" in said)

    second = pool.group("second")
    pool.apply(pod("waits", second))
    pool.eventually(lambda: pool.condition(second).get("message", ""), refers(f"{group} still uses 0,1,2"))
    assert pool.condition(second)["reason"] == "Waiting"
    pool.eventually(lambda: pool.reason("waits"))
    assert pool.placed("waits") == ""
    pool.kubectl("delete", "pod", "user", "-n", pool.name)
    pool.running("waits")
    assert claims(pool, node) == {second: "0,1"}


def test_a_pod_admitted_past_the_webhook_is_never_bound(pool: Pool) -> None:
    """Its containers would see what their image says; the event says what to do."""
    pool.node()
    group = pool.group()
    with injection_away(pool):
        pool.apply(pod("slipped", group))
    why = pool.eventually(lambda: pool.reason("slipped"), bool)
    assert "delete and recreate the pod" in why
    pool.apply(pod("proper", group))
    pool.running("proper")  # Room there is.
    assert pool.placed("slipped") == ""
    pool.kubectl("delete", "pod", "slipped", "-n", pool.name)
    pool.apply(pod("slipped", group))
    pool.running("slipped")
