"""What other software writes into the objects that deviceshare reads, on a real API server."""

import json
from typing import Any

from tests.controlplane.kills import await_leader, kill, leads
from tests.controlplane.pool import Pool, pod
from tests.controlplane.test_cli import deviceshare

ODD = {"type": "cloud.google.com/load-balancer-neg-ready", "status": "True", "lastTransitionTime": None}


def write_condition(pool: Pool, name: str) -> None:
    """As GKE's NEG reflector does: Go keeps a time that was never set, and writes it as null."""
    path = f"/api/v1/namespaces/{pool.name}/pods/{name}/status"

    def written() -> bool:
        found: dict[str, Any] = pool.get("pod", name)
        found["status"].setdefault("conditions", []).append(ODD)
        done = pool.sandbox.kubectl("replace", "--raw", path, "-f", "-", stdin=json.dumps(found))
        return done.returncode == 0  # others write the pod, too

    pool.eventually(written)
    kept = pool.get("pod", name)["status"]["conditions"]
    assert [each for each in kept if each["type"] == ODD["type"] and each["lastTransitionTime"] is None]


def test_a_condition_without_a_time_blinds_nobody(pool: Pool) -> None:
    """The pod stays its group's, for the webhooks, for the commands, and for a deviceshare that has just started."""
    pool.node()
    group = pool.group("odd", 2, deletionPolicy="Refuse")
    pool.apply(pod("one", group))
    pool.running("one")
    pool.eventually(lambda: pool.status(group).get("podCount"), lambda count: count == 1)
    write_condition(pool, "one")

    # A pod that has the condition before it is bound goes through filter.
    wide = pool.group("wide", 3)
    pool.apply(pod("late", wide))
    pool.eventually(lambda: pool.reason("late"), bool)
    write_condition(pool, "late")
    pool.node()
    pool.running("late")

    pool.kubectl("label", "pod", "one", "-n", pool.name, "team=blue")
    shown = json.loads(deviceshare(pool, "inspect", "-o", "json"))
    (mine,) = [each for each in shown["groups"] if each["name"] == group]
    assert mine["pods"] == [f"{pool.name}/one"]
    assert f"{pool.name}/one" in deviceshare(pool, "explain", "group", group)
    assert group in deviceshare(pool, "explain", "pod", f"{pool.name}/one")

    kill(pool.sandbox)
    pool.eventually(lambda: not leads(pool.sandbox))
    await_leader(pool)
    said = pool.eventually(
        lambda: pool.sandbox.kubectl("delete", "sdg", group, "--dry-run=server").stderr,
        lambda text: f"{pool.name}/one" in text,
    )
    assert "is used by 1 pod" in said
