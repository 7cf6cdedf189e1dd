"""etcd restored from a snapshot under running processes: deviceshare goes on from the state that is there now."""

import json
import os
import shutil
import signal
from collections.abc import Iterator

import pytest

from deviceshare_sandbox import Options, Sandbox, running
from tests.controlplane.kills import await_leader
from tests.controlplane.pool import GPU, Pool, pod, refers
from tests.controlplane.test_older_crds import readiness
from tests.controlplane.test_shares import MEMORY_LABEL, container, sharer
from tests.faults.checker import State, never, unfinished, unproven

RESTART_SECONDS = 90.0
OTHERS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "deviceshare-scheduler")
"""Kubernetes' own components are restarted with etcd, as its documentation says; deviceshare isn't."""


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    """A cluster of its own."""
    with running(Options(nodes=0, devices=4)) as started:
        yield started


def save(sandbox: Sandbox) -> None:
    """As a power cut would leave the disk, which etcd comes back from."""
    os.kill(pid := sandbox.pid("etcd"), signal.SIGSTOP)
    shutil.copytree(sandbox.layout.data / "etcd", sandbox.layout.data / "etcd.saved")
    os.kill(pid, signal.SIGCONT)


def restore(sandbox: Sandbox) -> None:
    data = sandbox.layout.data
    (data / "etcd").rename(data / "etcd.newer")
    (data / "etcd.saved").rename(data / "etcd")
    for name in ("etcd", *OTHERS):
        os.kill(sandbox.pid(name), signal.SIGKILL)


def seen(pool: Pool) -> State:
    groups, ledgers = ({each["metadata"]["name"]: each for each in pool.get(kind)} for kind in ("sdg", "ndev"))
    pods = {f"{each['metadata']['namespace']}/{each['metadata']['name']}": each for each in pool.get("pods")}
    return State(groups, pods, ledgers)


def test_a_restored_snapshot_of_etcd_is_what_counts(sandbox: Sandbox) -> None:
    """What was bound and released since is as if it had never been; nobody restarts deviceshare."""
    pool = Pool(sandbox, "restored")
    node, first = pool.node(4, **MEMORY_LABEL), pool.group("first")
    pool.apply(pod("one", first), sharer(pool, "part", container(mem=3)))
    pool.running("one", "part")
    pool.eventually(lambda: pool.status(first).get("podCount"), lambda count: count == 1)
    before, process = pool.get("ndev", node)["spec"]["claims"], sandbox.pid("deviceshare")
    save(sandbox)
    pool.kubectl("delete", "pod", "part", "-n", pool.name)
    pool.eventually(lambda: len(pool.get("ndev", node)["spec"]["claims"]), lambda count: count == 1)
    second = pool.group("second")
    pool.apply(pod("two", second))
    pool.running("two")
    pool.eventually(lambda: pool.status(second).get("podCount"), lambda count: count == 1)
    assert pool.status(second)["selectedDevices"] == {GPU: "2,3"}

    restore(sandbox)
    pool.eventually(lambda: sandbox.kubectl("get", "sdg", "-o", "name").stdout, refers("first"), RESTART_SECONDS)
    pool.eventually(lambda: readiness(pool), refers("readyz check passed"), RESTART_SECONDS)
    await_leader(pool)
    log = sandbox.layout.logs / "deviceshare.log"  # Its watches are opened again a moment after it is ready.
    pool.eventually(log.read_text, refers("API server's history went back"), RESTART_SECONDS)
    pool.eventually(log.read_text, refers("Ended the term as the leader"), RESTART_SECONDS)
    await_leader(pool)
    assert json.loads(sandbox.kubectl("get", "ndev", node, "-o", "json").stdout)["spec"]["claims"] == before

    third = pool.group("third", 1)
    pool.apply(pod("three", third))
    pool.eventually(lambda: pool.status(third).get("selectedDevices"), bool, RESTART_SECONDS)
    assert pool.status(third)["selectedDevices"] == {GPU: "3"}, "part is there again, and has 2"
    pool.running("three")
    pool.eventually(lambda: unfinished(seen(pool)), lambda texts: not texts)
    assert [*never(state := seen(pool)), *unproven(state)] == []
    assert sandbox.pid("deviceshare") == process
