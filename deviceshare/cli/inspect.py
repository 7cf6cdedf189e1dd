"""`deviceshare inspect`: who has which devices or parts of devices, which pods wait, and why."""

from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from deviceshare.cli import agents, cluster, gpushare_table
from deviceshare.cli.agents import NodeNow
from deviceshare.cli.inspect_view import view
from deviceshare.cli.output import FORMATS, TABLE, WIDE, Part, answer_with, say, spaced
from deviceshare.cli.snapshot import ClusterSnapshot, look
from deviceshare.cli.turns_table import turns_table
from deviceshare.domain import contract
from deviceshare.domain.answers.drawing import draw
from deviceshare.domain.answers.picture import Picture
from deviceshare.domain.wording import listed
from deviceshare.loops.ports import Forbidden

if TYPE_CHECKING:
    from deviceshare.kube.api import Api

CGPU: Final = "cgpu"
SHOWN_NODES: Final = 5


@click.command(
    short_help="Show who holds which devices, and which pods wait.",
    epilog="""\b
Examples:
  deviceshare inspect                  the whole cluster
  deviceshare inspect node-1           one node, device by device
  deviceshare inspect -d -o wide       every device, with model, memory and UUID
  deviceshare inspect -o cgpu          as kubectl inspect cgpu shows it; -d with pods
  deviceshare inspect --watch          redraw at each change, until Ctrl-C
  deviceshare inspect -o json | jq '.waiting[].reason'
\b
Exit codes: 0 shown, 1 failed or no such node, 2 wrong flags.""",
)
@click.argument("node", required=False)
@click.option(
    "-d",
    "--details",
    is_flag=True,
    help="Every device, and who has turns; nothing folded. Naming a node does that, too.",
)
@click.option("-o", "--output", type=click.Choice((*FORMATS, CGPU)), default=TABLE, help="For people or programs.")
@click.option("-w", "--watch", is_flag=True, help="Show it again at each change, until Ctrl-C.")
@cluster.options
def inspect(target: cluster.Target, node: str | None, output: str, *, details: bool, watch: bool) -> None:
    """Show nodes and their devices, who has them or parts of them, which are unhealthy, and what pods wait for."""
    if watch and output not in (TABLE, WIDE):
        raise click.UsageError(f"--watch shows tables: leave out -o {output}, or run the command repeatedly.")

    picture = partial(_picture, node=node)

    def parts(shown: Picture) -> list[Part]:
        return view(shown, now=datetime.now(UTC), details=details or node is not None, wide=output == WIDE)

    if watch:
        from deviceshare.cli.watching import follow  # noqa: PLC0415 - only --watch needs mirrors

        with suppress(KeyboardInterrupt):
            target.ask(lambda api: follow(api, picture, parts), seconds=None)
        return
    answer = picture(target.ask(look))
    if output == CGPU:
        _print_as_gpushare(answer, details=details)
    else:
        answer_with(answer, output, lambda: [*_turns(target, node, asked=details or node is not None), *parts(answer)])


def _turns(target: cluster.Target, node: str | None, *, asked: bool) -> list[Part]:
    """Who has turns, where every device is shown: only the nodes' agents know, and each has to be asked.

    Who may not ask them is shown the rest.
    """
    if not asked:
        return []

    async def ask(api: "Api") -> list[NodeNow]:
        with suppress(Forbidden):
            return await agents.ask(api, contract.NAMESPACE, node or "")
        return []

    return list(spaced([turns_table(target.ask(ask), None)]))


def _print_as_gpushare(shown: Picture, *, details: bool) -> None:
    for line in gpushare_table.lines(shown, details=details):
        say(line)
    if others := gpushare_table.left_out(shown):
        names = listed(others, most=SHOWN_NODES)
        say(f"Left out, since the memory of their devices is not known: {names}; see deviceshare inspect", err=True)


def _picture(seen: ClusterSnapshot, node: str | None) -> Picture:
    whole = draw(seen.fleet, seen.groups.values(), seen.pods.values())
    if node is None:
        return whole
    one = whole.of(node)
    if one is None:
        raise click.ClickException(
            f"{node} is not a shared node; see them with deviceshare inspect, or share it with"
            f" kubectl label node {node} {contract.MODE_LABEL}={contract.MODE_SHARED}"
        )
    return one
