"""A group without any policy gets one while its pods run: they go on, the claim stays, and from then on it holds."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.controlplane.pool import Pool, pod, refers
from tests.controlplane.test_controller import claims
from tests.controlplane.test_idle_release import says


def released(pool: Pool, group: str, _: str) -> None:
    """`releaseAfter`: it gives its devices back once the pod has ended."""
    pool.kubectl("delete", "pod", "one", "-n", pool.name)
    pool.eventually(lambda: pool.condition(group), lambda seen: seen["reason"] == "Released")


def ended(pool: Pool, group: str, _: str) -> None:
    """`deletionPolicy`: its deletion is accepted, and it goes with the pod."""
    pool.kubectl("delete", "sdg", group, "--wait=false")
    pool.eventually(lambda: pool.status(group)["phase"], refers("Terminating"))
    pool.kubectl("delete", "pod", "one", "-n", pool.name)
    pool.eventually(lambda: pool.kubectl("get", "sdg", group, "--ignore-not-found"), lambda found: not found)


def moved(pool: Pool, group: str, node: str) -> None:
    """`nodeLossPolicy`: it leaves a node that is deleted, once the pod's object is gone."""
    pool.kubectl("delete", "node", node)
    pool.kubectl("delete", "pod", "one", "-n", pool.name, "--force", "--grace-period=0", "--wait=false")
    pool.eventually(lambda: pool.status(group).get("nodeName", ""), lambda found: not found)


def closed(pool: Pool, group: str, _: str) -> None:
    """`allowedNamespaces`: no further pod of the namespace joins; the one that runs stays."""
    text = json.dumps(pod("two", group))
    apply = ("apply", "-n", pool.name, "-f", "-")
    why = f"takes no pods of namespace {pool.name}"
    pool.eventually(lambda: pool.sandbox.kubectl(*apply, stdin=text).stderr + pool.reason("two"), refers(why))
    assert pool.running("one")


@pytest.mark.parametrize(
    ("policy", "holds"),
    [
        ({"releaseAfter": "1s"}, released),
        ({"deletionPolicy": "AfterLastPod"}, ended),
        ({"nodeLossPolicy": "Move"}, moved),
        ({"allowedNamespaces": {"from": "Selector", "names": ["elsewhere"]}}, closed),
    ],
    ids=["releaseAfter", "deletionPolicy", "nodeLossPolicy", "allowedNamespaces"],
)
def test_a_group_without_policy_gets_one_under_its_pods(
    pool: Pool, policy: dict[str, Any], holds: Callable[[Pool, str, str], None]
) -> None:
    """By a patch of its spec, as kubectl edit makes it."""
    node, group = pool.node(2), pool.group()
    spec = pool.get("sdg", group)["spec"]
    assert all(spec.get(name) != value for name, value in policy.items())
    pool.apply(pod("one", group))
    [before] = pool.running("one")
    says(pool, group, **policy)
    generation = pool.get("sdg", group)["metadata"]["generation"]
    pool.eventually(lambda: pool.status(group)["observedGeneration"], lambda seen: seen == generation)
    assert pool.status(group)["phase"] == "Bound"
    assert claims(pool, node) == {group: "0,1"}
    [after] = pool.running("one")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    holds(pool, group, node)
