"""Lost nodes on a real control plane: groups leave them by their policy, once their pods' objects are gone."""

import json

from deviceshare.domain.objects.nodes import OUT_OF_SERVICE
from tests.controlplane.pool import Pool, pod, refers


def kept(name: str, group: str) -> dict[str, object]:
    """A pod whose object somebody keeps by a finalizer, as while a volume is detached."""
    body = pod(name, group)
    body["metadata"]["finalizers"] = ["example.com/kept"]
    return body


def node_of(pool: Pool, group: str) -> str:
    return str(pool.status(group).get("nodeName", ""))


def test_a_group_leaves_a_deleted_node_once_its_pods_objects_are_gone(pool: Pool) -> None:
    """A pod that is being deleted still counts; then its ledger goes, too, and the next pod binds the group again."""
    lost = pool.node()
    group = pool.group(nodeLossPolicy="Move")
    pool.apply(kept("first", group))
    pool.running("first")
    other = pool.node()
    pool.kubectl("delete", "node", lost)
    waits = f"leaves it once these pods are deleted: {pool.name}/first"
    pool.eventually(lambda: pool.condition(group, "Healthy").get("message", ""), refers(waits))
    pool.kubectl("delete", "pod", "first", "-n", pool.name, "--force", "--grace-period=0", "--wait=false")
    assert pool.get("pod", "first")["metadata"]["deletionTimestamp"]
    assert node_of(pool, group) == lost

    no_finalizer = json.dumps({"metadata": {"finalizers": None}})
    pool.kubectl("patch", "pod", "first", "-n", pool.name, "--type=merge", "-p", no_finalizer)

    pool.eventually(lambda: node_of(pool, group), lambda node: not node)
    said = f"left node {lost}, which is gone; its next pod binds it again"
    events = ("get", "events", "-A", "--field-selector", f"involvedObject.name={group},reason=LeftNode")
    pool.eventually(lambda: pool.kubectl(*events, "-o", "jsonpath={..message}"), refers(said))
    pool.eventually(lambda: pool.kubectl("get", "ndev", "--ignore-not-found", lost), lambda found: not found)
    pool.apply(pod("second", group))
    pool.running("second")
    assert pool.placed("second") == node_of(pool, group) == other
    pool.kubectl("wait", "--for=condition=Ready", f"sdg/{group}", "--timeout=45s")


def test_a_group_that_stays_on_a_node_out_of_service_is_let_go_by_its_policy(pool: Pool) -> None:
    """The text says how. The taint has Kubernetes evict the pods; nothing new goes there."""
    lost = pool.node()
    group = pool.group()
    pool.apply(pod("first", group))
    pool.running("first")
    pool.kubectl("taint", "node", lost, f"{OUT_OF_SERVICE}=nodeshutdown:NoExecute")
    patch = '{"spec":{"nodeLossPolicy":"Move"}}'
    cure = f"kubectl patch sdg {group} --type=merge -p '{patch}'"
    pool.eventually(lambda: pool.condition(group, "Healthy").get("message", ""), refers(cure))
    assert pool.condition(group, "Ready")["reason"] == "NodeOutOfService"
    pool.eventually(lambda: pool.get("pods"), lambda pods: not pods)
    assert node_of(pool, group) == lost

    pool.kubectl("patch", "sdg", group, "--type=merge", "-p", patch)

    pool.eventually(lambda: node_of(pool, group), lambda node: not node)
    other = pool.node()
    pool.apply(pod("second", group))
    pool.running("second")
    assert pool.placed("second") == other


def test_a_group_leaves_its_cordoned_node_for_a_pod_that_waits(pool: Pool) -> None:
    """After a drain; a pod that runs there kept it, and its own policy would."""
    drained, group, keeper = pool.node(), pool.group("goes", 2), pool.group("stays", 2, cordonPolicy="Stay")
    pool.apply(pod("first", group), pod("kept", keeper))
    pool.running("first", "kept")
    other = pool.node()
    pool.kubectl("cordon", drained)
    said = f"it is cordoned: no pod goes there until kubectl uncordon {drained}"
    pool.eventually(lambda: pool.condition(group, "Healthy").get("message", ""), refers(said))
    pool.kubectl("delete", "pod", "first", "kept", "-n", pool.name)
    pool.apply(pod("second", group), pod("waits", keeper))
    pool.running("second")
    assert pool.placed("second") == node_of(pool, group) == other
    assert (pool.placed("waits"), node_of(pool, keeper)) == ("", drained)
    pool.kubectl("uncordon", drained)
    pool.running("waits")
    assert pool.placed("waits") == drained
