"""Reads of a cluster in which another system's labels share nodes."""

from typing import Any

from deviceshare.doctor.kinds import MACHINES
from deviceshare.domain import contract
from deviceshare.domain.admission.pod_guard import PodGuard
from deviceshare.domain.objects.nodes import SharingLabels
from deviceshare.loops.kinds import NODES, PODS, SHARED_NODES
from deviceshare.loops.replica.guarded_cluster import GuardedCluster
from tests.unit.loops.live import LiveCluster

LABELS = SharingLabels(["gpushare=true"])


def a_cluster() -> Any:
    cluster = LiveCluster()
    for name, labels in {"ours": {contract.MODE_LABEL: contract.MODE_SHARED}, "theirs": {"gpushare": "true"}}.items():
        cluster.put(NODES, {"metadata": {"name": name, "labels": labels}})
    cluster.put(NODES, {"metadata": {"name": "nobodys"}})
    cluster.put(PODS, {"metadata": {"name": "pod", "namespace": "a", "labels": {"gpushare": "true"}}})
    return cluster


async def test_shared_nodes_are_those_of_either_label() -> None:
    """However they are asked for, and as whatever type."""
    seen = GuardedCluster(a_cluster(), PodGuard(), LABELS)

    assert {node.metadata.name for node in await seen.list(NODES, label_selector=SHARED_NODES)} == {"ours", "theirs"}
    assert {node.metadata.name for node in await seen.list(NODES) if node.shared} == {"ours", "theirs"}
    assert (await seen.get(NODES, "theirs")).shared
    assert not (await seen.get(NODES, "nobodys")).shared
    assert {node.metadata.name for node in await seen.list(MACHINES, label_selector=SHARED_NODES)} == {"ours", "theirs"}


async def test_without_the_setting_and_of_other_kinds_all_is_as_it_is() -> None:
    """A pod has labels of its own."""
    cluster = a_cluster()
    assert [n.metadata.name for n in await GuardedCluster(cluster, PodGuard()).list(NODES) if n.shared] == ["ours"]
    [pod] = await GuardedCluster(cluster, PodGuard(), LABELS).list(PODS)
    assert pod.metadata.labels == {"gpushare": "true"}
