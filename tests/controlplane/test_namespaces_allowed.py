"""Groups that take the pods of some namespaces only: what kubectl and the scheduler say, and that it can be changed."""

import json

from deviceshare.domain.admission.settings import WEBHOOKS
from tests.controlplane.pool import Json, Pool, pod, refers


def test_a_pod_of_another_namespace_may_not_join(pool: Pool) -> None:
    """It is refused in the owner's words, or waits with them; what is bound stays; a change lets waiting pods in."""
    pool.node()
    outside = pool.another_namespace()
    rule = {"from": "Selector", "selector": {"matchLabels": {"pool": pool.name}}, "message": "ask ada for a label"}
    group = pool.group(allowedNamespaces={"from": "Selector", "names": [pool.name], "message": "ask ada"})
    pool.apply(pod("inside", group))
    pool.running("inside")
    if pool.sandbox.plan.admission == WEBHOOKS:
        said = pool.apply(pod("outside", group), namespace=outside, fails=True)
        assert f"group {group} takes no pods of namespace {outside}, only those of namespace {pool.name}" in said
        assert "its owner says: ask ada" in said

    # Bound as it is, the group may be opened to others and closed to its own pod, which stays.
    pool.kubectl("label", "namespace", outside, f"pool={pool.name}")
    pool.group(allowedNamespaces=rule)
    created(pool, pod("late", group), outside)
    pool.running("late", namespace=outside)
    assert pool.running("inside")


def created(pool: Pool, document: Json, namespace: str) -> None:
    """Applies it until the webhook has heard of the group's change."""
    text = json.dumps(document)
    apply = ("apply", "-n", namespace, "-f", "-")
    pool.eventually(lambda: pool.sandbox.kubectl(*apply, stdin=text), lambda done: done.returncode == 0)


def test_a_pod_waits_whose_namespace_lost_its_label(pool: Pool) -> None:
    """It was admitted before; it is told why, and retried as soon as the label is back."""
    pool.node(devices=2)
    pool.kubectl("label", "namespace", pool.name, "gpus=yes")
    group = pool.group(allowedNamespaces={"from": "Selector", "selector": {"matchLabels": {"gpus": "yes"}}})
    created(pool, pod("late", group, nodeSelector={"open": "yes"}), pool.name)
    pool.eventually(lambda: pool.reason("late"))
    pool.kubectl("label", "namespace", pool.name, "gpus-")
    # Before the node suits the pod: else a deviceshare that hasn't heard of the label yet would bind it.
    explained = pool.eventually(lambda: pool.condition(group).get("message", ""), refers("can't join it"))
    assert f"pod {pool.name}/late" in explained
    pool.kubectl("label", "nodes", "-l", f"pool={pool.name}", "open=yes")
    pool.eventually(lambda: why(pool, "late"), refers(f"takes no pods of namespace {pool.name}, only those of"))
    pool.kubectl("label", "namespace", pool.name, "gpus=yes")
    pool.running("late")


def why(pool: Pool, name: str) -> str:
    """What kube-scheduler says of a pod that it can't place."""
    conditions = pool.get("pod", name)["status"].get("conditions", [])
    return next((each.get("message", "") for each in conditions if each["type"] == "PodScheduled"), "")
