"""Pods forged where the webhooks do not look: nothing goes by what they say, but what they hold counts."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from deviceshare.domain import contract
from deviceshare.domain.admission.pod_guard import PodGuard
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.kube.mirror import Cache
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, PODS
from deviceshare.loops.leader.controller import Controller
from deviceshare.loops.ports import TooLarge
from deviceshare.loops.protocol.bind import Refused
from deviceshare.loops.replica.binder import Binder
from deviceshare.loops.replica.feed import Feed
from deviceshare.loops.replica.guarded_cluster import GuardedCluster
from tests.unit.domain.objects import GPU, INJECTED
from tests.unit.loops.live import LiveCluster, MemoryMirror, World, soon
from tests.unit.loops.virtual_time import in_virtual_time

WHERE = "kube-system"


def forged(name: str = "forged", group: str = "never", **spec: Any) -> dict[str, Any]:
    """A pod on n1 that claims to have been given all four devices of a group."""
    named = {contract.GROUP: group}
    given = {contract.GROUP_UID: f"uid-of-{group}", contract.SELECTED_DEVICES: f'{{"{GPU}": "0,1,2,3"}}'}
    body = {"nodeName": "n1", "containers": [{"name": "main", "env": INJECTED}], **spec}
    return {"metadata": {"name": name, "labels": named, "annotations": {**named, **given}}, "spec": body}


class SeeingMirror(MemoryMirror):
    """As a mirror with `see`."""

    def set(self, key: str, new: Any) -> None:
        super().set(key, None if new is None else PodGuard()(new))


class GuardedCase(World):
    """A world whose controller sees its cluster and its pods through the guard, as `process.py` builds it."""

    def __init__(self) -> None:
        cluster = LiveCluster()
        cluster.mirrors[PODS.plural] = SeeingMirror()
        super().__init__(cluster)
        guarded = GuardedCluster(cluster, PodGuard())
        self.controller = Controller(replace(self.context, cluster=guarded, clock=asyncio.get_running_loop().time))


@in_virtual_time
async def test_no_devices_are_claimed_for_a_group_that_only_a_forged_pod_names() -> None:
    """Not when the pod comes, and not when the ledger is recreated."""
    world = GuardedCase()
    world.node("n1")
    async with world.leading():
        await soon(lambda: world.open("n1"))
        world.cluster.put(PODS, forged(), WHERE)
        await asyncio.sleep(5)
        assert world.holders("n1") == {}
        world.cluster.remove(NODE_DEVICES, "n1")
        await soon(lambda: world.open("n1"), 30)
        await asyncio.sleep(5)
        assert world.holders("n1") == {}
        assert len(world.fleet.free("n1")) == 4


@in_virtual_time
async def test_a_forged_pod_keeps_no_claim_and_moves_no_group() -> None:
    """The group's real pod has ended and the group is deleted; one in kube-system says that it uses its devices."""
    world = GuardedCase()
    world.node("n1")
    async with world.leading():
        await soon(lambda: world.open("n1"))
        group = world.group("team")
        world.pod("a", "team")
        await world.bind("a", "n1")
        lie = forged(group="team")
        lie["metadata"]["annotations"][contract.GROUP_UID] = group.uid
        world.cluster.put(PODS, lie, WHERE)
        await soon(lambda: world.read_group("team").status.allocated_pods == ["ns/a"], 5)
        world.cluster.remove(PODS, "a", "ns")
        world.cluster.remove(GROUPS, "team")
        await soon(lambda: world.holders("n1") == {}, 5)


