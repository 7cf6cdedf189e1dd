"""The chart on a real node: what containers see, what holds when things die, and what is left behind.

The tests share one release; the last of them takes it away.
"""

import contextlib
import json
import os
import signal
import tempfile
import time
from functools import partial
from pathlib import Path

import pytest

from charts.helm import NAMESPACE
from deviceshare.domain.vendors import NVIDIA
from deviceshare_sandbox import images
from tests.node.cluster import TELL, VISIBLE, Cluster, Json, group, pod
from tests.node.conftest import timed
from tests.node.release import LEASES, SELECTOR, Release

BAKED = "localhost/baked:1"
SDG = "shareddevicegroups"
STAY = f"{TELL}; sleep 3600 & wait"


@pytest.fixture(autouse=True)
def _installed(clear: None) -> None:
    """Every test here needs the release, and leaves it as it was."""


def test_two_pods_of_a_group_see_the_same_devices(cluster: Cluster) -> None:
    """Inside their containers, which is the point of it all; another group's pod sees others."""
    with timed("a first pod has its devices"):
        cluster.apply(group("pair", 2), group("single", 1))
        cluster.apply(pod("a", STAY, "pair"))
        seen = cluster.tells("a")
    cluster.apply(pod("b", STAY, "pair"), pod("c", STAY, "single"))
    assert seen == cluster.tells("b")
    pair, single = devices(seen), devices(cluster.tells("c"))
    assert (len(pair), len(single)) == (2, 1)
    assert pair.isdisjoint(single)


def test_every_container_of_a_pod_sees_the_devices(cluster: Cluster) -> None:
    """Init containers and sidecars, too."""
    first = {"name": "first", "image": "busybox:1.36", "command": ["sh", "-c", TELL]}
    document = pod("all", STAY, "many", initContainers=[first])
    document["spec"]["containers"].append({**first, "name": "beside", "command": ["sh", "-c", f"{TELL}; sleep 3600"]})
    cluster.apply(group("many", 2))
    cluster.apply(document)
    seen = cluster.tells("all")
    assert len(devices(seen)) == 2
    for container in ("first", "beside"):
        # The main container's word may come before another has begun.
        logs = partial(cluster.sandbox.kubectl, "logs", "all", "-c", container)
        assert cluster.eventually(lambda logs=logs: logs().stdout.strip()) == seen  # type: ignore[misc]


def test_a_container_that_restarts_keeps_its_devices(cluster: Cluster) -> None:
    """The kubelet resolves the environment anew for each start."""
    cluster.apply(group("steady", 2))
    cluster.apply(pod("again", f"{TELL}; sleep 3; exit 1", "steady"))
    first = cluster.tells("again")
    cluster.eventually(lambda: restarts(cluster, "again"))
    assert len(devices(first)) == 2
    assert cluster.tells("again") == cluster.kubectl("logs", "again", "--previous").strip() == first


def test_a_pod_without_the_annotation_sees_no_device(cluster: Cluster) -> None:
    """The variable is there and empty, even where the image has `all` baked in, as CUDA's images have."""
    cluster.apply(group("model", 1))
    cluster.apply(pod("injected", STAY, "model"))
    with_all_baked_in(cluster)
    (container,) = cluster.get("pod", "injected")["spec"]["containers"]
    assert VISIBLE in [variable["name"] for variable in container["env"]]
    cluster.apply(pod("bare", STAY, image=BAKED, container={"env": container["env"]}), pod("baked", STAY, image=BAKED))
    assert cluster.tells("baked") == "[all]"
    assert cluster.tells("bare") == "[]"


def test_a_user_may_not_edit_the_annotation(cluster: Cluster) -> None:
    """Whoever may edit pods could give themselves devices at the next restart."""
    cluster.apply(group("guarded", 1))
    cluster.apply(pod("mine", STAY, "guarded"))
    cluster.eventually(lambda: cluster.tells("mine"))
    edit = ("annotate", "pod", "mine", "--overwrite", f"{NVIDIA.annotation}=0,1,2,3")
    assert NVIDIA.annotation in cluster.kubectl(*edit, identity="alice", fails=True)
    remove = ("annotate", "pod", "mine", f"{NVIDIA.annotation}-")
    assert NVIDIA.annotation in cluster.kubectl(*remove, identity="alice", fails=True)


def test_the_image_offers_no_sandbox(cluster: Cluster, release: Release) -> None:
    """Nothing in a cluster should be able to download programs and run them."""
    name = release.pods()[0]["metadata"]["name"]
    asked = ("exec", name, "-n", NAMESPACE, "-c", "deviceshare", "--", "deviceshare", "sandbox", "up")
    assert "The sandbox is a package of its own" in cluster.kubectl(*asked, fails=True)


@pytest.mark.parametrize("how", ["deleted", "killed"])
def test_another_replica_takes_over(cluster: Cluster, release: Release, how: str) -> None:
    """While nobody leads, pods are still admitted and get devices; the new leader keeps the books on."""
    old = cluster.eventually(release.leader)
    (leading,) = [each for each in release.pods() if old.startswith(each["metadata"]["name"])]
    began = time.monotonic()
    if how == "deleted":
        cluster.kubectl("delete", "pod", "-n", NAMESPACE, leading["metadata"]["name"], "--wait=false")
    else:
        os.kill(process_of(leading), signal.SIGKILL)
    # The webhooks' Service forgets the dead replica when its readiness has failed; who creates tries again until then.
    cluster.eventually(lambda: created(cluster, group("heir", 1)))
    cluster.eventually(lambda: cluster.joins(pod("meanwhile", STAY, "heir")))
    cluster.eventually(release.leader, lambda holder: holder not in ("", old))
    led = time.monotonic() - began
    # kube-scheduler has a lease of its own, which old releases don't give back when they end.
    assert len(devices(cluster.tells("meanwhile"))) == 1
    print(f"leader {how}: another leads after {led:.1f} s, pods start again after {time.monotonic() - began:.1f} s")
    cluster.eventually(lambda: cluster.get("sdg", "heir").get("status", {}).get("allocatedPods"))
    cluster.eventually(release.pods, lambda pods: len(pods) == 2 and all(map(ready, pods)))


