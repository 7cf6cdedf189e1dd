"""Namespaces that the webhooks leave out: what pods there say of devices is believed by nobody."""

import json
from collections.abc import Iterator

import pytest

from tests.controlplane.pool import GPU, Json, Pool, pod, refers

LABEL = "kubernetes.io/metadata.name"
WHERE = "kube-system"


@pytest.fixture
def left_out(pool: Pool) -> Iterator[Pool]:
    """Before 1.21 the webhooks know a namespace by its name only once somebody labels it."""
    pool.kubectl("label", "namespace", WHERE, f"{LABEL}={WHERE}", "--overwrite")
    yield pool
    pool.kubectl("delete", "pods", "-n", WHERE, "-l", f"pool={pool.name}", "--wait=false")
    if pool.sandbox.plan.binaries.minor < 21:
        pool.kubectl("label", "namespace", WHERE, f"{LABEL}-")


def forged(pool: Pool, name: str, group: str, given: Json, **spec: str) -> None:
    """Creates a pod there with our label and annotations, as soon as the API server asks no webhook any more."""
    document = pod(f"{pool.name}-{name}", group, **spec)
    document["metadata"]["labels"] = {"deviceshare.io/group": group, "pool": pool.name}
    document["metadata"]["annotations"] |= given
    ask = ("create", "-n", WHERE, "-f", "-")
    pool.eventually(lambda: pool.sandbox.kubectl(*ask, stdin=json.dumps(document)).returncode == 0)


def test_a_pod_forged_where_no_webhook_looks_claims_no_devices(left_out: Pool) -> None:
    """For a group that never existed. The ledger is recreated from all the evidence that there is, and stays free."""
    pool, node = left_out, left_out.node()
    devices = {"deviceshare.io/group-uid": "never", "deviceshare.io/selected-devices": json.dumps({GPU: "0,1,2,3"})}
    forged(pool, "forged", "never", devices, nodeName=node)
    old = pool.get("ndev", node)["metadata"]["uid"]
    pool.kubectl("delete", "ndev", node)

    def recreated() -> Json:
        found = [each for each in pool.get("ndev") if each["metadata"]["name"] == node]
        new = [each for each in found if each["metadata"]["uid"] != old and each.get("status", {}).get("devices")]
        return dict(new[0]) if new else {}

    assert pool.eventually(recreated, bool, 90)["spec"].get("claims", {}) == {}
    group = pool.group(count=4)
    pool.apply(pod("real", group))
    pool.running("real")
    assert [claim["group"] for claim in pool.get("ndev", node)["spec"]["claims"].values()] == [group]


def test_a_pod_there_that_names_a_group_is_told_why_it_waits(left_out: Pool) -> None:
    """In the scheduler's event, with the setting and the way out."""
    pool = left_out
    pool.node()
    group = pool.group()
    forged(pool, "asks", group, {})
    chosen = f"reason=FailedScheduling,involvedObject.name={pool.name}-asks"
    ask = ("get", "events", "-n", WHERE, "--field-selector", chosen, "-o", "jsonpath={..message}")
    why = pool.eventually(lambda: pool.kubectl(*ask), refers("webhooks.excludedNamespaces"))
    assert f"namespace {WHERE}" in why and group in why
