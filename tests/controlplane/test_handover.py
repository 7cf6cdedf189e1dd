"""Devices are handed over in the words of their node, and nobody but deviceshare writes these.

The nodes are simulated: where it matters a real agent reads CDI specifications, elsewhere the test says what it would.
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from deviceshare.domain import contract
from deviceshare.domain.admission.settings import WEBHOOKS
from deviceshare.domain.objects.hardware import Hardware, Part
from deviceshare.kube.api import Api
from deviceshare.kube.connection import connect
from deviceshare.loops.kinds import NODE_DEVICES
from deviceshare_sandbox import Sandbox
from deviceshare_sandbox.nvml.library import build
from tests.controlplane.agents import NodeAgent
from tests.controlplane.pool import GPU, VISIBLE, Pool, pod
from tests.controlplane.test_rebind import deviceshare

KIND = "k8s.device-plugin.nvidia.com/gpu"
ANNOTATION = "nvidia.cdi.k8s.io/pod"


def report(pool: Pool, node: str, *broken: int) -> None:
    """What the agent of a node says whose runtime injects devices by CDI."""
    parts = [Part(GPU, n, f"GPU-{n}", unhealthy="Xid 79" if n in broken else "") for n in range(4)]
    hardware = Hardware(devices=parts, runtime="cdi", cdi_kinds=[KIND])
    body = {"status": {"hardware": msgspec.to_builtins(hardware)}}

    async def apply() -> None:
        async with connect(str(pool.sandbox.kubeconfig)) as connection:
            await Api(connection).apply(NODE_DEVICES, node, body, manager=contract.AGENT, subresource="status")

    asyncio.run(apply())


def words(pool: Pool, node: str) -> str:
    """In which the ledger says that NVIDIA's devices are handed over."""
    return str(pool.get("ndev", node)["status"].get("handover", {}).get("nvidia", ""))


def told(pool: Pool, name: str) -> tuple[str | None, str]:
    """The pod's annotation for NVIDIA's NRI plugin, and what the variable of its container says."""
    [found] = pool.running(name)
    [environment] = pool.eventually(lambda: pool.environments([pool.get("pod", name)]))
    return found["metadata"]["annotations"].get(ANNOTATION), environment[VISIBLE]


@pytest.mark.parametrize(
    ("style", "decided", "names"),
    [
        ("index", "index", "0,1"),
        ("uuid", "uuid", "GPU-0,GPU-1"),
        ("cdi", KIND, f"{KIND}=GPU-0,{KIND}=GPU-1"),
        ("auto", KIND, f"{KIND}=GPU-0,{KIND}=GPU-1"),
    ],
)
def test_a_pod_is_bound_in_the_words_of_its_node(pool: Pool, style: str, decided: str, names: str) -> None:
    """The Binding brings the variable and the annotation; the label of the node decides, or what its agent saw."""
    node = pool.node()
    report(pool, node)
    pool.kubectl("label", "node", node, f"{contract.HANDOVER_LABEL}={style}")
    pool.eventually(lambda: words(pool, node), lambda said: said == decided)
    pool.apply(pod("one", pool.group()))
    assert told(pool, "one") == (names if decided == KIND else None, names)


def test_after_a_rebind_by_cdi_only_a_recreated_pod_sees_other_devices(pool: Pool) -> None:
    """A container that restarts gets what its sandbox was made with, so that stays reserved until the pod has ended."""
    node, group = pool.node(), pool.group()
    report(pool, node)
    pool.eventually(lambda: words(pool, node), lambda said: said == KIND)
    pool.apply(pod("old", group))
    before = told(pool, "old")
    pool.eventually(lambda: pool.status(group).get("allocatedPods"))
    report(pool, node, 1)
    said = deviceshare(pool, "rebind", group)
    assert (said.returncode, "Recreate them" in said.stdout) == (0, True), said
    pool.eventually(
        lambda: pool.condition(group, "Healthy").get("reason"), lambda reason: reason == "PodsUsePreviousDevices"
    )
    pool.apply(pod("new", group))
    assert told(pool, "new")[0] == f"{KIND}=GPU-0,{KIND}=GPU-2"
    assert told(pool, "old") == before
    assert [each["index"] for each in _former(pool, node)] == [1]
    pool.kubectl("delete", "pod", "old", "-n", pool.name)
    pool.eventually(lambda: _former(pool, node) == [], seconds=90)  # binds are waited out: 28 s before 1.21
    pool.eventually(lambda: pool.condition(group, "Healthy").get("reason"), lambda reason: reason == "AsClaimed")