@pytest.mark.parametrize("plural", [[], ["nvidia.com/gpu"]])
def test_what_a_forged_pod_has_from_the_device_plugin_still_counts(plural: list[str]) -> None:
    """Its label keeps it out of the mirror of all other pods."""
    fleet, others, pods = Fleet(), MemoryMirror(), SeeingMirror()
    Feed(fleet, nodes=MemoryMirror(), ledgers=MemoryMirror(), pods=pods, others=others)
    limits = {"resources": {"limits": dict.fromkeys(plural, "1")}}
    body = forged(containers=[{"name": "main", **limits}])
    body["metadata"] |= {"namespace": WHERE, "uid": "u", "resourceVersion": "1"}
    pods.set(f"{WHERE}/forged", msgspec.convert(body, Pod))
    assert fleet.opaque("n1") == frozenset(plural)
    assert fleet.pods("uid-of-never") == {}
    # The label goes, so one mirror is told that the pod came and the other that it is gone, in either order.
    del body["metadata"]["labels"]
    body["metadata"]["resourceVersion"] = "2"
    others.set(f"{WHERE}/forged", msgspec.convert(body, Pod))
    pods.set(f"{WHERE}/forged", None)
    assert fleet.opaque("n1") == frozenset(plural)
    others.set(f"{WHERE}/forged", None)
    assert fleet.opaque("n1") == frozenset()


@in_virtual_time
async def test_every_read_goes_through_the_guard() -> None:
    """Whichever verb a pod is the answer of; other objects are passed on."""
    cluster = LiveCluster()
    guarded = GuardedCluster(cluster, PodGuard())
    answers = [await guarded.create(PODS, forged(), WHERE), await guarded.get(PODS, "forged", WHERE)]
    answers += await guarded.list(PODS, label_selector=contract.GROUP)
    version = {"metadata": {"resourceVersion": answers[-1].metadata.resource_version}}
    answers.append(await guarded.patch(PODS, "forged", version, namespace=WHERE))
    assert [pod.left_out for pod in answers] == ["never"] * 4
    assert [pod.holder_uid for pod in answers] == [""] * 4
    cluster.put(GROUPS, {"metadata": {"name": "g"}, "spec": {}})
    assert [group.name for group in await guarded.list(GROUPS)] == ["g"]


def test_a_mirror_holds_what_is_seen() -> None:
    """Of the watch, of a list and of our own writes alike."""
    cache: Cache[Pod] = Cache(see=PodGuard())
    feeds: tuple[Callable[[Pod], None], ...] = (cache.apply, cache.put, lambda pod: cache.replace([pod], "9"))
    for number, feed in enumerate(feeds, start=5):
        body = forged()
        body["metadata"] |= {"namespace": WHERE, "uid": "u", "resourceVersion": str(number)}
        feed(msgspec.convert(body, Pod))
        (seen,) = cache.values()
        assert (seen.left_out, seen.group, seen.metadata.resource_version) == ("never", "", str(number))


@in_virtual_time
async def test_the_binder_refuses_a_pod_that_it_was_never_asked_about() -> None:
    """The extender restarted between filter and bind, so the pod is read."""
    world = World()
    mirrors = world.cluster.mirrors
    binder = Binder(
        GuardedCluster(world.cluster, PodGuard()),
        world.fleet,
        groups=mirrors["shareddevicegroups"],
        ledgers=mirrors["nodedevices"],
        quotas=mirrors["devicequotas"],
        on_conflict=lambda: None,
    )
    raw = world.cluster.put(PODS, forged(nodeName=""), WHERE)
    with pytest.raises(Refused, match="excludedNamespaces"):
        await binder.bind(WHERE, "forged", raw["metadata"]["uid"], "n1")
    assert world.cluster.read(PODS, "forged", WHERE).node == ""  # type: ignore[union-attr]


@in_virtual_time
async def test_an_object_that_grows_too_large_is_reported_whoever_writes_it() -> None:
    """And the writer learns it, too."""
    told: list[tuple[str, str, str]] = []
    cluster = RefusingCluster()
    guarded = GuardedCluster(
        cluster, PodGuard(), on_too_large=lambda it: told.append((it.kind.kind, it.namespace, it.name))
    )
    with pytest.raises(TooLarge):
        await guarded.patch(NODE_DEVICES, "n1", {})
    with pytest.raises(TooLarge):
        await guarded.bind("ns", "p", uid="u", resource_version="", node="n1", annotations={}, timeout=1)
    assert told == [("NodeDevices", "", "n1"), ("Pod", "ns", "p")]


class RefusingCluster(LiveCluster):
    """Stores nothing more."""

    async def patch(self, *_: Any, **__: Any) -> Any:
        raise TooLarge("etcdserver: request is too large")

    bind = patch
