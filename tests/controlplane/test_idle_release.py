"""Idle groups give their devices back, by themselves and as their owner says; with plain kubectl."""

import json
from typing import Any

from tests.controlplane.pool import Pool, pod, refers
from tests.controlplane.test_controller import claims, events


def says(pool: Pool, group: str, **spec: Any) -> None:
    """Changes the group's spec, as kubectl edit does."""
    pool.kubectl("patch", "sdg", group, "--type=merge", "-p", json.dumps({"spec": spec}))


def test_an_idle_group_is_released_and_its_next_pod_binds_it_anew(pool: Pool) -> None:
    """Another group that waits for the devices gets them at once."""
    node, group = pool.node(2), pool.group("first")
    other = pool.group("second")
    pool.apply(pod("one", group))
    pool.running("one")
    pool.apply(pod("waits", other))
    pool.eventually(lambda: pool.condition(other), lambda seen: seen.get("reason") == "Waiting")
    for after in ("never", "2s", "never", "1s"):  # under a running pod, which keeps the group
        says(pool, group, releaseAfter=after)
    assert "idleSince" not in pool.status(group)
    assert claims(pool, node) == {group: "0,1"}

    pool.kubectl("delete", "pod", "one", "-n", pool.name)
    pool.running("waits")
    assert claims(pool, node) == {other: "0,1"}
    condition = pool.eventually(lambda: pool.condition(group), lambda seen: seen["reason"] == "Released")
    assert condition["message"] == "released after 1s without pods; its next pod binds it again"
    assert pool.status(group)["phase"] == "Pending"
    pool.eventually(lambda: events(pool, group), lambda said: "Released" in said)

    pool.kubectl("delete", "pod", "waits", "-n", pool.name)
    pool.eventually(lambda: pool.status(other).get("idleSince"))
    pool.apply(pod("two", group))
    pool.eventually(lambda: pool.condition(group), lambda seen: seen["reason"] == "Waiting")
    says(pool, other, releaseAfter="1s")
    pool.running("two")
    assert claims(pool, node) == {group: "0,1"}


def test_what_is_no_duration_is_refused(pool: Pool) -> None:
    """By the CRD's pattern, and what that admits by deviceshare."""
    group = pool.group()
    for text, why in (("soon", "spec.releaseAfter"), ("0s", "nor never"), ("0h0m", "nor never")):
        refusal = pool.kubectl(
            "patch", "sdg", group, "--type=merge", "-p", json.dumps({"spec": {"releaseAfter": text}}), fails=True
        )
        assert refers(why)(refusal)