def _former(pool: Pool, node: str) -> list[dict[str, int]]:
    [claim] = pool.get("ndev", node)["spec"]["claims"].values()
    found: list[dict[str, int]] = claim.get("former", [])
    return found


def test_nobody_asks_nvidias_plugin_for_devices_past_deviceshare(pool: Pool) -> None:
    """What a pod of a group says to it is stripped at creation, and can't be changed afterwards.

    Webhooks warn of it; policies can't.
    """
    pool.node()
    body = pod("one", pool.group())
    keys = ["nvidia.cdi.k8s.io", ANNOTATION, "nvidia.cdi.k8s.io/container.main"]
    body["metadata"]["annotations"] |= dict.fromkeys(keys, "management.nvidia.com/gpu=all")
    said = pool.apply(body)
    [found] = pool.running("one")
    for key in keys:
        assert (f"metadata.annotations[{key}] is removed" in said) == (pool.sandbox.plan.admission == WEBHOOKS)
        assert key not in found["metadata"]["annotations"]
        refusal = pool.kubectl("annotate", "pod", "one", "-n", pool.name, f"{key}=a/b=c", fails=True)
        assert f"metadata.annotations[{key}] is written by deviceshare only" in refusal
    plain = pod("plain", scheduler="default-scheduler")
    plain["metadata"]["annotations"] = dict.fromkeys(keys, "a/b=c")
    assert "removed" not in pool.apply(plain)


@pytest.fixture
def agent(sandbox: Sandbox, pool: Pool, tmp_path: Path) -> Iterator[NodeAgent]:
    """A real agent of the pool's first node, which sees four GPUs and was given them by CDI."""
    for name in ("agent", "cdi", "library"):
        (tmp_path / name).mkdir()
    library = build(tmp_path / "library")
    flags = ("--cdi-specs", str(tmp_path / "cdi"), "--visible-devices", "void")
    node = pool.node()
    agent = NodeAgent(sandbox, node, library, tmp_path / "agent", *flags)
    uuids = agent.script.gpus(4)
    management = {"kind": "management.nvidia.com/gpu", "devices": [{"name": "all"}]}
    (tmp_path / "cdi/management.json").write_text(json.dumps(management))
    (tmp_path / "uuids").write_text("\n".join(uuids))
    agent.start()
    yield agent
    agent.stop()


def test_a_node_offers_nothing_until_its_device_plugin_has_written_a_specification(
    agent: NodeAgent, pool: Pool, tmp_path: Path
) -> None:
    """With the reason and the cure where people look; then its pods are told in the words of that specification."""
    node = f"{pool.name}-node-1"
    pool.eventually(lambda: words(pool, node), lambda said: said == "none")
    pool.apply(pod("one", pool.group()))
    pool.eventually(lambda: pool.reason("one"), lambda said: "no CDI specification on the node names" in said)
    uuids = (tmp_path / "uuids").read_text().split()
    specification = {"kind": KIND, "devices": [{"name": uuid} for uuid in uuids]}
    (tmp_path / "cdi/k8s.device-plugin.nvidia.com-gpu.json").write_text(json.dumps(specification))
    names = ",".join(f"{KIND}={uuid}" for uuid in uuids[:2])
    pool.eventually(lambda: pool.placed("one"), seconds=90)
    assert told(pool, "one") == (names, names)
    assert agent.said("Read CDI specifications")
