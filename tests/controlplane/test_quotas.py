"""DeviceQuotas on a real control plane: a group that would exceed one waits, says for what, and goes on when it may."""

from typing import Any

from deviceshare.domain.admission.settings import WEBHOOKS
from tests.controlplane.pool import GPU, Json, Pool, pod, refers


def quota(pool: Pool, name: str, hard: int, **selector: Any) -> Json:
    """A quota of GPUs, by default for all groups of the pool."""
    return {
        "apiVersion": "deviceshare.io/v1alpha1",
        "kind": "DeviceQuota",
        "metadata": {"name": f"{pool.name}-{name}"},
        "spec": {"groupSelector": selector or {"matchLabels": {"pool": pool.name}}, "hard": {GPU: hard}},
    }


def column(pool: Pool, name: str) -> str:
    """What `kubectl get dq` shows of a quota."""
    return pool.kubectl("get", "dq", "--no-headers", f"{pool.name}-{name}")


def test_a_group_that_would_exceed_a_quota_waits_until_another_goes(pool: Pool) -> None:
    """On another node, too: what counts is what the groups hold together."""
    pool.node(), pool.node()
    pool.apply(quota(pool, "team", 4))
    try:
        a, b, c = pool.group("a", 2), pool.group("b", 2), pool.group("c", 2)
        pool.apply(pod("pod-a", a), pod("pod-b", b))
        pool.running("pod-a", "pod-b")
        pool.apply(pod("pod-c", c))
        wanted = f"quota {pool.name}-team: 4 of 4 {GPU} are held by groups {a} and {b}; group {c} wants 2"
        pool.eventually(lambda: pool.reason("pod-c"), refers(wanted))
        pool.eventually(lambda: pool.condition(c).get("message", ""), refers(wanted))
        assert pool.condition(c)["reason"] == "QuotaExceeded"
        row = pool.eventually(lambda: column(pool, "team"), refers(f"{GPU}: 4/4"))
        assert row.split()[-2] == "2"

        pool.kubectl("delete", "pod", "pod-a", "-n", pool.name)
        pool.eventually(lambda: pool.sandbox.kubectl("delete", "sdg", a), lambda done: done.returncode == 0)
        pool.running("pod-c")  # in less time than kube-scheduler needs to retry it by itself
        names = pool.get("dq", f"{pool.name}-team")["status"]["reservations"].values()
        assert sorted(each["name"] for each in names) == sorted([b, c])

        # More is allowed at any time, and less lets what is bound stay.
        pool.apply(quota(pool, "team", 1))
        pool.eventually(lambda: column(pool, "team"), refers(f"{GPU}: 4/1"))
        assert pool.running("pod-b", "pod-c")
    finally:
        pool.kubectl("delete", "dq", f"{pool.name}-team", "--ignore-not-found")


def test_a_group_that_alone_exceeds_a_quota_is_told_at_once(pool: Pool) -> None:
    """By the webhook; by policies its pod waits. A new quota counts what is bound already."""
    pool.node()
    labelled = {"matchExpressions": [{"key": "pool", "operator": "In", "values": [pool.name]}]}
    first = pool.group("first", 2)
    pool.apply(pod("first", first))
    pool.running("first")
    pool.apply(quota(pool, "late", 1, **labelled))
    try:
        pool.eventually(lambda: column(pool, "late"), refers(f"{GPU}: 2/1"))
        wanted = f"quota {pool.name}-late allows 1 {GPU} in all; group {pool.name}-large wants 2"
        if pool.sandbox.plan.admission == WEBHOOKS:
            large = {"name": f"{pool.name}-large", "labels": {"pool": pool.name}}
            spec = {"resources": {GPU: 2}}
            group = {**quota(pool, "", 0), "kind": "SharedDeviceGroup", "metadata": large, "spec": spec}
            assert wanted in pool.apply(group, fails=True)
            return
        pool.apply(pod("large", pool.group("large", 2)))
        pool.eventually(lambda: pool.reason("large"), refers(wanted))
    finally:
        pool.kubectl("delete", "dq", f"{pool.name}-late", "--ignore-not-found")
