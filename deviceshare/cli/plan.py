"""`deviceshare plan`: where manifests would land, without applying them."""

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
from msgspec.structs import replace

from deviceshare.cli import inspect_view
from deviceshare.cli import output as out
from deviceshare.cli.cluster import Target
from deviceshare.cli.manifests import Manifests, given, wanted
from deviceshare.cli.parameters import complete_namespaces, on_cluster, output_as
from deviceshare.cli.snapshot import ClusterSnapshot, labels_text, look, replayed, take_in
from deviceshare.domain.admission.settings import OTHER_SCHEDULERS
from deviceshare.domain.answers.device_parts import parts_text
from deviceshare.domain.answers.plan import PlacedPod, Placement, Plan, Planner
from deviceshare.domain.objects.nodes import admits
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.workloads import admitted, pod_on
from deviceshare.domain.wording import counted, listed
from deviceshare.kube import kubeconfig

WAITS = 3
"""The exit status when something would wait; 1 and 2 are failures in every command."""

_file = click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)


@click.command(
    short_help="Show where manifests would land, without applying them.",
    epilog="""\b
Examples:
  deviceshare plan -f team.yaml                        on the cluster as it is now
  deviceshare plan -f team.yaml --nodes nodes.yaml     without any cluster; deviceshare snapshot writes such a file
  kubectl get nodes,nodedevices,sdg,dq,ns -o yaml > nodes.yaml    how to create that file; or in short form:
    - {name: gpu-1, devices: {nvidia.com/gpu: 8}, labels: {zone: west, nvidia.com/gpu.memory: "16384"}}

\b
Exit codes: 0 everything is placed, 1 failed, 2 wrong flags or files, 3 something would wait.""",
)
@click.option(
    "-f", "--filename", "files", type=_file, multiple=True, required=True, help="Manifests; - is standard input."
)
@click.option("--nodes", type=_file, help="Plan for the nodes in this file instead of a cluster's.")
@click.option("-d", "--details", is_flag=True, help="The nodes as they would be then, too; nothing folded.")
@output_as("table", "json", "yaml")
@click.option(
    "-n", "--namespace", metavar="NAME", shell_complete=complete_namespaces, help="Of manifests that name none."
)
@on_cluster
def plan(
    target: Target, files: tuple[Path, ...], nodes: Path | None, output: str, namespace: str | None, *, details: bool
) -> None:
    """Show which group or share would land where, with which devices, and which would wait for what.

    Takes SharedDeviceGroups, Pods, Deployments, ReplicaSets, ReplicationControllers, StatefulSets, DaemonSets, Jobs and
    CronJobs, and the pod templates in objects of any other kind, such as RayClusters. Manifests of gpushare
    (aliyun.com/gpu-mem) and MetaGPU (cnvrg.io/metagpu) are taken as the webhook takes them.
    Namespaces and DeviceQuotas, of these files and of --nodes, count as if they had been applied.
    Nothing is written anywhere. Devices, labels and claims are weighed as deviceshare itself does; cordons, taints,
    node selectors and required node affinity as kube-scheduler does. CPU, memory and pods beside are not. What you
    may not read is not considered, and said.
    """
    within = namespace or (kubeconfig.DEFAULT if nodes else target.namespace)
    new = wanted(files, within)
    if not new.groups and not new.pods:
        out.note(new.notes)
        none = "no pod or pod template that names one or asks for a share"
        raise click.UsageError(f"The files hold no SharedDeviceGroup, and {none}.")
    seen = replayed(given(nodes)) if nodes else target.ask(lambda api: look(api, within))
    answer = _plan(seen, new)
    notes = [*answer.notes, *(each.text for each in answer.unseen)]
    out.answer_with(answer, output, lambda: view(answer, details=details), notes)
    sys.exit(0 if answer.complete else WAITS)


