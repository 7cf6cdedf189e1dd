"""`deviceshare top`: utilization, memory and processes of every shared device."""

import asyncio
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from deviceshare.cli import agents, cluster
from deviceshare.cli.agents import NodeNow
from deviceshare.cli.completion import complete_nodes
from deviceshare.cli.output import JSON, TABLE, Part, answer_with, screen, styled
from deviceshare.cli.suggestions import did_you_mean, names
from deviceshare.cli.turns_table import turns_table
from deviceshare.cli.usage_table import cluster_table
from deviceshare.cli.visible import note
from deviceshare.domain import contract
from deviceshare.domain.answers.picture import Unseen
from deviceshare.loops.kinds import NODE_DEVICES
from deviceshare.loops.ports import Unavailable

if TYPE_CHECKING:
    from deviceshare.kube.api import Api

WATCH_SECONDS = 2.0


@click.command(
    short_help="Show the use of devices now.",
    epilog="""\b
Examples:
  deviceshare top                   every shared node
  deviceshare top node-1 --watch    one of them, every two seconds until Ctrl-C
  deviceshare top -o json | jq '.nodes[].devices[]? | select(.utilization == 0)'
\b
Exit codes: 0 at least one agent answered, or you may not ask them and devices are known; 1 none did; 2 wrong flags.""",
)
@click.argument("node", default="", shell_complete=complete_nodes)
@click.option("--watch", "-w", is_flag=True, help="Look again every two seconds, until Ctrl-C.")
@click.option("--output", "-o", type=click.Choice([TABLE, JSON]), default=TABLE, show_default=True)
@click.option("--namespace", "-n", default=contract.NAMESPACE, show_default=True, help="Where the agents run.")
@cluster.options
def top(node: str, output: str, namespace: str, *, watch: bool, target: cluster.Target) -> None:
    """Show utilization, memory and processes of devices now, and who has turns, on all shared nodes or on NODE.

    The nodes' agents report it, through the API server: this takes the right to get pods/proxy in their namespace
    (ClusterRole deviceshare-top). Without it, devices and holders are shown as NodeDevices have them.
    """
    if watch and output != TABLE:
        raise click.UsageError("--watch shows a table; programs repeat: deviceshare top -o json")
    if watch:
        with suppress(KeyboardInterrupt):  # the last drawing stays on the screen
            target.ask(lambda api: _watch(api, namespace, node), seconds=None)
        return
    nodes, unseen = target.ask(lambda api: _look(api, namespace, node))
    answer_with({"nodes": nodes, **({"unseen": unseen} if unseen else {})}, output, lambda: _drawn(nodes))
    note(unseen)
    sys.exit(1 if all(each.silent for each in nodes) else 0)


async def _look(api: "Api", namespace: str, node: str) -> tuple[list[NodeNow], list[Unseen]]:
    nodes, unseen = await agents.ask_or_read(api, namespace, node)
    if nodes:
        return nodes, unseen
    if node:
        near = did_you_mean(node, await names(api, NODE_DEVICES))
        raise click.ClickException(f"{node} is not a shared node; list them with: kubectl get nodedevices{near}")
    raise click.ClickException(
        f"No node is shared; share one: kubectl label node NODE {contract.MODE_LABEL}={contract.MODE_SHARED}"
    )


async def _watch(api: "Api", namespace: str, node: str) -> None:
    (nodes, unseen), trouble = await _look(api, namespace, node), ""
    note(unseen)
    with screen() as draw:
        while True:
            draw(_drawn(nodes, trouble))
            await asyncio.sleep(WATCH_SECONDS)
            try:
                (nodes, _), trouble = await _look(api, namespace, node), ""
            except Unavailable as error:
                trouble = f"The cluster does not answer; this is its last known state. Retrying. ({error})"


def _drawn(nodes: list[NodeNow], trouble: str = "") -> list[Part]:
    answered = [each for each in nodes if not each.silent]
    lines = [styled(f"{each.node}: {each.silent}", "yellow") for each in nodes if each.silent]
    if not answered:
        lines.append(styled("Agents have to be installed and reachable: see docs/agent.md"))
    if trouble:
        lines.append(styled(trouble, "red"))
    turns = turns_table(answered, None)
    return [*([cluster_table(answered)] if answered else []), *(["", *turns] if turns else []), *lines]
