"""`deviceshare inspect`: who has which devices or parts of devices, and turns; which pods wait, and why."""

from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Final

import click
from msgspec.structs import replace

from deviceshare.cli import cluster, gpushare_table
from deviceshare.cli.completion import complete_nodes
from deviceshare.cli.inspect_view import view
from deviceshare.cli.namespace_option import in_namespace
from deviceshare.cli.output import FORMATS, TABLE, WIDE, Part, answer_with, say
from deviceshare.cli.snapshot import ClusterSnapshot, look
from deviceshare.cli.suggestions import did_you_mean
from deviceshare.cli.visible import note
from deviceshare.domain import contract
from deviceshare.domain.answers.picture import Picture, draw
from deviceshare.domain.wording import listed

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
@click.argument("node", required=False, shell_complete=complete_nodes)
@click.option(
    "-d",
    "--details",
    is_flag=True,
    help="Every device; nothing folded. Naming a node does that, too.",
)
@click.option("-o", "--output", type=click.Choice((*FORMATS, CGPU)), default=TABLE, help="For people or programs.")
@click.option("-w", "--watch", is_flag=True, help="Show it again at each change, until Ctrl-C.")
@in_namespace
@cluster.options
def inspect(
    target: cluster.Target, node: str | None, output: str, namespace: str | None, *, details: bool, watch: bool
) -> None:
    """Show nodes and their devices, who has them or parts of them, who has turns, and what pods wait for.

    Needs the right to read groups and NodeDevices. What else you may not read is left out, and said: of pods, all but
    those of --namespace where you may not list the whole cluster's.
    """
    if watch and output not in (TABLE, WIDE):
        raise click.UsageError(f"--watch shows tables: leave out -o {output}, or run the command repeatedly.")

    picture = partial(_picture, node=node)

    def parts(shown: Picture) -> list[Part]:
        return view(shown, now=datetime.now(UTC), details=details or node is not None, wide=output == WIDE)

    if watch:
        from deviceshare.cli.watching import follow  # noqa: PLC0415 - only --watch needs mirrors

        with suppress(KeyboardInterrupt):
            target.ask(lambda api: follow(api, namespace or target.namespace, picture, parts), seconds=None)
        return
    seen = target.ask(lambda api: look(api, namespace or target.namespace))
    answer = picture(seen)
    if output == CGPU:
        _print_as_gpushare(answer, details=details)
    else:
        answer_with(answer, output, lambda: parts(answer))
    note(seen.unseen)


def _print_as_gpushare(shown: Picture, *, details: bool) -> None:
    for line in gpushare_table.lines(shown, details=details):
        say(line)
    if others := gpushare_table.left_out(shown):
        names = listed(others, most=SHOWN_NODES)
        say(f"Left out, since the memory of their devices is not known: {names}; see deviceshare inspect", err=True)


def _picture(seen: ClusterSnapshot, node: str | None) -> Picture:
    whole = draw(seen.fleet, seen.groups.values(), seen.pods.values(), partly_seen=not seen.visibility.whole)
    whole = replace(whole, unseen=list(seen.unseen))
    if node is None:
        return whole
    one = whole.of(node)
    if one is None:
        raise click.ClickException(
            f"{node} is not a shared node; see them with deviceshare inspect, or share it with"
            f" kubectl label node {node} {contract.MODE_LABEL}={contract.MODE_SHARED}"
            f"{did_you_mean(node, (each.name for each in whole.nodes))}"
        )
    return one
