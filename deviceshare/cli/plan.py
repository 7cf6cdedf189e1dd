"""`deviceshare plan`: where manifests would land, without applying them."""

import sys
from collections.abc import Iterator
from pathlib import Path

import click
from msgspec.structs import replace

from deviceshare.cli import cluster
from deviceshare.cli.folding import SHOWN, folded
from deviceshare.cli.inspect_view import nodes as nodes_table
from deviceshare.cli.inspect_view import total
from deviceshare.cli.manifests import Manifests, Wanted, given, wanted
from deviceshare.cli.output import JSON, TABLE, YAML, Part, Row, answer_with, group_name, spaced, styled
from deviceshare.cli.snapshot import ClusterSnapshot, look, snapshot
from deviceshare.domain import contract
from deviceshare.domain.admission.injection_settings import OTHER_SCHEDULERS
from deviceshare.domain.answers.device_parts import parts_text
from deviceshare.domain.answers.plan import PlacedPod, Placement, Plan, Planner
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.workloads import admitted
from deviceshare.domain.wording import counted, listed

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
    - {name: gpu-1, devices: {nvidia.com/gpu: 8}, labels: {zone: west, nvidia.com/gpu.memory: "16384"}}
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
    """Show which group or share would land where, with which devices, and which would wait for what.

    Takes SharedDeviceGroups, Pods, Deployments, ReplicaSets, StatefulSets and Jobs; other kinds are ignored. Manifests
    of gpushare (aliyun.com/gpu-mem) and MetaGPU (cnvrg.io/metagpu) are taken as the webhook takes them.
    Nothing is written anywhere. Devices, labels and claims are weighed as deviceshare itself does; CPU, memory, taints
    and affinity, which kube-scheduler weighs, are not.
    """
    new = wanted(files)
    if not new.groups and not new.pods:
        raise click.UsageError("The files hold no SharedDeviceGroup, and no pod that names one or asks for a share.")
    seen = _from(given(nodes)) if nodes else target.ask(look)
    answer = _plan(seen, new)
    answer_with(answer, output, lambda: view(answer, details=details))
    sys.exit(0 if answer.complete else WAITS)


def _from(file: Manifests) -> ClusterSnapshot:
    ours = [pod for pod in file.pods if _is_ours(pod)]
    others = [pod for pod in file.pods if not _is_ours(pod) and pod.plugin_resources()]
    return snapshot(file.nodes, file.ledgers, file.groups, ours, others)


def _is_ours(pod: Pod) -> bool:
    return bool(pod.group) or contract.GROUP in pod.metadata.labels


def _plan(seen: ClusterSnapshot, new: Wanted) -> Plan:
    groups = dict(seen.groups)
    for group in new.groups:
        known = seen.groups.get(group.name)
        # UID and status stay those of the existing group; the spec is the manifest's.
        groups[group.name] = replace(known, spec=group.spec) if known else group
    named = dict.fromkeys(
        [*(group.name for group in new.groups), *(pod.group for pod in new.pods if pod.group in groups)]
    )
    pods = [admitted(pod, OTHER_SCHEDULERS) for pod in new.pods]
    return Planner(seen.fleet, groups, seen.pods).plan(list(named), pods)


def view(plan: Plan, *, details: bool) -> list[Part]:
    """The sections, with an empty line between; `details` adds the nodes and folds nothing."""
    shown = None if details else SHOWN
    sections = [
        _placed(plan, shown),
        _shares(plan, shown),
        _waiting(plan, shown),
        nodes_table(plan.after, None, wide=False) if details else [],
    ]
    return [*spaced(sections), styled("Then", "bold"), *total(plan.after)]


def _placed(plan: Plan, shown: int | None) -> list[Part]:
    def rows(placement: Placement) -> Iterator[Row]:
        held = " ".join(f"{resource} {indices}" for resource, indices in placement.devices.items())
        pods = str(len(placement.pods))
        yield group_name(placement.group), styled(placement.node, "green"), held, pods, _why(placement)

    placed = [placement for placement in plan.groups if placement.node]
    return folded(("GROUP", "NODE", "DEVICES", "PODS", "WHY"), placed, rows, shown, "group")


def _shares(plan: Plan, shown: int | None) -> list[Part]:
    def rows(pod: PlacedPod) -> Iterator[Row]:
        where = _where(pod.equals, already=pod.already, only=bool(pod.group))
        yield pod.pod, styled(pod.node, "green"), parts_text(pod.shares), group_name(pod.group), where

    return folded(("POD", "NODE", "SHARE", "GROUP", "WHY"), plan.pods, rows, shown, "pod")


def _why(placement: Placement) -> str:
    where = _where(placement.equals, already=placement.already)
    return f"{where}; {placement.why_these}" if placement.why_these else where


def _where(equals: int, *, already: bool, only: bool = False) -> str:
    if already:
        return "lives there already"
    if only:
        return "where its group lives"
    return f"as good as {counted(equals, 'other node')}" if equals else "the best node"


def _waiting(plan: Plan, shown: int | None) -> list[Part]:
    alike: dict[tuple[str, str], list[str]] = {}
    for waits in plan.waiting:
        alike.setdefault((waits.group, waits.reason), []).append(waits.pod)
    waiting = {group for group, _ in alike}
    for placement in plan.groups:
        if not placement.node and placement.group not in waiting:
            alike[placement.group, placement.message] = []

    def rows(line: tuple[tuple[str, str], list[str]]) -> Iterator[Row]:
        (group, reason), pods = line
        yield group_name(group) if group else "share", listed(pods, most=1) or "-", styled(reason, "yellow")

    return folded(("WAITING", "PODS", "REASON"), alike.items(), rows, shown, "line")
