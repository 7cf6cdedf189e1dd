"""`deviceshare inspect`: who holds which devices, which pods wait, and why."""

from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import click

from deviceshare.cli import agents, cluster
from deviceshare.cli.agents import NodeNow
from deviceshare.cli.inspect_view import view
from deviceshare.cli.output import FORMATS, TABLE, WIDE, Part, answer_with, spaced
from deviceshare.cli.snapshot import ClusterSnapshot, look
from deviceshare.cli.turns_table import turns_table
from deviceshare.domain import contract
from deviceshare.domain.answers.drawing import draw
from deviceshare.domain.answers.picture import Picture
from deviceshare.loops.ports import Forbidden

if TYPE_CHECKING:
    from deviceshare.kube.api import Api


@click.command(
    short_help="Show who holds which devices, and which pods wait.",
    epilog="""\b
Examples:
  deviceshare inspect                  the whole cluster
  deviceshare inspect node-1           one node, device by device
  deviceshare inspect -d -o wide       every device, with model, memory and UUID
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
@click.option("-o", "--output", type=click.Choice(FORMATS), default=TABLE, help="For people or programs.")
@click.option("-w", "--watch", is_flag=True, help="Show it again at each change, until Ctrl-C.")
@cluster.options
def inspect(target: cluster.Target, node: str | None, output: str, *, details: bool, watch: bool) -> None:
    """Show nodes and their devices, who holds them, which are unhealthy, and which pods wait for what."""
    if watch and output not in (TABLE, WIDE):
        raise click.UsageError(f"--watch shows tables: leave out -o {output}, or run the command repeatedly.")

    picture = partial(_picture, node=node)

    def parts(shown: Picture) -> list[Part]:
        return view(shown, now=datetime.now(UTC), details=details or node is not None, wide=output == WIDE)

    if watch:
        from deviceshare.cli.watching import follow  # noqa: PLC0415 - only --watch needs mirrors

        with suppress(KeyboardInterrupt):
            target.ask(lambda api: follow(api, picture, parts), seconds=None)
    else:
        answer = picture(target.ask(look))
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
