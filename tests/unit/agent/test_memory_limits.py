"""Limits of device memory: each container with a share has its own, whatever happens to the agent in between."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deviceshare.agent import memory_limits
from deviceshare.agent.memory_limits import MemoryLimits, is_intercepted
from deviceshare.domain.objects.hardware import BY_AGENT, DMEM, HOOK, INTERCEPT, NO_LIMITS, LimitReport
from deviceshare_sandbox.nvml import Script, build, load
from tests.unit.agent.limited_node import NOTHING, AmdNode, LimitedNode, NvidiaNode, container_id, pod_uid
from tests.unit.amd.machine import MIB
from tests.unit.domain.objects import GPU
from tests.unit.kube.scripted import until


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(params=["nvidia", "amd"])
def shop(
    request: pytest.FixtureRequest, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LimitedNode]:
    """One of each vendor's, of which agents see the same."""
    for name, seconds in {"LOOK": 0.02, "AUDIT": 0.1, "PROBE": 0.1, "SEARCH": 0.1, "GATHER": 0.0}.items():
        monkeypatch.setattr(memory_limits, f"{name}_SECONDS", seconds)
    if request.param == "nvidia":
        load(library)
        script = Script(tmp_path / "nvml", driver="615.71")
        for name, value in script.environment(library).items():
            monkeypatch.setenv(name, value)
        yield NvidiaNode(script, tmp_path)
    else:
        yield AmdNode(tmp_path)
    for thread in threading.enumerate():
        if thread.name == "memory-limits":
            thread.join(60)
            assert not thread.is_alive()


on_nvidia = pytest.mark.parametrize("shop", ["nvidia"], indirect=True)
on_amd = pytest.mark.parametrize("shop", ["amd"], indirect=True)


