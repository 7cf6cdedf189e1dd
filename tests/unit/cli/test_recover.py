"""`deviceshare recover` against the model API server; the test lifts the marks as an agent would."""

import asyncio
from typing import Any

import click
import msgspec
import pytest

from deviceshare.cli.recover import lift
from deviceshare.domain import contract
from deviceshare.domain.device_health.examination import reported_repaired
from deviceshare.domain.objects.hardware import Hardware, Part
from deviceshare.loops.kinds import NODE_DEVICES
from deviceshare.loops.ports import ApiError, Conflict, Forbidden, NotFound
from tests.unit.domain.objects import GPU
from tests.unit.loops.live import LiveCluster, soon
from tests.unit.loops.virtual_time import in_virtual_time

SINCE = "2026-11-21T03:00:00Z"


def a_cluster(*unhealthy: int, **annotations: str) -> LiveCluster:
    """One node of three devices."""
    parts = [broken(n, f"GPU-{n}") if n in unhealthy else Part(GPU, n, f"GPU-{n}") for n in range(3)]
    return with_parts(*parts, **annotations)


def broken(index: int, uuid: str, *, lost: bool = False) -> Part:
    return Part(GPU, index, uuid, unhealthy="Xid 79", since=SINCE, lost=lost)


def with_parts(*parts: Part, **annotations: str) -> LiveCluster:
    cluster = LiveCluster()
    meta = {"name": "n1", "annotations": {f"{contract.PREFIX}{key}": value for key, value in annotations.items()}}
    hardware = msgspec.to_builtins(Hardware(devices=list(parts)))
    cluster.put(NODE_DEVICES, {"metadata": meta, "status": {"hardware": hardware}})
    return cluster


def said(cluster: LiveCluster) -> str:
    ledger = cluster.read(NODE_DEVICES, "n1")
    assert ledger is not None
    return ledger.metadata.annotations.get(contract.RECOVERED, "")


async def agent(cluster: LiveCluster) -> None:
    """Lifts the marks that the annotation names."""
    await soon(lambda: said(cluster))
    ledger = cluster.read(NODE_DEVICES, "n1")
    assert ledger is not None
    parts = [
        msgspec.structs.replace(part, unhealthy="", since="")
        if f"{part.uuid}@{part.since}" in said(cluster).split(",")
        else part
        for part in ledger.hardware.devices
    ]
    devices: Any = msgspec.to_builtins(parts)
    cluster.edit(NODE_DEVICES, "n1", {"status": {"hardware": {"devices": devices}}})


@in_virtual_time
async def test_the_agent_is_told_of_the_findings_and_waited_for() -> None:
    """By number or UUID."""
    cluster = a_cluster(0, 2)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(agent(cluster))
        lines = await lift(cluster, "n1", ["0", "GPU-2"])
    assert said(cluster) == f"GPU-0@{SINCE},GPU-2@{SINCE}"
    assert lines[0] == f"{GPU} 0 of node n1 can be allocated again (it was: Xid 79)."
    assert len(lines) == 2


@in_virtual_time
async def test_what_others_said_stays_while_it_means_something() -> None:
    """An old finding that is dealt with is left out, so that the annotation doesn't grow for ever."""
    cluster = a_cluster(0, 2, recovered=f"GPU-2@{SINCE},GPU-1@2020-01-01T00:00:00Z")
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(lift(cluster, "n1", ["0"]))
        await soon(lambda: "GPU-0" in said(cluster))
        tasks.create_task(agent(cluster))
    assert said(cluster) == f"GPU-0@{SINCE},GPU-2@{SINCE}"
    assert len(waiting.result()) == 1


@in_virtual_time
async def test_a_write_that_lost_to_another_begins_again() -> None:
    """Binds write the same object."""
    cluster = a_cluster(0)
    conflicts = [Conflict("somebody wrote"), Conflict("somebody wrote")]
    cluster.fail = lambda verb, plural, name: conflicts.pop() if verb == "patch" and conflicts else None
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(agent(cluster))
        await lift(cluster, "n1", ["0"])
    assert not conflicts


