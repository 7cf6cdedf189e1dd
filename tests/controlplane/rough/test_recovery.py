"""Whatever is killed, deleted or wiped: the same state comes back, nothing double, nothing lost."""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.controlplane.kills import LEASE_SECONDS, await_leader, kill, leads
from tests.controlplane.pool import GPU, Json, Pool, pod, refers
from tests.controlplane.test_controller import claims
from tests.controlplane.test_shares import MEMORY_LABEL, container, sharer


def wipe_status(pool: Pool, group: str) -> None:
    """As an unlucky `kubectl replace` or a restored backup does."""
    found = pool.get("sdg", group)
    found.pop("status", None)
    path = f"/apis/deviceshare.io/v1alpha1/shareddevicegroups/{group}/status"
    pool.kubectl("replace", "--raw", path, "-f", "-", stdin=json.dumps(found))


def placement(status: Json) -> dict[str, Any]:
    """What of a status must survive."""
    return {key: status.get(key) for key in ("phase", "nodeName", "selectedDevices", "allocatedPods", "podCount")}


@pytest.fixture
def settled(pool: Pool) -> tuple[str, str]:
    """Two groups that fill a node, of two pods and of one; returns the names of the node and of the first group."""
    node = pool.node()
    first, second = pool.group("first"), pool.group("second")
    pool.apply(pod("one", first), pod("two", first), pod("three", second))
    pool.running("one", "two", "three")
    pool.eventually(lambda: pool.status(first).get("podCount"), lambda count: count == 2)
    pool.eventually(lambda: pool.status(second).get("podCount"), lambda count: count == 1)
    return node, first


def test_a_killed_leader_comes_back_to_the_same_state(pool: Pool, settled: tuple[str, str]) -> None:
    """Nothing is written anew, and the group takes more pods."""
    node, first = settled
    before = (pool.get("ndev", node)["spec"], placement(pool.status(first)))
    kill(pool.sandbox)
    pool.eventually(lambda: not leads(pool.sandbox))
    await_leader(pool)
    assert (pool.get("ndev", node)["spec"], placement(pool.status(first))) == before
    pool.apply(pod("four", first))
    (four,) = pool.environments(pool.running("four"))
    assert four["NVIDIA_VISIBLE_DEVICES"] == before[1]["selectedDevices"][GPU]
    pool.eventually(lambda: pool.status(first)["podCount"], lambda count: count == 3)


def test_pods_that_a_dead_extender_refused_are_bound_by_the_next_leader(pool: Pool) -> None:
    """By a touch: kube-scheduler leaves those that it tried meanwhile for a minute or, since 1.24, for five."""
    pool.node()
    group = pool.group("first")
    pool.apply(pod("one", group))
    pool.running("one")
    names = [f"late-{number}" for number in range(10)]
    scheduler = pool.sandbox.pid("deviceshare-scheduler")
    os.kill(scheduler, signal.SIGSTOP)
    try:
        pool.apply(*(pod(name, group) for name in names))
        kill(pool.sandbox)
    finally:
        os.kill(scheduler, signal.SIGCONT)
    pool.eventually(lambda: all("connection refused" in pool.reason(name) for name in names))
    await_leader(pool)
    led = time.monotonic()
    pool.running(*names)
    assert time.monotonic() - led < 30


GUARDS = (
    ("validatingwebhookconfiguration", "deviceshare"),
    ("validatingadmissionpolicybinding", "deviceshare-ledger-deletions"),
)
"""What refuses to have a ledger with claims deleted: one of the two, as pods are admitted."""


@contextmanager
def unguarded(pool: Pool) -> Iterator[None]:
    """Takes that away for a while, as only an administrator could."""
    found = [pool.sandbox.kubectl("get", *guard, "-o", "json").stdout for guard in GUARDS]
    kept = [json.loads(each) for each in found if each]
    assert kept, "nothing guards ledgers"
    for each in kept:
        pool.kubectl("delete", each["kind"], each["metadata"]["name"])
    try:
        yield
    finally:
        for each in kept:
            for field in ("resourceVersion", "uid", "creationTimestamp", "managedFields", "generation"):
                each["metadata"].pop(field, None)
            pool.kubectl("create", "-f", "-", stdin=json.dumps(each))


def delete_ledger(pool: Pool, node: str) -> None:
    """Asks until the API server has noticed that nobody refuses it."""
    with unguarded(pool):
        pool.eventually(lambda: pool.sandbox.kubectl("delete", "ndev", node, "--wait=false").returncode == 0)


def lose(pool: Pool, node: str) -> None:
    """Deletes the node's ledger by force, past what refuses that and the finalizer that keeps it."""
    delete_ledger(pool, node)
    pool.sandbox.kubectl("patch", "ndev", node, "--type=merge", "-p", json.dumps({"metadata": {"finalizers": None}}))


