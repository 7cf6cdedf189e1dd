"""The report: it writes what is new, once, and goes on trying."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from deviceshare.agent.own_node import Report
from deviceshare.domain.objects.hardware import Hardware
from deviceshare.loops.ports import Forbidden, Unavailable
from tests.unit.agent.node import NODE, Node, part
from tests.unit.kube.scripted import until

ONE = Hardware(devices=[part(0)])
TWO = Hardware(devices=[part(0), part(1)])


@asynccontextmanager
async def reporting(node: Node) -> AsyncIterator[Report]:
    report = node.own.report
    report.resume(Hardware())
    report.tell(allocations=None)
    task = asyncio.create_task(report.run())
    try:
        yield report
    finally:
        task.cancel()
        await asyncio.wait({task})


async def settle() -> None:
    await asyncio.sleep(0.05)


async def test_a_report_is_written_once() -> None:
    """However often it is wanted, and whatever else of the object changes."""
    node = Node()
    node.set_ledger()
    async with reporting(node) as report:
        assert report.fault
        for _ in range(3):
            report.tell(devices=ONE.devices)
            await settle()
        node.hold(0)
        await settle()
        assert node.writes == [ONE]
        assert (report.fault, report.reports) == ("", 1)
        report.tell(devices=TWO.devices)
        await settle()
        assert node.writes == [ONE, TWO]


async def test_what_stands_there_already_is_not_written() -> None:
    """As after the agent's restart."""
    node = Node()
    node.set_ledger(ONE)
    async with reporting(node) as report:
        report.tell(devices=ONE.devices)
        await settle()
        assert (node.writes, report.fault) == ([], "")


async def test_it_waits_for_the_ledger_and_writes_into_the_next_one_too() -> None:
    """The leader makes it, and makes it again."""
    node = Node()
    async with reporting(node) as report:
        report.tell(devices=ONE.devices)
        await settle()
        assert report.fault == "the node has no NodeDevices yet"
        node.set_ledger()
        await settle()
        node.ledgers.set(NODE, None)
        await settle()
        node.set_ledger()
        await settle()
        assert node.writes == [ONE, ONE]


async def test_what_somebody_else_changed_is_written_again() -> None:
    """The report is the agent's word and nobody else's."""
    node = Node()
    node.set_ledger()
    async with reporting(node) as report:
        report.tell(devices=ONE.devices)
        await settle()
        node.set_ledger(Hardware())
        await settle()
        assert node.writes == [ONE, ONE]


async def test_an_older_crd_that_drops_a_field_starts_no_fight() -> None:
    """It would be written for ever."""
    node = Node()

    def keep(hardware: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**hardware, "driver": ""}

    node.keep = keep
    node.set_ledger()
    async with reporting(node) as report:
        report.tell(driver="550", devices=[part(0)])
        await settle()
        node.hold(0)
        await settle()
        assert len(node.writes) == 1


async def test_a_refusal_is_tried_again() -> None:
    """An API server that is away comes back; rights that are missing are given."""
    node = Node()
    node.set_ledger()
    errors = [Unavailable("away"), Forbidden("no right")]
    node.fail = lambda: errors.pop() if errors else None
    async with reporting(node) as report:
        report.tell(devices=ONE.devices)
        await until(lambda: bool(node.writes))
        assert report.fault == ""
