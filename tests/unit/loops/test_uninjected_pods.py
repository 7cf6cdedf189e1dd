"""Pods created while admission was away: deleted for their controllers, as long as that helps, and never in bulk."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from msgspec.structs import replace

from deviceshare.doctor import installation
from deviceshare.domain import contract
from deviceshare.domain.admission.pod_guard import PodGuard
from deviceshare.domain.contract import JOB_INDEX_FAILURES
from deviceshare.domain.objects.groups import LabelRequirement, LabelSelector
from deviceshare.domain.objects.object_decoder import ObjectMeta
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import DIALECTS
from deviceshare.loops.kinds import JOBS, NAMESPACES, PODS
from deviceshare.loops.leader.uninjected_pods import (
    APART_SECONDS,
    GRACE_SECONDS,
    MOST_ROUNDS,
    REASON,
    TRIAL_SECONDS,
    UNPROVEN,
    uninjected,
)
from deviceshare.loops.ports import ApiError, Conflict, Forbidden
from tests.unit.doctor.installations import deployed
from tests.unit.domain.objects import INJECTED, a_pod, a_share_pod
from tests.unit.loops.live import World, soon
from tests.unit.loops.virtual_time import in_virtual_time, now

_SYSTEMS = {resource: each.system for resource, each in DIALECTS.items() if each.system}


class Owner:
    """A controller that recreates what is deleted of it, through an admission that works or doesn't."""

    def __init__(
        self,
        world: World,
        name: str,
        *,
        kind: str = "ReplicaSet",
        group: str = "batch",
        works: bool = False,
        namespace: str = "ns",
    ) -> None:
        self.world = world
        self.name = name
        self.namespace = namespace
        self.kind = kind
        self.api = f"{group}/v1"
        self.works = works
        self.made = 0
        self.times: list[float] = []

    def make(self) -> str:
        """One more pod."""
        self.made += 1
        name = f"{self.name}-{self.made}"
        reference = {"apiVersion": self.api, "kind": self.kind, "name": self.name, "uid": self.name}
        named = {contract.GROUP: "team"}
        meta: dict[str, Any] = {"name": name, "annotations": named, "labels": {}}
        meta["ownerReferences"] = [{**reference, "controller": True}]
        spec: dict[str, Any] = {"containers": [{"name": "main"}]}
        if self.works:
            meta["labels"], spec["containers"][0]["env"] = named, INJECTED
        self.world.cluster.put(PODS, {"metadata": meta, "spec": spec}, self.namespace)
        return name

    async def recreate(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(3)
            while self.alive() < 1:
                self.times.append(now())
                self.make()

    def alive(self) -> int:
        pods = self.world.cluster.all(PODS)
        return sum(pod.metadata.name.startswith(f"{self.name}-") for pod in pods)


@asynccontextmanager
async def owners(*names: str, works: bool = False) -> AsyncIterator[list[Owner]]:
    """A leader, and controllers of one pod each, which was created while admission was away."""
    world = World(uninjected=True)
    world.node("n1")
    world.group("team")
    async with world.leading():
        found = [Owner(world, name) for name in names]
        for owner in found:
            owner.make()
            owner.works = works
        tasks = [asyncio.create_task(owner.recreate(), name=owner.name) for owner in found]
        yield found
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@in_virtual_time
async def test_a_pod_that_slipped_past_admission_is_recreated_injected() -> None:
    """Its controller does; the Events of what remains say why, and the rights of the chart's role suffice."""
    async with owners("rs", works=True) as [owner]:
        world = owner.world
        await soon(lambda: owner.made == 2, 10)
        await asyncio.sleep(100)
        assert owner.made == 2
        assert world.read_pod("rs-2").injected
        assert world.recreated == 1
        for name in ("rs-1", "rs", "team"):
            assert REASON in world.recorder.reasons(name)
        [said] = {text for _, name, _, text in world.recorder.events if name == "rs"}
        assert said.startswith("deleted pod rs-1, so that ReplicaSet rs recreates it: deviceshare's admission was not")
        granted = {(each.verb, each.resource) for each in installation.needed(deployed("--roles=controller"))}
        assert {(verb, plural) for verb, plural, _ in world.cluster.requests} <= granted


@in_virtual_time
async def test_pods_of_a_controller_whose_admission_stays_away_are_left_after_some_rounds() -> None:
    """They are recreated a few times, ever more rarely; then the last one's Event says that nobody goes on."""
    async with owners("rs") as [owner]:
        world = owner.world
        await asyncio.sleep(sum(APART_SECONDS) + 200)
        assert world.recreated == MOST_ROUNDS
        gaps = [later - earlier for earlier, later in zip(owner.times, owner.times[1:], strict=False)]
        assert gaps == sorted(gaps)
        last = f"rs-{owner.made}"
        [said] = {text for _, name, why, text in world.recorder.events if (name, why) == (last, REASON)}
        assert f"{MOST_ROUNDS} times deviceshare deleted such pods for ReplicaSet rs" in said


@in_virtual_time
async def test_an_admission_that_is_away_for_all_costs_few_pods() -> None:
    """However many controllers there are: after some deletions, one pod at a time is a trial."""
    async with owners(*(f"rs{n:02}" for n in range(12))) as found:
        world = found[0].world
        await asyncio.sleep(3 * TRIAL_SECONDS)
        assert UNPROVEN < world.recreated <= UNPROVEN + 3
        for owner in found:
            owner.works = True
        await soon(lambda: sum(pod.injected for pod in world.cluster.all(PODS)) == len(found), 500)


@in_virtual_time
async def test_no_namespace_holds_up_the_pods_of_another() -> None:
    """Whoever may annotate pods can make any number of them look uninjected, all the time."""
    world = World(uninjected=True)
    world.node("n1")
    async with world.leading():
        crowd = [Owner(world, f"crowd{n:02}", namespace="crowded") for n in range(40)]
        for owner in crowd:
            owner.make()
        tasks = [asyncio.create_task(owner.recreate(), name=owner.name) for owner in crowd]
        for seconds in (2, 60, TRIAL_SECONDS + 1):
            await asyncio.sleep(seconds)
            one = Owner(world, f"one-{seconds:g}")
            one.make()
            await asyncio.sleep(GRACE_SECONDS + 3)
            assert one.alive() == 0
            assert UNPROVEN <= world.recreated < UNPROVEN + 6
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@in_virtual_time
async def test_pods_of_namespaces_that_admission_does_not_select_are_left() -> None:
    """They are as uninjected, and rightly so; and while a namespace isn't known nobody knows. Labels may change."""
    world = World(uninjected=True, namespace_selector=LabelSelector({}, [LabelRequirement("gpu", "Exists")]))
    world.node("n1")
    async with world.leading():
        for name, labels in {"chosen": {"gpu": ""}, "other": {"a": "b"}}.items():
            world.cluster.put(NAMESPACES, {"metadata": {"name": name, "labels": labels}})
        await asyncio.sleep(1)
        chosen, other, unknown = (Owner(world, name, namespace=name) for name in ("chosen", "other", "unknown"))
        for owner in (chosen, other, unknown):
            owner.make()
        await soon(lambda: not chosen.alive(), 10)
        await asyncio.sleep(60)
        assert other.alive()
        assert unknown.alive()
        world.cluster.edit(NAMESPACES, "other", {"metadata": {"labels": {"gpu": "yes"}}})
        world.cluster.put(NAMESPACES, {"metadata": {"name": "unknown", "labels": {"gpu": "yes"}}})
        await soon(lambda: not (other.alive() or unknown.alive()), 10)


@in_virtual_time
async def test_pods_that_nobody_would_recreate_are_left() -> None:
    """Without a controller; or the Job would fail with its pod, which deviceshare may have no right to see."""
    world = World(uninjected=True)
    world.node("n1")
    async with world.leading():
        alone = Owner(world, "alone")
        name = alone.make()
        world.cluster.edit(PODS, name, {"metadata": {"ownerReferences": None}}, "ns")
        world.cluster.put(JOBS, {"metadata": {"name": "once"}, "spec": {"backoffLimit": 0}}, "ns")
        world.cluster.put(JOBS, {"metadata": {"name": "often"}, "spec": {"backoffLimit": 6}}, "ns")
        world.cluster.put(JOBS, {"metadata": {"name": "hidden"}, "spec": {"backoffLimit": 6}}, "ns")
        world.cluster.fail = lambda verb, plural, name: Forbidden("no") if name == "hidden" else None
        for job in ("once", "often", "hidden"):
            Owner(world, job, kind="Job").make()
        same_name = Owner(world, "once", kind="Job", group="batch.volcano.sh")
        same_name.made = 1
        same_name.make()
        Owner(world, "flow", kind="Workflow").make()
        Owner(world, "driver", kind="SparkApplication").make()
        await asyncio.sleep(60)
        left = {pod.metadata.name for pod in world.cluster.all(PODS)}
        assert left == {"alone-1", "once-1", "hidden-1", "flow-1", "driver-1"}
        said = {name: text for _, name, why, text in world.recorder.events if why == REASON}
        assert said["once-1"].endswith(
            "Job once would fail if the pod were deleted (backoffLimit 0, failed 0): recreate the Job"
        )
        assert "Workflow flow may fail if the pod is deleted: run it again" in said["flow-1"]
        assert "deviceshare may not read Job hidden" in said["hidden-1"]


@in_virtual_time
async def test_a_job_loses_no_more_pods_than_it_may() -> None:
    """Each deleted pod counts as a failed one: in the Job's status, but later, and of an index in the next pod."""
    world = World(uninjected=True)
    world.node("n1")
    async with world.leading():
        uncounted = {"failed": ["a-uid"]}
        jobs: dict[str, dict[str, Any]] = {
            "wide": {"spec": {"backoffLimit": 1}},
            "failing": {"spec": {"backoffLimit": 6}, "status": {"failed": 6}},
            "late": {"spec": {"backoffLimit": 6}, "status": {"failed": 5, "uncountedTerminatedPods": uncounted}},
            "indexed": {"spec": {"backoffLimit": 100, "backoffLimitPerIndex": 1}},
        }
        for name, job in jobs.items():
            world.cluster.put(JOBS, {"metadata": {"name": name}, **job}, "ns")
        wide = Owner(world, "wide", kind="Job")
        for _ in range(3):
            wide.make()
        for name in ("failing", "late", "indexed"):
            Owner(world, name, kind="Job").make()
        counted = {"metadata": {"annotations": {JOB_INDEX_FAILURES: "1"}}}
        world.cluster.edit(PODS, "indexed-1", counted, "ns")
        await soon(lambda: wide.alive() == 2, 20)
        Owner(world, "rs", works=True).make()  # admission is there
        await asyncio.sleep(60)
        assert wide.alive() == 2
        left = {pod.metadata.name for pod in world.cluster.all(PODS)}
        assert {"failing-1", "late-1", "indexed-1"} <= left
        said = {name: text for _, name, why, text in world.recorder.events if why == REASON}
        [kept, _] = [name for name in left if name.startswith("wide-")]
        assert "Job wide would fail if the pod were deleted (backoffLimit 1, failed 1)" in said[kept]
        assert "(backoffLimit 6, failed 6)" in said["late-1"]
        assert "(backoffLimitPerIndex 1, failed 1)" in said["indexed-1"]


@in_virtual_time
async def test_a_pod_that_changed_meanwhile_is_looked_at_again() -> None:
    """The deletion names the pod's version: one that was just bound, by whomever, isn't deleted by what was."""
    refused: list[str] = []

    def changed(verb: str, plural: str, name: str) -> ApiError | None:
        if (verb, plural) != ("delete", "pods") or refused:
            return None
        refused.append(name)
        return Conflict("it changed")

    async with owners("rs", works=True) as [owner]:
        owner.world.cluster.fail = changed
        await soon(lambda: bool(refused), 10)
        assert owner.alive() == 1
        assert owner.world.recreated == 0
        owner.world.cluster.edit(PODS, "rs-1", {"metadata": {"labels": {"a": "b"}}}, "ns")
        await soon(lambda: owner.made == 2, 10)


def test_which_pods_should_have_been_injected() -> None:
    """Not those of other systems that aren't served, nor of namespaces that admission leaves out."""
    judge = partial(uninjected, frozenset({"gpushare"}))
    wants = a_pod(injected=False)
    assert judge(wants)
    assert not judge(Pod(metadata=ObjectMeta(name="plain")))
    assert not judge(PodGuard(["ns"])(wants))
    assert not judge(replace(wants, spec=replace(wants.spec, node_name="n1"))), "it may run, and was annotated since"
    asks = {system: a_share_pod(more={"other": {resource: "1"}}) for resource, system in _SYSTEMS.items()}
    unlabelled = {name: replace(pod, metadata=ObjectMeta(name="p")) for name, pod in asks.items()}
    assert {name: judge(pod) for name, pod in unlabelled.items()} == {"gpushare": True, "metagpu": False}
