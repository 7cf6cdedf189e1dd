"""`deviceshare inspect -o cgpu`: the table that users of gpushare know, to the blank."""

import asyncio

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from deviceshare.cli import gpushare_table
from deviceshare.cli.cluster import Target
from deviceshare.cli.main import main
from deviceshare.cli.snapshot import ClusterSnapshot
from deviceshare.domain.answers.picture import Picture, draw
from deviceshare.domain.objects.nodes import NodeAddress
from deviceshare.domain.placement.fleet import Fleet
from tests.unit.domain.objects import GPU, a_fleet, a_node, gpus
from tests.unit.domain.test_shown_shares import GIB, a_shared_ledger, part, with_pods

SIZE = 15 * GIB + 900
"""A Tesla P100 or T4 of 16 GB, of which gpushare counts 15 GiB."""


def a_picture(*, group: bool = False, unknown: bool = False) -> Picture:
    """Two nodes, with two devices and one."""
    return draw(a_fleet_of_three(group=group, unknown=unknown), [], [])


def a_fleet_of_three(*, group: bool = False, unknown: bool = True) -> Fleet:
    """The third node's devices have an unknown memory."""
    first = a_shared_ledger("n-1", size=SIZE, groups={"team": gpus(1)} if group else {})
    first = with_pods(first, {"binpack-1-0": [part(0, 3)], "b": [part(0, 3)]})
    second = with_pods(a_shared_ledger("node-2", size=SIZE, devices=1), {"binpack-1-1": [part(0, 3)]})
    ledgers = [first, second, *([a_shared_ledger("node-3", size=0)] if unknown else [])]
    addresses = [NodeAddress("Hostname", "n-1"), NodeAddress("InternalIP", "192.168.0.71")]
    node = a_node("n-1", {GPU: 2})
    nodes = [replace(node, status=replace(node.status, addresses=addresses)), a_node("node-2"), a_node("node-3")]
    return a_fleet(*nodes[: len(ledgers)], ledgers=tuple(ledgers))


def test_the_table_is_the_one_that_they_know() -> None:
    """Columns for as many devices as the largest node has; a node with fewer shows 0/0."""
    assert "\n".join(gpushare_table.lines(a_picture(), details=False)) == (
        "NAME    IPADDRESS     GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU Memory(GiB)\n"
        "n-1     192.168.0.71  6/15                   0/15                   6/30\n"
        "node-2  unknown       3/15                   0/0                    3/15\n"
        "----------------------------------------------------\n"
        "Allocated/Total GPU Memory In Cluster:\n"
        "9/45 (20%)  "
    )


def test_details_name_the_pods() -> None:
    """Of each node, with a group as a line of its own."""
    assert "\n".join(gpushare_table.lines(a_picture(group=True), details=True)) == (
        "\n"
        "NAME:       n-1\n"
        "IPADDRESS:  192.168.0.71\n"
        "\n"
        "NAME         NAMESPACE  GPU0(Allocated)  GPU1(Allocated)  \n"
        "b            ns         3                0                \n"
        "binpack-1-0  ns         3                0                \n"
        "team         (group)    0                15               \n"
        "Allocated :  21 (70%)   \n"
        "Total :      30         \n"
        "----------------------------------------------------------\n"
        "\n"
        "NAME:       node-2\n"
        "IPADDRESS:  unknown\n"
        "\n"
        "NAME         NAMESPACE  GPU0(Allocated)  GPU1(Allocated)  \n"
        "binpack-1-1  ns         3                0                \n"
        "Allocated :  3 (20%)    \n"
        "Total :      15         \n"
        "----------------------------------------------------------\n"
        "\n"
        "\n"
        "Allocated/Total GPU Memory In Cluster:  24/45 (53%)  "
    )


def test_what_a_group_has_is_allocated_as_a_whole() -> None:
    """Never more than the total, which leaves out the rest of less than one GiB."""
    lines = gpushare_table.lines(a_picture(group=True), details=False)
    assert lines[1].split() == ["n-1", "192.168.0.71", "6/15", "15/15", "21/30"]


def test_nodes_of_unknown_memory_are_left_out_and_named() -> None:
    """A script that sums columns must not meet a number that isn't one."""
    assert gpushare_table.lines(a_picture(unknown=True), details=False) == gpushare_table.lines(
        a_picture(), details=False
    )
    assert gpushare_table.left_out(a_picture(unknown=True)) == ["node-3"]


def test_an_empty_cluster_has_an_empty_table() -> None:
    """As theirs."""
    lines = gpushare_table.lines(draw(a_fleet(), [], []), details=False)
    assert (lines[0], lines[-1]) == ("NAME  IPADDRESS  GPU Memory(GiB)", "0/0 (0%)  ")


def test_the_command_prints_it_for_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table alone is on standard output, with one node as with all."""

    async def one(*_: object) -> ClusterSnapshot:
        return ClusterSnapshot(a_fleet_of_three(), {}, {})

    monkeypatch.setattr("deviceshare.cli.snapshot.look", one)
    monkeypatch.setattr(Target, "ask", lambda _, question, **__: asyncio.run(question(None)))
    every = CliRunner().invoke(main, ["inspect", "-o", "cgpu"])
    assert every.exit_code == 0, every.output
    assert every.stdout.splitlines() == gpushare_table.lines(a_picture(), details=False)
    assert "node-3" in every.stderr
    named = CliRunner().invoke(main, ["inspect", "-o", "cgpu", "-d", "n-1"])
    assert "binpack-1-0" in named.stdout and "node-2" not in named.stdout
    assert "leave out -o cgpu" in CliRunner().invoke(main, ["inspect", "-o", "cgpu", "-w"]).output