def test_a_lost_ledger_is_recreated_and_nothing_is_given_away(pool: Pool, settled: tuple[str, str]) -> None:
    """A third group waits all the while: not for a moment may anything look free."""
    node, _ = settled
    third = pool.group("third", 1)
    pool.apply(pod("waits", third))
    pool.eventually(lambda: pool.reason("waits"))
    before = claims(pool, node)
    old = pool.get("ndev", node)["metadata"]["uid"]
    lose(pool, node)

    def made() -> bool:
        found = json.loads(pool.sandbox.kubectl("get", "ndev", node, "-o", "json").stdout or "{}")
        return found.get("metadata", {}).get("uid", old) != old and bool(found.get("status", {}).get("devices"))

    pool.eventually(made, bool, 60)
    assert {group: devices.rstrip("*") for group, devices in claims(pool, node).items()} == before
    # A recreated ledger's claims bear a mark until the leader has seen that their groups are bound there.
    pool.eventually(lambda: claims(pool, node), lambda found: found == before)
    assert pool.placed("waits") == ""
    assert "ownerReferences" not in pool.get("ndev", node)["metadata"]


def test_a_deleted_ledger_serves_on(pool: Pool, settled: tuple[str, str]) -> None:
    """Its finalizer keeps it as long as it has claims; pods join by it meanwhile."""
    node, first = settled
    before = (pool.get("ndev", node)["metadata"]["uid"], claims(pool, node))
    delete_ledger(pool, node)
    pool.apply(pod("four", first))
    pool.running("four")
    assert (pool.get("ndev", node)["metadata"]["uid"], claims(pool, node)) == before


def test_a_wiped_status_is_recreated_from_its_pods(pool: Pool, settled: tuple[str, str]) -> None:
    """The same node, the same devices, the same pods."""
    _, first = settled
    before = placement(pool.status(first))
    wipe_status(pool, first)
    pool.eventually(lambda: placement(pool.status(first)), lambda now: now == before)
    pool.eventually(lambda: pool.condition(first, "Healthy"), lambda each: each.get("status") == "True")


def test_a_claim_deleted_by_hand_comes_back(pool: Pool, settled: tuple[str, str]) -> None:
    """From a pod that runs; and where none does, from what the group's status says."""
    node, first = settled
    before, uid = claims(pool, node), pool.get("sdg", first)["metadata"]["uid"]
    delete = ("patch", "ndev", node, "--type=merge", "-p", json.dumps({"spec": {"claims": {uid: None}}}))
    pool.kubectl(*delete)
    pool.eventually(lambda: claims(pool, node), lambda found: found == before)

    pool.kubectl("delete", "pods", "one", "two", "-n", pool.name)
    pool.eventually(lambda: pool.status(first).get("podCount"), lambda count: not count)
    pool.kubectl(*delete)
    pool.apply(pod("next", first))
    pool.running("next")
    assert claims(pool, node) == before


def test_ledger_and_status_lost_while_deviceshare_is_dead(pool: Pool, settled: tuple[str, str]) -> None:
    """Only the annotations of the running pods are left, and they are enough."""
    node, first = settled
    before = (claims(pool, node), placement(pool.status(first)))
    kill(pool.sandbox)
    wipe_status(pool, first)
    lose(pool, node)
    await_leader(pool)
    pool.eventually(lambda: pool.sandbox.kubectl("get", "ndev", node).returncode == 0)
    pool.eventually(lambda: placement(pool.status(first)), lambda now: now == before[1], 60)
    pool.eventually(lambda: claims(pool, node), lambda now: now == before[0])  # no mark is left
    pool.eventually(lambda: pool.get("ndev", node).get("status", {}).get("devices"))
    pool.apply(pod("four", first))
    pool.running("four")


def test_a_group_deleted_while_nobody_led_is_released_by_the_next_leader(pool: Pool, settled: tuple[str, str]) -> None:
    """The deletion is no event to miss: what is gone is gone."""
    node, first = settled
    pool.kubectl("delete", "pods", "one", "two", "-n", pool.name)
    pool.eventually(lambda: pool.status(first)["podCount"], lambda count: count == 0)
    kill(pool.sandbox)
    pool.eventually(lambda: pool.sandbox.kubectl("delete", "sdg", first).returncode == 0)
    pool.eventually(lambda: first not in claims(pool, node), bool, LEASE_SECONDS)
    await_leader(pool)


def test_a_lost_ledger_is_filled_with_what_pods_were_given(pool: Pool) -> None:
    """Shares, and shares inside of a group; nothing is given to others meanwhile."""
    node = pool.node(2, **MEMORY_LABEL)
    group = pool.group(count=1)
    pool.apply(sharer(pool, "nested", container(mem=3), group=group), sharer(pool, "share", container(mem=10)))
    pool.running("nested", "share")
    before, old = pool.get("ndev", node)["spec"]["claims"], pool.get("ndev", node)["metadata"]["uid"]
    lose(pool, node)
    pool.eventually(
        lambda: json.loads(pool.sandbox.kubectl("get", "ndev", node, "-o", "json").stdout or "{}"),
        lambda ledger: (
            ledger.get("metadata", {}).get("uid") != old
            and ledger.get("spec", {}).get("claims") == before
            and ledger["status"].get("devices")
        ),
        seconds=90,
    )
    pool.apply(sharer(pool, "late", container(mem=7)))
    pool.eventually(lambda: pool.reason("late"), refers("6 of 16 GiB"))
