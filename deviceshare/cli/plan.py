"""`deviceshare plan`: where manifests would land, without applying them."""

import sys
from pathlib import Path

import click
from msgspec.structs import replace

from deviceshare.cli import cluster
from deviceshare.cli.manifests import Manifests, Wanted, given, wanted
from deviceshare.cli.output import JSON, TABLE, YAML, print_answer, show
from deviceshare.cli.plan_view import view
from deviceshare.cli.snapshot import ClusterSnapshot, look, snapshot
from deviceshare.domain.answers.plan import Plan, Planner
from deviceshare.domain.objects.workloads import admitted

WAITS = 3
"""The exit status when something would wait; 1 and 2 are failures in every command."""

_file = click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)


@click.command(
    short_help="Show where manifests would land, without applying them.",
    epilog="""\b
Examples:
  deviceshare plan -f team.yaml                        on the cluster as it is now
  deviceshare plan -f team.yaml --nodes nodes.yaml     without any cluster
  kubectl get nodes,nodedevices -o yaml > nodes.yaml   how to create that file; or in short form:
    - {name: gpu-1, devices: {nvidia.com/gpu: 8}, labels: {zone: west}}
\b
Exit codes: 0 everything is placed, 1 failed, 2 wrong flags or files, 3 something would wait.""",
)
@click.option(
    "-f", "--filename", "files", type=_file, multiple=True, required=True, help="Manifests; - is standard input."
)
@click.option("--nodes", type=_file, help="Plan for the nodes in this file instead of a cluster's.")
@click.option("-d", "--details", is_flag=True, help="The nodes as they would be then, too; nothing folded.")
@click.option("-o", "--output", type=click.Choice([TABLE, JSON, YAML]), default=TABLE, help="For people or programs.")
@cluster.options
def plan(target: cluster.Target, files: tuple[Path, ...], nodes: Path | None, output: str, *, details: bool) -> None:
    """Show which group would land where, with which devices, and which would wait for what.

    Takes SharedDeviceGroups, Pods, Deployments, ReplicaSets, StatefulSets and Jobs; other kinds are ignored.
    Nothing is written anywhere. Devices, labels and claims are weighed as deviceshare itself does; CPU, memory, taints
    and affinity, which kube-scheduler weighs, are not.
    """
    new = wanted(files)
    if not new.groups and not new.pods:
        raise click.UsageError("The files hold no SharedDeviceGroup and no pod that names one.")
    seen = _from(given(nodes)) if nodes else target.ask(look)
    answer = _plan(seen, new)
    if output == TABLE:
        show(*view(answer, details=details))
    else:
        print_answer(answer, output)
    sys.exit(0 if answer.complete else WAITS)


def _from(file: Manifests) -> ClusterSnapshot:
    grouped = [pod for pod in file.pods if pod.group]
    others = [pod for pod in file.pods if not pod.group and pod.plugin_resources()]
    return snapshot(file.nodes, file.ledgers, file.groups, grouped, others)


def _plan(seen: ClusterSnapshot, new: Wanted) -> Plan:
    groups = dict(seen.groups)
    for group in new.groups:
        known = seen.groups.get(group.name)
        # UID and status stay those of the existing group; the spec is the manifest's.
        groups[group.name] = replace(known, spec=group.spec) if known else group
    named = dict.fromkeys(
        [*(group.name for group in new.groups), *(pod.group for pod in new.pods if pod.group in groups)]
    )
    return Planner(seen.fleet, groups).plan(list(named), [admitted(pod) for pod in new.pods])
