"""`deviceshare inspect`: who has which devices or parts of devices, and turns; which pods wait, and why."""

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import click

from deviceshare.cli.cluster import Target
from deviceshare.cli.parameters import complete_nodes, in_namespace, on_cluster, on_snapshot, output_as


@click.command(
    short_help="Show who holds which devices, and which pods wait.",
    epilog="""\b
Examples:
  deviceshare inspect                  the whole cluster
  deviceshare inspect node-1           one node, device by device
  deviceshare inspect -d -o wide       every device, with model, memory and UUID
  deviceshare inspect -o cgpu          as kubectl inspect cgpu shows it; -d with pods
  deviceshare inspect --watch          redraw at each change, until Ctrl-C
  deviceshare inspect --snapshot FILE  what deviceshare snapshot saw
  deviceshare inspect -o json | jq '.waiting[].reason'

\b
Exit codes: 0 shown, 1 failed or no such node, 2 wrong flags.""",
)
@click.argument("node", default="", shell_complete=complete_nodes)
@click.option("-d", "--details", is_flag=True, help="Every device; nothing folded. Naming a node does that, too.")
@output_as("table", "wide", "json", "yaml", "cgpu")
@click.option("-w", "--watch", is_flag=True, help="Show it again at each change, until Ctrl-C.")
@in_namespace
@on_snapshot
@on_cluster
def inspect(
    target: Target, node: str, output: str, namespace: str | None, file: Path | None, *, details: bool, watch: bool
) -> None:
    """Show nodes and their devices, who has them or parts of them, who has turns, and what pods wait for.

    Needs the right to read groups and NodeDevices. What else you may not read is left out, and said: of pods, all but
    those of --namespace where you may not list the whole cluster's.
    """
    if watch and (file or output not in ("table", "wide")):
        less = "--snapshot" if file else f"-o {output}"
        raise click.UsageError(f"--watch shows tables of the cluster: leave out {less}, or run the command repeatedly.")
    # The help and a shell's Tab need neither the tables nor what they are made from.
    from deviceshare.cli import gpushare_table, inspect_view, manifests, snapshot  # noqa: PLC0415
    from deviceshare.cli.output import answer_with, note  # noqa: PLC0415

    within, full, wide = namespace or target.namespace, details or bool(node), output == "wide"
    if watch:
        with suppress(KeyboardInterrupt):
            target.ask(lambda api: inspect_view.follow(api, within, node, details=full, wide=wide), seconds=None)
        return
    seen = snapshot.replayed(manifests.given(file)) if file else target.ask(lambda api: snapshot.look(api, within))
    picture = inspect_view.picture(seen, node)
    if output == "cgpu":
        gpushare_table.show_table(picture, details=details)
    else:
        now = datetime.now(UTC)
        answer_with(picture, output, lambda: inspect_view.view(picture, now=now, details=full, wide=wide))
    note(each.text for each in seen.unseen)