def _plan(seen: ClusterSnapshot, new: Manifests) -> Plan:
    take_in(seen, new)
    groups = dict(seen.groups)
    for name, group in new.groups.items():
        # UID and status stay those of the existing group; the spec is the manifest's.
        planned = replace(known, spec=group.spec) if (known := seen.groups.get(name)) else group
        groups[name] = seen.visibility.group(planned)
    named = dict.fromkeys([*new.groups, *(pod.group for pod in new.pods if pod.group in groups)])
    pods = [admitted(pod, OTHER_SCHEDULERS) for pod in _everywhere(seen, new)]
    answer = Planner(seen.fleet, groups, seen.pods).plan(list(named), pods)
    return replace(answer, notes=[*new.notes, *_not_compared(seen, new)], unseen=list(seen.unseen))


def _not_compared(seen: ClusterSnapshot, new: Manifests) -> Iterator[str]:
    """The selectors of groups that no node's or namespace's labels were compared with."""
    for group in new.groups.values():
        allowed = group.spec.allowed_namespaces
        namespaces = {pod.metadata.namespace for pod in new.pods if pod.group == group.name}
        unknown = sorted(each for each in namespaces if not seen.fleet.namespaces.knows(each))
        if seen.fleet.namespaces.hidden and allowed and allowed.selector and unknown:
            which = f"for namespace{'s' * (len(unknown) > 1)} {listed(unknown)}, whose labels aren't known"
            yield f"group {group.name}: its allowedNamespaces.selector {allowed.selector} was not considered {which}"
        if group.spec.node_selector and not seen.visibility.nodes:
            yield f"group {group.name}: its nodeSelector {labels_text(group.spec.node_selector)} was not considered"


def _everywhere(seen: ClusterSnapshot, new: Manifests) -> Iterator[Pod]:
    """The pods, with one for each shared node that a DaemonSet's template matches."""
    for pod in new.pods:
        known = seen.visibility.pod(pod)
        if pod.metadata.key in new.daemons:
            spec, nodes = known.spec, seen.fleet.shared_nodes()
            able = (node.metadata.name for node in nodes if admits(spec.node_selector, spec.affinity, node))
            yield from (pod_on(known, name) for name in able)
        else:
            yield known


def view(plan: Plan, *, details: bool) -> list[out.Part]:
    """The sections, with an empty line between; `details` adds the nodes and folds nothing."""
    shown, placed = None if details else out.SHOWN, [group for group in plan.groups if group.node]
    sections = [
        out.folded(placed, out.tabled(("GROUP", "NODE", "DEVICES", "PODS", "WHY"), _placed), shown, "group"),
        out.folded(plan.pods, out.tabled(("POD", "NODE", "SHARE", "GROUP", "WHY"), _share), shown, "pod"),
        _waiting(plan, shown),
        inspect_view.nodes(plan.after, None, wide=False) if details else [],
    ]
    return [*out.spaced(sections), out.styled("Then", "bold"), *inspect_view.total(plan.after)]


def _placed(group: Placement) -> Iterator[out.Row]:
    held = " ".join(f"{resource} {indices}" for resource, indices in group.devices.items())
    why = "; ".join(filter(None, (_where(group.equals, already=group.already), group.why_these)))
    yield out.group_name(group.group), out.styled(group.node, "green"), held, str(len(group.pods)), why


def _share(pod: PlacedPod) -> Iterator[out.Row]:
    where = _where(pod.equals, already=pod.already, only=bool(pod.group))
    yield pod.pod, out.styled(pod.node, "green"), parts_text(pod.shares), out.group_name(pod.group), where


def _where(equals: int, *, already: bool, only: bool = False) -> str:
    if already:
        return "lives there already"
    if only:
        return "where its group lives"
    return f"as good as {counted(equals, 'other node')}" if equals else "the best node"


def _waiting(plan: Plan, shown: int | None) -> list[out.Part]:
    named = {pod.group for pod in plan.waiting}
    parts = inspect_view.waiting(plan.waiting, shown, datetime.now(UTC))
    for group in (each for each in plan.groups if not each.node and each.group not in named):
        parts = parts or [out.styled("WAITING", "bold")]
        parts += [out.joined("group ", out.group_name(group.group)), out.indented([(group.message,)])]
    why = shown and any(pod.why.details for pod in plan.waiting)
    return [*parts, out.styled("Why on each node: -d", "dim")] if why else parts
