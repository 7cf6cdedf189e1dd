"""Pods that wait: they are told why, they are never placed wrongly, and they are served when devices come free."""

import time
from datetime import datetime

import pytest

from deviceshare.domain.admission.settings import WEBHOOKS
from deviceshare.loops.leader.waker import PLACES, TRIED_SECONDS
from tests.controlplane.pool import GPU, VISIBLE, Pool, pod, refers

CROWD = 60


def test_the_third_of_three_groups_waits_and_is_served_when_another_goes(
    pool: Pool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two groups of two fill a node of four; the reason is on the pod and on the group."""
    node = pool.node()
    first, second, third = (pool.group(suffix) for suffix in ("first", "second", "third"))
    pool.apply(pod("one", first), pod("two", second))
    pool.running("one", "two")
    pool.apply(pod("three", third))

    pool.eventually(lambda: pool.reason("three"), refers(f"group {third} needs 2 {GPU} (0 of 4 free)"))
    bound = pool.eventually(lambda: pool.condition(third), lambda seen: seen.get("reason") == "Waiting")
    assert bound["status"] == "False"
    assert f"waiting for 2 {GPU}" in bound["message"]
    assert f"{first} holds" in bound["message"]
    assert pool.status(third)["phase"] == "Pending"

    pool.kubectl("delete", "pod", "one", "-n", pool.name)
    pool.eventually(lambda: pool.sandbox.kubectl("delete", "sdg", first), lambda done: done.returncode == 0)
    deleted = time.monotonic()
    pool.kubectl("wait", "pod/three", "-n", pool.name, "--for=condition=PodScheduled", "--timeout=45s")
    took = time.monotonic() - deleted
    with capsys.disabled():
        print(f"\nThe pod that waited was bound {took:.2f} s after the group was deleted")
    (served,) = pool.environments(pool.running("three"))
    assert served[VISIBLE] == pool.status(third)["selectedDevices"][GPU]
    assert pool.placed("three") == node


def test_a_pod_may_come_before_its_group(pool: Pool) -> None:
    """It waits with that reason, and starts when the group is created. Webhooks warn of it; policies know no groups."""
    pool.node()
    said = pool.apply(pod("early", f"{pool.name}-late"))
    warned = f"SharedDeviceGroup '{pool.name}-late' doesn't exist yet" in said
    assert warned == (pool.sandbox.plan.admission == WEBHOOKS)
    pool.eventually(lambda: pool.reason("early"), refers(f"group {pool.name}-late does not exist"))
    pool.group("late")
    pool.running("early")


def test_a_group_recreated_under_its_name_is_another_group(pool: Pool) -> None:
    """Its UID differs, so it gets devices of its own."""
    pool.node()
    group = pool.group()
    pool.apply(pod("before", group))
    pool.running("before")
    old = pool.get("sdg", group)["metadata"]["uid"]
    pool.kubectl("delete", "pod", "before", "-n", pool.name)
    pool.eventually(lambda: pool.sandbox.kubectl("delete", "sdg", group), lambda done: done.returncode == 0)
    pool.group()
    pool.apply(pod("after", group))
    (after,) = pool.running("after")
    new = pool.get("sdg", group)["metadata"]["uid"]
    assert new != old
    assert after["metadata"]["annotations"]["deviceshare.io/group-uid"] == new


def test_finished_pods_do_not_keep_a_group(pool: Pool) -> None:
    """They use no device any more."""
    pool.node()
    group = pool.group()
    document = pod("brief", group, restartPolicy="Never")
    document["metadata"]["annotations"]["sandbox.deviceshare.io/run-for"] = "0"
    pool.apply(document)
    pool.eventually(lambda: pool.get("pod", "brief")["status"]["phase"], refers("Succeeded"))
    pool.eventually(lambda: pool.sandbox.kubectl("delete", "sdg", group), lambda done: done.returncode == 0)


def test_a_crowd_is_woken_a_few_at_a_time(pool: Pool, capsys: pytest.CaptureFixture[str]) -> None:
    """Its group fits but no node has their CPUs, so all are touched, in slices: others wait for few."""
    pool.node()
    group, other = pool.group("crowd", 1), pool.group("other", 1)
    elsewhere = pool.another_namespace()
    pool.apply(pod("first", group))
    pool.apply(pod("first", other), namespace=elsewhere)
    pool.running("first")
    pool.running("first", namespace=elsewhere)
    hungry = {"name": "main", "image": "busybox", "resources": {"requests": {"cpu": "1000"}}}
    crowd = [pod(f"crowd-{number}", group, containers=[hungry]) for number in range(CROWD)]
    pool.apply(*crowd)

    def touched() -> list[datetime]:
        marks = [each["metadata"]["annotations"].get("deviceshare.io/woken-at") for each in pool.get("pods")]
        return sorted(datetime.fromisoformat(mark) for mark in marks if mark)

    pool.eventually(touched)
    began = time.monotonic()
    pool.apply(pod("late", other), namespace=elsewhere)
    pool.running("late", namespace=elsewhere)
    took = time.monotonic() - began
    with capsys.disabled():
        print(f"\nBeside {CROWD} pods that are being woken another one ran after {took:.2f} s")
    pool.eventually(lambda: len(touched()) == CROWD, bool, 120)
    times = touched()
    # By the leader's own clock: whoever gets the place of another comes when that one must have been tried.
    apart = [later - earlier for earlier, later in zip(times, times[PLACES:], strict=False)]
    assert min(apart).total_seconds() >= TRIED_SECONDS / 2