def test_a_drain_leaves_one_replica_serving(cluster: Cluster, release: Release) -> None:
    """The last node's drain must wait: what is admitted meanwhile gets its devices once there is a node again."""
    cluster.kubectl("cordon", "node-1")
    try:
        mine = f"--pod-selector={SELECTOR}"
        drain = ("drain", "node-1", mine, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=25s")
        said = cluster.kubectl(*drain, fails=True)
        assert "would violate the pod's disruption budget" in said
        cluster.eventually(lambda: len([each for each in release.pods() if ready(each)]), lambda left: left == 1)
        cluster.eventually(lambda: created(cluster, group("patient", 1)))
        cluster.eventually(lambda: cluster.joins(pod("drained", STAY, "patient")))
    finally:
        cluster.kubectl("uncordon", "node-1")
    assert len(devices(cluster.tells("drained"))) == 1
    cluster.eventually(release.pods, lambda pods: len(pods) == 2 and all(map(ready, pods)))


def test_an_upgrade_disturbs_no_running_pod(cluster: Cluster, release: Release) -> None:
    """And takes away what the new values don't ask for, the old pods included."""
    cluster.apply(group("lasting", 2))
    cluster.apply(pod("before", STAY, "lasting"))
    seen = cluster.tells("before")
    old = {each["metadata"]["uid"] for each in release.pods()}
    release.upgrade(log={"level": "debug"}, networkPolicy={"enabled": False})
    cluster.eventually(lambda: cluster.joins(pod("after", STAY, "lasting")))
    assert cluster.tells("after") == cluster.tells("before") == seen
    assert restarts(cluster, "before") == 0
    pods = cluster.eventually(release.pods, lambda pods: len(pods) == 2 and all(map(ready, pods)))
    assert old.isdisjoint(each["metadata"]["uid"] for each in pods)
    assert cluster.get("networkpolicies", "-A") == []


def test_after_an_uninstall_only_the_kept_crds_and_leases_are_left(cluster: Cluster, release: Release) -> None:
    """And what is in their keeping: groups, claims. Running pods run on."""
    cluster.apply(group("survivor", 1))
    cluster.apply(pod("running", STAY, "survivor"))
    seen = cluster.tells("running")
    release.uninstall()
    names = ("devicequotas", "nodedevices", SDG)
    crds = {f"customresourcedefinition.apiextensions.k8s.io/{name}.deviceshare.io" for name in names}
    kept = {"shareddevicegroup.deviceshare.io/survivor", "nodedevices.deviceshare.io/node-1", "pod/running"}
    # The API server's own, for as long as there are CRDs of the group.
    kept |= crds | LEASES | {"apiservice.apiregistration.k8s.io/v1alpha1.deviceshare.io"}
    cluster.eventually(lambda: cluster.inventory() - release.before, lambda left: left == kept)
    assert cluster.tells("running") == seen
    # Without the webhooks pods and groups are anybody's again; the finalizer goes as docs/installation.md says.
    cluster.kubectl("delete", "pod", "running")
    cluster.kubectl("patch", "sdg", "survivor", "--type=merge", "-p", '{"metadata": {"finalizers": null}}')
    cluster.kubectl("delete", "sdg", "survivor", "--timeout=60s")


def devices(told: str) -> set[str]:
    """`[0,1]` as a set."""
    return set(told.strip("[]").split(",")) - {""}


def restarts(cluster: Cluster, name: str) -> int:
    """How often the pod's only container was started again."""
    (status,) = cluster.get("pod", name)["status"]["containerStatuses"]
    return int(status["restartCount"])


def ready(document: Json) -> bool:
    """Whether the pod is."""
    conditions = {each["type"]: each["status"] for each in document["status"].get("conditions", [])}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in document["metadata"]


def created(cluster: Cluster, document: Json) -> bool:
    """Whether the API server has taken it, all webhooks agreeing."""
    return cluster.sandbox.kubectl("apply", "-f", "-", stdin=json.dumps(document)).returncode == 0


def with_all_baked_in(cluster: Cluster) -> None:
    """Gives the node the image BAKED."""
    programs = cluster.sandbox.plan.programs
    assert programs is not None
    with tempfile.NamedTemporaryFile(suffix=".tar") as archive:
        files, path = {"bin/busybox": Path(programs.busybox)}, Path(archive.name)
        shell = {"bin/sh": "busybox", "bin/sleep": "busybox"}
        images.write(path, BAKED, files, links=shell, command=["sh"], environment=[f"{VISIBLE}=all"])
        cluster.sandbox.import_image(path)


def process_of(document: Json) -> int:
    """The process of deviceshare in this pod, as this machine counts processes."""
    for directory in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # Not a process, or one that has ended.
            words = (directory / "cmdline").read_bytes().split(b"\0")
            name = f"HOSTNAME={document['metadata']['name']}".encode()
            if b"run" in words and name in (directory / "environ").read_bytes().split(b"\0"):
                return int(directory.name)
    raise AssertionError(f"no process of {document['metadata']['name']}")