@in_virtual_time
async def test_an_agent_that_does_not_answer_is_named_with_the_command_that_shows_it() -> None:
    """The annotation stays and is heeded when it runs."""
    cluster = a_cluster(0)
    with pytest.raises(click.ClickException, match=r"deviceshare-agent --field-selector spec.nodeName=n1"):
        await lift(cluster, "n1", ["0"])
    assert said(cluster) == f"GPU-0@{SINCE}"


@pytest.mark.parametrize(
    ("name", "text"),
    [("1", "nvidia.com/gpu 1 of node n1 is healthy"), ("7", "Node n1 has no device 7"), ("GPU", "has no device GPU")],
)
@in_virtual_time
async def test_a_device_that_is_not_marked_is_refused(name: str, text: str) -> None:
    """Nothing is written, for none of those named."""
    cluster = a_cluster(0)
    with pytest.raises(click.ClickException, match=text):
        await lift(cluster, "n1", ["0", name])
    assert said(cluster) == ""


@in_virtual_time
async def test_two_broken_devices_of_one_number_are_told_apart() -> None:
    """One was lost, and another has its number since."""
    cluster = with_parts(broken(0, "GPU-old", lost=True), broken(0, "GPU-new"))
    with pytest.raises(click.ClickException, match="name one by UUID: GPU-old or GPU-new"):
        await lift(cluster, "n1", ["0"])


@in_virtual_time
async def test_nodes_without_ledger_or_agent_are_told_apart() -> None:
    """Each with the command that goes on from there."""
    with pytest.raises(click.ClickException, match="n2 is not a shared node"):
        await lift(a_cluster(), "n2", ["0"])
    with pytest.raises(click.ClickException, match="No agent reports on node n1"):
        await lift(with_parts(), "n1", ["0"])


@in_virtual_time
async def test_who_may_not_write_claims_reports_in_the_status() -> None:
    """Agents read both; the finding is the same."""
    cluster, refusals = a_cluster(0), [Forbidden("no")]
    cluster.fail = lambda verb, plural, name: refusals.pop() if verb == "patch" and refusals else None
    with pytest.raises(click.ClickException, match="has not lifted the mark"):  # no agent runs
        await lift(cluster, "n1", ["0"])
    ledger = cluster.read(NODE_DEVICES, "n1")
    assert ledger is not None
    assert (said(cluster), ledger.status.recovered) == ("", [f"GPU-0@{SINCE}"])
    assert reported_repaired(ledger) == {f"GPU-0@{SINCE}"}


@pytest.mark.parametrize("refusals", [(NotFound("gone"),), (NotFound("gone"), Forbidden("no"))])
@in_virtual_time
async def test_a_ledger_deleted_meanwhile_was_told_nothing(refusals: tuple[ApiError, ...]) -> None:
    """Whichever part of it was to be written."""
    cluster, answers = a_cluster(0), [*refusals]
    cluster.fail = lambda verb, plural, name: answers.pop() if verb == "patch" else None
    with pytest.raises(click.ClickException, match=r"NodeDevices of node n1 was deleted meanwhile.* inspect n1"):
        await lift(cluster, "n1", ["0"])


@in_virtual_time
async def test_a_recreated_ledger_without_marks_is_no_answer() -> None:
    """Its agent finds the errors again, of which nobody has told it that they were repaired."""
    cluster = a_cluster(0)
    asking = asyncio.create_task(lift(cluster, "n1", ["0"]))
    await soon(lambda: said(cluster))
    cluster.put(NODE_DEVICES, {"metadata": {"name": "n1"}, "status": {"hardware": {"devices": []}}})
    with pytest.raises(click.ClickException, match="was deleted meanwhile"):
        await asking
