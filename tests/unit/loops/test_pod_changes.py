"""A change of a pod by which nothing is decided gives nobody work; any other is noticed."""

import asyncio
from typing import Any

import msgspec
import pytest

from deviceshare.domain import contract
from deviceshare.domain.objects.pods import Pod
from deviceshare.loops.kinds import PODS, says_the_same
from tests.unit.domain.objects import GPU
from tests.unit.loops.live import a_bound_group, led_world
from tests.unit.loops.model import Raw, _merge
from tests.unit.loops.virtual_time import in_virtual_time

REFUSED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
WAITING: Raw = {
    "metadata": {"name": "p", "namespace": "ns", "uid": "u", "labels": {contract.GROUP: "team"}, "annotations": {}},
    "spec": {"containers": [{"name": "main"}]},
    "status": {"phase": "Pending", "conditions": [REFUSED]},
}
PLACED = {contract.PLACED_ON: "n1", contract.POD_UID: "u"}
"""Annotations of a pod whose gate was lifted."""


def changed(before: Raw, change: Raw) -> bool:
    """Whether the change makes a difference to the pod."""
    raw = msgspec.json.decode(msgspec.json.encode(before))
    old = msgspec.convert(raw, Pod)
    _merge(raw, {"metadata": {"resourceVersion": "2"}} | change)
    return not says_the_same(old, msgspec.convert(raw, Pod))


def running(**more: Any) -> Raw:
    """The status of a pod as its kubelet reports it."""
    containers = [{"name": "main", "state": {"running": {}}, **more}]
    return {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": containers}


BOUND: Raw = WAITING | {"spec": {**WAITING["spec"], "nodeName": "n1"}, "status": running()}


@pytest.mark.parametrize(
    ("before", "change"),
    [
        (BOUND, {}),
        (BOUND | {"status": {"phase": "Pending"}}, {"status": running()}),
        (BOUND, {"status": {"conditions": [{"type": "Ready", "status": "False", "message": "restarting"}]}}),
        (BOUND, {"status": {"containerStatuses": [{"name": "main", "state": {"terminated": {}}}]}}),
        (WAITING, {"status": {"conditions": [REFUSED | {"message": "0/2 nodes"}]}}),
        (WAITING, {"status": {"conditions": [REFUSED, {"type": "Other", "status": "True"}]}}),
    ],
)
def test_what_the_kubelet_and_the_scheduler_report_all_the_time_decides_nothing(before: Raw, change: Raw) -> None:
    """Containers that start again, and the number of nodes in a refusal."""
    assert not changed(before, change)


@pytest.mark.parametrize(
    ("before", "change"),
    [
        (BOUND, {"status": {"phase": "Failed"}}),
        (BOUND | {"status": {"phase": "Failed"}}, {"status": {"containerStatuses": [{"name": "main"}]}}),
        (BOUND, {"status": running(allocatedResources={"cpu": "2"})}),
        (BOUND, {"status": {"extendedResourceClaimStatus": {"requestMappings": [{"resourceName": GPU}]}}}),
        (BOUND, {"metadata": {"annotations": {contract.FORMER_DEVICES: "[]"}}}),
        (BOUND, {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
        (BOUND, {"metadata": {"finalizers": ["example.org/kept"]}}),
        (WAITING, {"spec": {"nodeName": "n1"}}),
        (WAITING, {"status": {"conditions": []}}),
        (WAITING, {"status": {"conditions": [REFUSED | {"reason": "SchedulerError"}]}}),
        (WAITING, {"status": {"nominatedNodeName": "n1"}}),
        (
            WAITING | {"metadata": WAITING["metadata"] | {"annotations": PLACED}},
            {"status": {"conditions": [REFUSED | {"message": "no free ports"}]}},
        ),
    ],
)
def test_what_something_is_decided_by_is_a_change(before: Raw, change: Raw) -> None:
    """Where the pod lives, whether it has ended, what it takes, and whether kube-scheduler refuses it, and how."""
    assert changed(before, change)


@in_virtual_time
async def test_a_pod_that_runs_on_gives_the_leader_no_work() -> None:
    """Whatever its kubelet writes."""
    async with led_world() as world:
        await a_bound_group(world)
        await asyncio.sleep(30)
        enqueued: list[str] = []
        for queue in world.context.queues:
            queue.add = lambda key, after=0.0, name=queue.name: enqueued.append(name)  # type: ignore[method-assign,misc]
        world.cluster.edit(PODS, "a", {"status": running()}, "ns")
        await asyncio.sleep(1)
        enqueued.clear()
        world.cluster.edit(PODS, "a", {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}, "ns")
        await asyncio.sleep(1)
        assert enqueued == []
