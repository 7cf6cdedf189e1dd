"""Admission by policies while every replica of deviceshare is stopped: nobody is held up, and nothing is given away."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from deviceshare.domain.admission.settings import POLICIES
from deviceshare.kube.api import Api
from deviceshare.kube.connection import connect
from deviceshare_sandbox import ENV, Options, Sandbox
from tests.controlplane.bare_cluster import bare_cluster
from tests.controlplane.pool import GPU, VISIBLE, Json, Pool, deployment, pod
from tests.controlplane.replicas import Fleet, Times, replicated
from tests.kubernetes_versions import since

pytestmark = since(36)


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Two nodes, both schedulers and the policies; the tests start and stop deviceshare."""
    options = Options(nodes=2, devices=4)
    with bare_cluster(tmp_path_factory.mktemp("alone"), options, POLICIES) as started:
        yield started


@pytest.fixture
async def api(sandbox: Sandbox) -> AsyncIterator[Api]:
    async with connect(str(sandbox.kubeconfig)) as connection:
        yield Api(connection, timeout=10)


def a_group(name: str, **more: str) -> Json:
    """Of two devices, on any node."""
    meta, spec = {"name": name}, {"resources": {GPU: 2}, **more}
    return {"apiVersion": "deviceshare.io/v1alpha1", "kind": "SharedDeviceGroup", "metadata": meta, "spec": spec}


def plain(name: str) -> Json:
    """A pod of somebody else."""
    return pod(name, scheduler="default-scheduler")


def seen(pool: Pool) -> dict[str, Json]:
    """All pods of the test, by name."""
    return {each["metadata"]["name"]: each for each in pool.get("pods")}


def running_of(pool: Pool, prefix: str) -> list[Json]:
    """The pods that run and whose name begins so."""
    return [
        each for name, each in seen(pool).items() if name.startswith(prefix) and each["status"]["phase"] == "Running"
    ]


def visible(each: Json) -> str | None:
    """What the pod's container was started with."""
    recorded = json.loads(each["metadata"]["annotations"].get(ENV, "{}"))
    env: dict[str, Any] = recorded.get("main", {})
    return env.get(VISIBLE)


async def stop(fleet: Fleet) -> None:
    """Ends every replica."""
    for replica in fleet.replicas:
        replica.signal(signal.SIGTERM)
    for replica in fleet.replicas:
        assert await replica.ended() == 0


def before(pool: Pool) -> None:
    """A group in use, which may not be deleted meanwhile: by the default it would go when deviceshare is back."""
    pool.apply(a_group("used", deletionPolicy="Refuse"), pod("user", "used"))
    pool.eventually(lambda: pool.status("used").get("allocatedPods"), bool)


def while_all_are_stopped(pool: Pool) -> None:
    """Everybody creates what they like; what is given stays as it was."""
    pool.apply(plain("theirs"), deployment("theirs", "", 2, scheduler="default-scheduler"))
    pool.apply(a_group("new"), pod("ours", "new"), deployment("ours", "new", 2))
    forged = {"name": VISIBLE, "value": "all"}
    pool.apply(pod("hostile", "used", containers=[{"name": "main", "image": "busybox", "env": [forged]}]))
    pool.eventually(lambda: len(running_of(pool, "theirs")), lambda count: count == 3)
    pool.eventually(lambda: len([name for name in seen(pool) if name.startswith("ours")]), lambda count: count == 3)

    # kube-scheduler has tried, and could not ask.
    pool.eventually(lambda: pool.reason("ours") and pool.reason("hostile"), bool)
    waiting = [each for name, each in seen(pool).items() if name.startswith(("ours", "hostile"))]
    assert len(waiting) == 4
    assert not [each for each in waiting if each["spec"].get("nodeName")]
    assert {each["metadata"]["labels"]["deviceshare.io/group"] for each in waiting} == {"new", "used"}
    assert "all" not in json.dumps([each["spec"]["containers"] for each in waiting])

    annotate = ("annotate", "pod", "user", "-n", pool.name, "--overwrite")
    for identity in ("", "alice"):
        said = pool.kubectl(*annotate, "deviceshare.io/nvidia-visible-devices=0,1,2,3", identity=identity, fails=True)
        assert "is written by deviceshare only" in said
    assert "used by 1 pod" in pool.kubectl("delete", "sdg", "used", fails=True)
    bad = pod("bad", "new", nodeName="node-1")
    assert "spec.nodeName: a pod" in pool.apply(bad, fails=True)


def when_it_is_back(pool: Pool) -> None:
    """Those of a group all have the group's devices, and no others."""
    pool.eventually(lambda: len(running_of(pool, "ours")), lambda count: count == 3, 90)
    pool.eventually(lambda: len(running_of(pool, "hostile")), bool, 90)
    pods = pool.eventually(
        lambda: {name: visible(each) for name, each in seen(pool).items() if not name.startswith("theirs")},
        lambda found: all(found.values()),
    )
    for prefix, group in (("ours", "new"), ("user", "used"), ("hostile", "used")):
        devices = pool.status(group)["selectedDevices"][GPU]
        assert {value for name, value in pods.items() if name.startswith(prefix)} == {devices}
    held = [pool.status(group)["nodeName"] + pool.status(group)["selectedDevices"][GPU] for group in ("new", "used")]
    assert len(set(held)) == 2


async def test_with_every_replica_stopped_everything_can_be_created_and_waits(sandbox: Sandbox, api: Api) -> None:
    """Pods and Deployments of others run, those of groups wait, and are bound rightly when deviceshare is back."""
    pool = Pool(sandbox, "alone")
    try:
        async with replicated(sandbox, api, Times(3, 2, 0.5), count=2) as fleet:
            await asyncio.to_thread(before, pool)
            await stop(fleet)
            await asyncio.to_thread(while_all_are_stopped, pool)
            for replica in fleet.replicas:
                replica.start()
            await asyncio.to_thread(when_it_is_back, pool)
            await asyncio.to_thread(pool.kubectl, "delete", "pods", "--all", "-n", pool.name, "--wait=false")
    finally:
        await asyncio.to_thread(sandbox.kubectl, "delete", "namespace", pool.name, "--wait=false")