@pytest.mark.parametrize("systemd", [False, True])
async def test_each_container_has_its_limit_on_each_of_its_devices(shop: LimitedNode, systemd: bool) -> None:
    shop.share(1, {"main": {0: 8192, 1: 4096}})
    shop.share(2, {"main": {0: 1024}})
    async with shop.agent():
        one, two = shop.start(1, 11, systemd=systemd), shop.start(2, 22, systemd=systemd)
        await until(lambda: shop.of(one) == (8192, 8192) and shop.of(one, 1) == (4096, 4096))
        await until(lambda: shop.of(two) == (1024, 1024))
        await until(lambda: len(shop.delays) == 3)
        assert (shop.of(two, 1), shop.events, shop.repairs) == ((0, NOTHING[1] // MIB), [], 0)
    assert max(shop.delays) < 30


async def test_until_the_kubelet_says_which_container_it_is_it_has_the_least_of_its_pod(shop: LimitedNode) -> None:
    """Of which the kernel keeps nothing on AMD's nodes: a sandbox uses none of it, and others of its pod would."""
    shop.share(1, {"large": {0: 8192}, "small": {0: 1024}})
    kept = 0 if shop.word == DMEM else 1024
    async with shop.agent():
        large, small, sandbox = (shop.start(1, number, "") for number in (1, 2, 3))
        await until(lambda: shop.of(large) == shop.of(small) == shop.of(sandbox) == (kept, 1024))
        shop.describe(1, shop.claims[pod_uid(1)]["shares"], {"large": 1, "small": 2})
        await until(lambda: shop.of(large) == (8192, 8192))
        await until(lambda: shop.of(small) == (1024, 1024))
        assert shop.of(sandbox) == (kept, 1024)
        await until(lambda: shop.word != DMEM or shop.of(large.parent)[0] == 8192 + 1024)


async def test_whole_devices_and_strangers_have_no_limit(shop: LimitedNode) -> None:
    shop.share(1, {"main": {0: 81920}})
    shop.share(2, {"main": {1: 100}})
    async with shop.agent():
        whole, stranger, share = shop.start(1, 1), shop.start(3, 3), shop.start(2, 2)
        await until(lambda: shop.of(share, 1) == (100, 100))
        assert shop.of(whole) == shop.of(stranger) == (0, NOTHING[1] // MIB)


async def test_a_limit_that_somebody_took_away_is_set_again(shop: LimitedNode) -> None:
    shop.share(1, {"main": {0: 8192}})
    async with shop.agent():
        group = shop.start(1, 1)
        await until(lambda: shop.of(group) == (8192, 8192))
        shop.set(group, 0, 81920)
        await until(lambda: shop.of(group) == (8192, 8192))
        await until(lambda: bool(shop.events))
    [(reason, text)] = shop.events
    assert (reason, shop.repairs) == ("MemoryLimitMissing", 1)
    assert "container main was without its limit of 8 GiB" in text


async def test_an_agent_is_ready_once_all_that_started_without_it_is_limited(shop: LimitedNode) -> None:
    shop.share(1, {"main": {0: 8192}})
    group = shop.start(1, 1)
    async with shop.agent(ready=False) as agent:
        assert agent.fault == "the limits of device memory have not been audited yet"
        await until(lambda: not agent.fault)
        assert (shop.of(group), shop.repairs) == ((8192, 8192), 1)
    async with shop.agent() as agent:
        await until(lambda: not agent.fault)
        assert (shop.repairs, agent.outcome.mode) == (1, shop.word)  # It was there already.


@on_nvidia
async def test_what_the_hook_did_is_left_and_what_it_did_not_is_repaired(shop: NvidiaNode) -> None:
    shop.mode, shop.hook = HOOK, True
    shop.share(1, {"main": {0: 8192}})
    shop.share(2, {"main": {0: 8192}})
    async with shop.agent() as agent:
        await until(lambda: agent.outcome.complete)
        done = shop.root / "kubelet/kubepods/burstable" / f"pod{pod_uid(1)}" / container_id(1)
        done.parent.mkdir(parents=True)
        draft = shop.root / "draft"
        draft.mkdir()
        shop.set(draft, 8192, 8192)
        draft.rename(done)
        missed = shop.start(2, 2)
        await until(lambda: shop.of(missed) == (8192, 8192) and shop.repairs > 0)
        assert (agent.outcome.mode, shop.repairs) == (HOOK, 1)


@on_nvidia
@pytest.mark.parametrize("mode", [BY_AGENT, HOOK, INTERCEPT])
async def test_where_the_driver_cannot_programs_are_intercepted_if_the_library_is_loaded(
    shop: NvidiaNode, mode: str
) -> None:
    """With the reason why that is all, and the containers that were bound before the library was there."""
    shop.script.error("nvmlDeviceGetMemoryLimits_v1", 13)
    shop.share(1, {"main": {0: 8192}})
    shop.share(2, {"main": {0: 8192}}, **{"cuda-memory-limit.main": "8192m"})
    shop.mode, shop.intercepts = mode, True
    async with shop.agent() as agent:
        await until(lambda: agent.outcome.mode == INTERCEPT)
        assert agent.outcome.obstacle.startswith("HAMi-core alone keeps programs to their shares")
        assert ("shares.memoryLimits=agent" if mode == INTERCEPT else "install r615") in agent.outcome.obstacle
        await until(lambda: [(each.pod, each.container) for each in agent.outcome.reports] == [("ns/p1", "main")])
        assert "recreate the pod" in agent.outcome.reports[0].missing
        await asyncio.sleep(0.5)
        assert len(agent.outcome.reports) == 1
        shop.share(1, {"main": {0: 8192}}, **{"cuda-memory-limit.main": "8192m"})
        await until(lambda: not agent.outcome.reports)
        shares = [{"container": "main", "resource": GPU, "index": 7, "percent": 50}]
        shop.claims[pod_uid(3)] = {"pod": "ns/p3", "shares": shares}
        shop.publish()
        shop.describe(3, shares)
        await until(lambda: [each.pod for each in agent.outcome.reports] == ["ns/p3"])
        assert "memory of its device is unknown" in agent.outcome.reports[0].missing
    none = MemoryLimits(shop.own, shop.driver, mode=NO_LIMITS, intercepts=True)
    assert (none.outcome.mode, none.enabled) == ("", False)


def test_the_library_is_found_where_it_is_loaded_in_the_agent_itself(tmp_path: Path) -> None:
    """The same runtime gave the agent its devices."""
    assert not is_intercepted(tmp_path) and not is_intercepted(Path("/proc"))
    (tmp_path / "self").mkdir()
    (tmp_path / "self/maps").write_text("7f00 r-xp 00000000 08:01 1 /usr/local/vgpu/libvgpu.so\n")
    assert is_intercepted(tmp_path)


@on_nvidia
async def test_of_unequal_parts_the_hook_gives_the_largest_and_the_agent_each_its_own(shop: NvidiaNode) -> None:
    """Which is no repair."""
    shop.mode, shop.hook = HOOK, True
    shop.share(1, {"main": {0: 8192, 1: 4096}})
    group = shop.start(1, 1)
    for gpu in (0, 1):
        shop.set(group, 4096, 8192, gpu=gpu)
    async with shop.agent():
        await until(lambda: shop.of(group) == (8192, 8192) and shop.of(group, 1) == (4096, 4096))
    assert (shop.repairs, shop.events) == (0, [])


async def test_a_burst_is_a_hard_limit_above_the_share_and_never_above_the_device(shop: LimitedNode) -> None:
    shop.share(1, {"main": {0: 8192}}, gpu_mem_burst="16")
    shop.share(2, {"main": {1: 8192}}, gpu_mem_burst="4000")
    async with shop.agent():
        one, two = shop.start(1, 1), shop.start(2, 2)
        await until(lambda: shop.of(one) == (8192, 16384) and shop.of(two, 1) == (8192, 81920))


@on_nvidia
async def test_a_limit_the_driver_refuses_is_reported_and_retried(
    shop: NvidiaNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.share(1, {"main": {0: 8192}})
    shop.script.error("nvmlDeviceSetMemoryLimits_v1", 4)
    async with shop.agent() as agent:
        group = shop.start(1, 1)
        await until(lambda: [each.missing != "" for each in agent.outcome.reports] == [True])
        shop.script.gpus(2, memory_mib=81920)
        shop.script._lines = [line for line in shop.script._lines if line[0] != "error"]
        shop.script._write()
        await until(lambda: shop.of(group) == (8192, 8192) and not agent.outcome.reports)


@on_nvidia
@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda shop: (shop.root / "cgroup.controllers").unlink(), "version 1"),
        (lambda shop: setattr(shop, "split", True), "MIG"),
        (
            lambda shop: shop.script.error("nvmlDeviceGetMemoryLimits_v1", 13),
            "615.71 has no memory limits: install r615",
        ),
        (lambda shop: shop.script.error("nvmlDeviceGetMemoryLimits_v1", 3), "GPU 0 supports no memory limits"),
        (lambda shop: shop.script.error("nvmlInitWithFlags", 9), "kernel module isn't loaded"),
    ],
)
async def test_a_node_that_can_not_says_why(shop: NvidiaNode, spoil: Callable[[NvidiaNode], object], text: str) -> None:
    spoil(shop)
    async with shop.agent() as agent:
        await until(lambda: text in agent.outcome.obstacle)
        assert (agent.outcome.mode, agent.fault) == ("", "")


@on_amd
async def test_a_node_of_amds_says_why_it_can_not_and_can_as_soon_as_that_is_mended(shop: AmdNode) -> None:
    """NVIDIA's hook is nothing to it."""
    shop.mode, shop.hook = HOOK, True
    shop.kernel.refused.add("cgroup.subtree_control")
    async with shop.agent(ready=False) as agent:
        await until(lambda: "doesn't pass on dmem" in agent.outcome.obstacle)
        assert (agent.outcome.mode, agent.fault) == ("", "")
        shop.kernel.refused.clear()
        await until(lambda: (agent.outcome.mode, agent.outcome.complete) == (DMEM, True))


@on_amd
async def test_a_container_that_uses_more_than_its_limit_is_reported_until_it_has_it(shop: AmdNode) -> None:
    """The kernel takes no limit below what is in use: it started before its limit."""
    shop.share(1, {"main": {0: 8192}})
    group = shop.start(1, 1)
    shop.kernel.write(shop.root / "cgroup.subtree_control", "+dmem")
    for above in reversed(group.relative_to(shop.root).parents[:-1]):
        shop.kernel.write(shop.root / above / "cgroup.subtree_control", "+dmem")
    shop.set(group, 0, 81920, used=9000)
    async with shop.agent() as agent:
        await until(lambda: [each.missing != "" for each in agent.outcome.reports] == [True])
        shop.set(group, 0, 81920, used=8000)
        await until(lambda: shop.of(group) == (8192, 8192) and not agent.outcome.reports)


# Resizes.


async def test_a_share_that_became_a_whole_device_has_no_limit_any_more(shop: LimitedNode) -> None:
    shop.share(1, {"main": {0: 8192}})
    shares = shop.claims[pod_uid(1)]["shares"]
    async with shop.agent():
        group = shop.start(1, 1)
        await until(lambda: shop.of(group) == (8192, 8192))
        whole = shop.claims[pod_uid(1)]["shares"] = [{**shares[0], "memoryMib": 0, "percent": 100}]
        shop.publish()
        shop.describe(1, whole, {"main": 1})
        await until(lambda: shop.of(group) == (0, NOTHING[1] // MIB))
    assert shop.repairs == 0


async def test_a_limit_is_lowered_and_reported_before_the_claim_is(shop: LimitedNode) -> None:
    shop.share(1, {"main": {0: 8192}})
    shares = shop.claims[pod_uid(1)]["shares"]
    async with shop.agent():
        group = shop.start(1, 1)
        await until(lambda: shop.of(group) == (8192, 8192))
        shop.describe(1, shares, {"main": 1}, resize="main=4096Mi")
        await until(lambda: shop.of(group) == (4096, 4096))
        row = LimitReport("ns/p1", pod_uid(1), "main", shop.uuids[0], 4096)
        await until(lambda: shop.reported == [row])
        # The leader lowers the claim and the annotation; then nothing is left to report.
        shares = shop.claims[pod_uid(1)]["shares"] = [{**shares[0], "memoryMib": 4096}]
        shop.publish()
        shop.describe(1, shares, {"main": 1}, resize="main=4096Mi")
        await until(lambda: shop.reported == [])
        assert shop.of(group) == (4096, 4096)


async def test_a_part_of_what_was_a_whole_device_is_limited_before_the_claim_is(shop: LimitedNode) -> None:
    shop.share(1, {"main": {0: 81920}})
    shares = shop.claims[pod_uid(1)]["shares"]
    async with shop.agent():
        group = shop.start(1, 1)
        shop.describe(1, shares, {"main": 1}, resize="main=10%")
        await until(lambda: [each.limit_mib for each in shop.reported or []] == [8192])
        seen = set()
        for _ in range(20):
            seen.add(shop.of(group))
            await asyncio.sleep(0.01)
        assert seen == {(8192, 8192)}


async def test_what_is_in_use_is_not_taken(shop: LimitedNode) -> None:
    shop.share(1, {"main": {0: 8192}})
    shares = shop.claims[pod_uid(1)]["shares"]
    async with shop.agent():
        group = shop.start(1, 1)
        await until(lambda: shop.of(group) == (8192, 8192))
        shop.set(group, 8192, 8192, used=6000)
        shop.describe(1, shares, {"main": 1}, resize="main=4096Mi")
        await until(lambda: bool(shop.events))
        [(reason, text)] = shop.events
        assert reason == "ResizeRefused" and "uses 6000 MiB" in text and "4096 MiB asked for" in text
        await until(lambda: [(each.limit_mib, each.used_mib) for each in shop.reported or []] == [(0, 6000)])
        assert shop.of(group) == (8192, 8192)
        shop.set(group, 8192, 8192, used=4000)
        await until(lambda: shop.of(group) == (4096, 4096))


async def test_a_withdrawn_request_raises_the_limit_when_no_report_says_otherwise(shop: LimitedNode) -> None:
    """The leader lowers claims by the report: until a newer one is written, it may."""
    shop.share(1, {"main": {0: 8192}})
    shares = shop.claims[pod_uid(1)]["shares"]
    async with shop.agent() as agent:
        group = shop.start(1, 1)
        shop.describe(1, shares, {"main": 1}, resize="main=4096Mi")
        await until(lambda: [each.limit_mib for each in shop.reported or []] == [4096])
        shop.reported = None  # The API server is away.
        shop.describe(1, shares, {"main": 1})
        await until(lambda: not agent.outcome.reports)
        await asyncio.sleep(0.3)
        assert shop.of(group) == (4096, 4096)
        shop.reported = []
        shop.publish()
        await until(lambda: shop.of(group) == (8192, 8192))


async def test_a_report_under_way_may_still_say_that_the_limit_was_lowered(shop: LimitedNode) -> None:
    """No mirror shows it yet."""
    shop.share(1, {"main": {0: 8192}})
    shares = shop.claims[pod_uid(1)]["shares"]
    async with shop.agent() as agent:
        group = shop.start(1, 1)
        await until(lambda: shop.of(group) == (8192, 8192))
        shop.reported = None
        shop.describe(1, shares, {"main": 1}, resize="main=4096Mi")
        await until(lambda: shop.of(group) == (4096, 4096) and bool(agent.outcome.reports))
        shop.describe(1, shares, {"main": 1})
        await until(lambda: not agent.outcome.reports)
        await asyncio.sleep(0.3)
        assert shop.of(group) == (4096, 4096)
        shop.reported = []
        shop.publish()
        await until(lambda: shop.of(group) == (8192, 8192))


async def test_a_larger_claim_counts_once_the_pods_annotation_says_so_too(shop: LimitedNode) -> None:
    """A lost ledger is restored by the annotation."""
    shop.share(1, {"main": {0: 8192}})
    shares = shop.claims[pod_uid(1)]["shares"]
    async with shop.agent():
        group = shop.start(1, 1)
        await until(lambda: shop.of(group) == (8192, 8192))
        larger = shop.claims[pod_uid(1)]["shares"] = [{**shares[0], "memoryMib": 16384}]
        shop.publish()
        await asyncio.sleep(0.3)
        assert shop.of(group) == (8192, 8192)
        shop.describe(1, larger, {"main": 1})
        await until(lambda: shop.of(group) == (16384, 16384))
