"""What a large cluster costs: the leader's work for one change, and how it grows with nodes, groups and pods.

    python -m tests.benchmarks.scale leader [--nodes 5000] [--groups 2000] [--waiting 1000] [--pods 10000] [--json]
    python -m tests.benchmarks.scale growth [--nodes 1000] [--groups 400] [--waiting 200] [--pods 2000]
    python -m tests.benchmarks.scale process [--nodes 5000] ...
    python -m tests.benchmarks.scale page [--nodes 1000] ...

`leader` and `growth` run the leader's loops in memory, without an API server (leader_in_memory.py): processor time of
one change, and the longest that a callback had the event loop. `growth` doubles each number by itself. `process` runs
`deviceshare run` against a real API server (large_process.py): start to ready, memory, the longest webhook answer while
the leader works, processor time at rest. `page` draws the page's picture, and scrapes the metrics.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table

from deviceshare.logs import configure
from tests.benchmarks import large_process
from tests.benchmarks.large_cluster import Size
from tests.benchmarks.leader_in_memory import ChangeCost, measure
from tests.benchmarks.page_of_a_large_cluster import Moment, moments


def sized(nodes: int, groups: int, waiting: int, pods: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Options for how large the cluster is, with these defaults."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for name, number in (("pods", pods), ("waiting", waiting), ("groups", groups), ("nodes", nodes)):
            command = click.option(f"--{name}", type=click.IntRange(1), default=number, show_default=True)(command)
        return click.option("--json", "as_json", is_flag=True, help="Print all figures as JSON.")(command)

    return decorate


changing = click.option("--changes", type=click.IntRange(1), default=20, show_default=True, help="Of each kind.")
pausing = click.option("--apart", default=0.2, show_default=True, help="Seconds between two changes.")


@click.group()
def main() -> None:
    """Measure a large cluster."""
    configure("json", "error")


@main.command()
@sized(5000, 2000, 1000, 10_000)
@changing
@pausing
def leader(*, nodes: int, groups: int, waiting: int, pods: int, changes: int, apart: float, as_json: bool) -> None:
    """The cost of a start and of each kind of change."""
    size = Size(nodes, groups, waiting, pods)
    costs = asyncio.run(_collected(size, changes, apart))
    if as_json:
        click.echo(msgspec.json.encode({"size": size._asdict(), "costs": costs}))
        return
    table = Table("", "CPU ms", "longest hold ms", "writes", "calls", title=f"The leader at {size}")
    for cost in costs:
        table.add_row(
            cost.what, f"{cost.cpu_ms:.1f}", f"{cost.longest_ms:.1f}", f"{cost.writes:.1f}", f"{cost.calls:.0f}"
        )
    Console().print(table)


@main.command()
@sized(1000, 400, 200, 2000)
@changing
@pausing
def growth(*, nodes: int, groups: int, waiting: int, pods: int, changes: int, apart: float, as_json: bool) -> None:
    """How the costs grow: each number doubled by itself, then all of them."""
    base = Size(nodes, groups, waiting, pods)
    sizes = {
        "base": base,
        "nodes × 2": base._replace(nodes=nodes * 2),
        "groups × 2": base._replace(groups=groups * 2, waiting=waiting * 2),
        "pods × 2": base._replace(pods=pods * 2),
        "all × 2": Size(nodes * 2, groups * 2, waiting * 2, pods * 2),
    }
    found = {name: asyncio.run(_collected(size, changes, apart)) for name, size in sizes.items()}
    if as_json:
        click.echo(msgspec.json.encode(found))
        return
    table = Table("CPU ms (and longest hold)", *sizes, title=f"Base: {base}")
    for row, cost in enumerate(found["base"]):
        cells = (f"{costs[row].cpu_ms:.1f} ({costs[row].longest_ms:.1f})" for costs in found.values())
        table.add_row(cost.what, *cells)
    Console().print(table)


@main.command()
@sized(5000, 2000, 1000, 10_000)
def process(nodes: int, groups: int, waiting: int, pods: int, *, as_json: bool) -> None:
    """`deviceshare run` against a real API server."""
    size = Size(nodes, groups, waiting, pods)
    found = asyncio.run(large_process.measure(size))
    if as_json:
        click.echo(msgspec.json.encode(found))
        return
    table = Table("", "", title=f"deviceshare run at {size}")
    for name, value in found.rows():
        table.add_row(name, value)
    Console().print(table)


@main.command()
@sized(1000, 400, 200, 2000)
def page(nodes: int, groups: int, waiting: int, pods: int, *, as_json: bool) -> None:
    """The page's picture and the metrics, in memory."""
    size = Size(nodes, groups, waiting, pods)
    found: list[Moment] = asyncio.run(moments(size))
    if as_json:
        click.echo(msgspec.json.encode(found))
        return
    table = Table("", "CPU ms", "of it on the event loop at a time", title=f"Answers for people at {size}")
    for each in found:
        table.add_row(each.what, f"{each.cpu_ms:.0f}", f"{each.longest_ms:.0f}")
    Console().print(table)


async def _collected(size: Size, changes: int, apart: float) -> list[ChangeCost]:
    return [cost async for cost in measure(size, changes, apart)]


if __name__ == "__main__":
    main()
