"""What is held of pods that are as large as an API server takes: next to nothing, whatever makes them large."""

import tracemalloc
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from deviceshare.domain import contract, vendors
from deviceshare.domain.objects.object_decoder import decoder_of
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.loops.replica.binder import Binder
from tests.unit.domain.objects import a_sharing_container
from tests.unit.loops.live import LiveCluster, MemoryMirror

MIB = 1 << 20
MOST = 100 << 10
"""Bytes of one pod: 1,000 pods may raise memory by 100 MiB."""
TEXT = "x" * MIB
NAMES = [f"some-name-{n:08}" for n in range(MIB // 40)]


def a_large_pod(**more: Any) -> dict[str, Any]:
    """A pod with a share, as the API server sends it, and with what somebody wrote into it besides."""
    labels = {contract.GROUP: ""} | more.pop("labels", {})
    annotations = {contract.POD_UID: "u", "nvidia.cdi.k8s.io/pod": "a=b"} | more.pop("annotations", {})
    container = a_sharing_container("main", {"deviceshare.io/gpu-percent": "10"})
    container["env"] = more.pop("env", []) + container["env"]
    container |= more.pop("container", {})
    spec = {"containers": [container], **more.pop("spec", {})}
    metadata = {"name": "p", "namespace": "ns", "uid": "u", "labels": labels, "annotations": annotations}
    return {"metadata": metadata, "spec": spec, "status": more}


LARGE = {
    "one annotation": a_large_pod(annotations={"theirs": TEXT}),
    "annotations": a_large_pod(annotations=dict.fromkeys(NAMES, "some-text")),
    "labels": a_large_pod(labels=dict.fromkeys(NAMES, "some-text")),
    "variables": a_large_pod(env=[{"name": name, "value": "text"} for name in NAMES]),
    "references": a_large_pod(env=[{"name": n, "valueFrom": {"fieldRef": {"fieldPath": "a"}}} for n in NAMES]),
    "arguments": a_large_pod(container={"args": NAMES, "command": [TEXT]}),
    "volumes": a_large_pod(spec={"volumes": [{"name": name, "emptyDir": {}} for name in NAMES]}),
    "pods that it avoids": a_large_pod(
        spec={
            "affinity": {
                "podAntiAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [
                        {"topologyKey": "kubernetes.io/hostname", "namespaces": NAMES}
                    ]
                }
            }
        }
    ),
    "a condition": a_large_pod(conditions=[{"type": "Theirs", "status": "False", "message": TEXT}]),
}


@pytest.mark.parametrize("pod", LARGE.values(), ids=LARGE.keys())
def test_a_large_pod_takes_little_memory(pod: dict[str, Any]) -> None:
    """Of a megabyte that nobody reads nothing is held; what is read of it is all there."""
    sent = msgspec.json.encode(pod)
    assert len(sent) >= MIB // 2
    decoder = decoder_of(Pod)
    decoder.salvage(msgspec.json.encode(a_large_pod()))
    tracemalloc.start()
    held = [decoder.salvage(sent) for _ in range(3)]
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size / len(held) < MOST
    assert held[0].share == msgspec.convert(pod, Pod).share
    assert (held[0].share_uid or held[0].metadata.annotations[contract.POD_UID]) == "u"
    assert held[0].sealed
    assert held[0].spec.containers[0].path_of(vendors.NVIDIA.env)


def test_a_pod_that_filter_was_asked_about_is_remembered_without_the_rest() -> None:
    """2,000 of them at most."""
    mirror = MemoryMirror()
    binder = Binder(LiveCluster(), Fleet(), groups=mirror, ledgers=mirror, quotas=mirror, on_conflict=lambda: None)
    sent = msgspec.json.encode(LARGE["one annotation"])
    tracemalloc.start()
    for n in range(3):
        binder.remember(_named(msgspec.json.decode(sent, type=Pod), f"u{n}"))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 3 * MOST


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
TERMS = [{"matchExpressions": [{"key": "k", "operator": "In", "values": NAMES}]}]
ODD = {
    "spec.containers[0].ports": a_large_pod(
        container={"ports": [{"containerPort": 1, "hostPort": n} for n in range(20_000)]}
    ),
    "spec.tolerations": a_large_pod(spec={"tolerations": [{"key": name, "operator": "Exists"} for name in NAMES]}),
    "spec.nodeSelector": a_large_pod(spec={"nodeSelector": dict.fromkeys(NAMES, "text")}),
    "spec.affinity": a_large_pod(
        spec={
            "affinity": {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": TERMS}}
            }
        }
    ),
    "spec.containers": a_large_pod(spec={"containers": [{"name": name, "image": "i"} for name in NAMES]}),
    "spec.overhead": a_large_pod(spec={"overhead": dict.fromkeys(NAMES, "1")}),
    "status.conditions": a_large_pod(conditions=[{"type": name, "status": "True"} for name in NAMES]),
}


@pytest.mark.parametrize(("path", "pod"), ODD.items(), ids=ODD.keys())
def test_what_no_pod_needs_so_many_of_counts_as_unreadable(path: str, pod: dict[str, Any]) -> None:
    """Nothing is decided by a part of it."""
    held = decoder_of(Pod).salvage(msgspec.json.encode(pod))
    assert held.metadata.hides(path)
    assert not held.metadata.hides("metadata.annotations")
    assert len(msgspec.json.encode(held)) < MOST


def _named(pod: Pod, uid: str) -> Pod:
    return replace(pod, metadata=replace(pod.metadata, uid=uid))


def test_pods_of_a_workload_share_their_containers() -> None:
    """With what is read of them; a large one is held by its pod alone."""
    one, two = (decoder_of(Pod).decode(msgspec.json.encode(a_large_pod(uid=uid))) for uid in "ab")
    other = decoder_of(Pod).decode(msgspec.json.encode(a_large_pod(container={"name": "other"})))
    limits = {f"example.com/{number}": "1" for number in range(400)}
    large = [
        decoder_of(Pod).decode(msgspec.json.encode(a_large_pod(container={"resources": {"limits": limits}})))
        for _ in "ab"
    ]

    assert one.spec.containers[0] is two.spec.containers[0]
    assert one.spec.containers[0].path_of(vendors.NVIDIA.env) != ""
    assert other.spec.containers[0].name == "other"
    assert large[0].spec.containers[0] == large[1].spec.containers[0]
    assert large[0].spec.containers[0] is not large[1].spec.containers[0]
