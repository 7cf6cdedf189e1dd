"""`deviceshare explain`: why a pod or a group waits, or why it is where it is."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import click
from msgspec import Struct, field
from msgspec.structs import replace

from deviceshare.cli import parameters
from deviceshare.cli.cluster import Target
from deviceshare.cli.manifests import given
from deviceshare.cli.output import Cell, Part, Row, answer_with, folded, indented, joined, styled, table
from deviceshare.cli.snapshot import ClusterSnapshot, labels_text, look, replayed, settings_of
from deviceshare.domain import contract
from deviceshare.domain.admission.bypasses import bypasses
from deviceshare.domain.admission.drafts import Draft, concern_of
from deviceshare.domain.admission.pod_injection import inject
from deviceshare.domain.admission.settings import DEFAULTS
from deviceshare.domain.answers import explanation as explanations
from deviceshare.domain.answers.device_parts import SHOWN_PODS
from deviceshare.domain.answers.explanation import Case, DeviceVerdict, Explanation, NodeVerdict
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.object_decoder import Condition, NamedObject
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import ReasonKind
from deviceshare.domain.wording import listed
from deviceshare.kube.api import Api
from deviceshare.loops.kinds import EVENTS, NODES, PODS
from deviceshare.loops.ports import Forbidden, Kind, NotFound

SHOWN: Final = 5
"""Nodes, each with all its devices, before the rest is counted; as many as a condition names."""


_details = click.option("-d", "--details", is_flag=True, help="Every node and every device, nothing folded.")


@click.group(
    short_help="Explain why a pod or a group waits, or is where it is.",
    epilog="""\b
Examples:
  deviceshare explain group team-a         what it waits for, node by node; or what it has and why
  deviceshare explain pod trainer          where its share would fit, device by device; or what it has
  deviceshare explain deployment infer     its pods, and what admission said of them to its controller
  deviceshare explain group team-a -d      every node and every device

\b
Exit codes: 0 explained, 1 failed or not found, 2 wrong flags.""",
)
def explain() -> None:
    """Explain why a pod or a group waits, or why it is where it is.

    The first line is how the group's condition Bound and its events begin. The verdicts below are those of the
    scheduler extender, for the cluster as it is now.
    """


@explain.command(short_help="What a group waits for, or what it has.")
@click.argument("name", shell_complete=parameters.complete_groups)
@_details
@parameters.on_snapshot
@parameters.output_as("table", "json", "yaml")
@parameters.on_cluster
def group(target: Target, name: str, file: Path | None, output: str, *, details: bool) -> None:
    """Explain the SharedDeviceGroup NAME."""
    found = _case(replayed(given(file)), name) if file else target.ask(lambda api: _asked(api, name, target.namespace))
    seen, case = found
    if case.group is None:
        near = parameters.did_you_mean(name, seen.groups)
        raise click.ClickException(f"There is no SharedDeviceGroup {name}; see them with kubectl get sdg{near}")
    _answer(explanations.explain_group(case), seen, case.group, output, details=details)


@explain.command(short_help="What a pod waits for, or what it has.")
@click.argument("name", metavar="[NAMESPACE/]NAME", shell_complete=parameters.complete_pods)
@parameters.in_namespace
@_details
@parameters.on_snapshot
@parameters.output_as("table", "json", "yaml")
@parameters.on_cluster
def pod(target: Target, name: str, namespace: str | None, file: Path | None, output: str, *, details: bool) -> None:
    """Explain a pod, by default of the namespace of the kubeconfig's context."""
    within, name = parameters.pod_named(name, namespace, target)

    async def ask(api: Api) -> tuple[Pod, ClusterSnapshot, Case]:
        # A list: a get would refuse a pod with unreadable fields, which can be explained.
        found = await api.list(PODS, namespace=within, field_selector=f"metadata.name={name}")
        if not found:
            raise await parameters.no_such(api, PODS, name, within)
        guard, _ = await settings_of(api)
        guarded = guard(found[0])
        return guarded, *await _asked(api, guarded.group, within)

    if file:
        recorded, key = given(file), f"{within}/{name}"
        pods = {pod.metadata.key: pod for pod in recorded.pods}
        if key not in pods:
            near = parameters.did_you_mean(key, pods)
            raise click.ClickException(f"{file} has no pod {key}, or it wants no devices{near}")
        asked, seen, case = pods[key], *_case(replayed(recorded), pods[key].group)
    else:
        asked, seen, case = target.ask(ask)
    _answer(explanations.explain_pod(case, asked), seen, case.group, output, details=details)


class _TemplateSpec(Struct, frozen=True):
    template: Draft = Draft()


class _WorkloadConditions(Struct, frozen=True):
    conditions: list[Condition] = field(default_factory=list)


class _Workload(NamedObject, frozen=True):
    """What Deployments, StatefulSets, DaemonSets, ReplicaSets and Jobs have in common."""

    spec: _TemplateSpec = _TemplateSpec()
    status: _WorkloadConditions = _WorkloadConditions()


_WORKLOADS: Final = {
    kind: Kind("batch/v1" if kind == "Job" else "apps/v1", kind, f"{kind.lower()}s", _Workload, namespaced=True)
    for kind in ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job")
}


def _command(kind: Kind[_Workload]) -> None:
    """Adds `explain deployment`, and the like."""

    @explain.command(kind.kind.lower(), short_help=f"What the pods of a {kind.kind} have or wait for.")
    @click.argument("name", metavar="[NAMESPACE/]NAME", shell_complete=parameters.completing(kind))
    @parameters.in_namespace
    @parameters.output_as("table", "json", "yaml")
    @parameters.on_cluster
    def workload(target: Target, name: str, namespace: str | None, output: str) -> None:
        within, name = parameters.pod_named(name, namespace, target)
        answer = target.ask(lambda api: _explained(api, kind, name, within))
        answer_with(answer, output, lambda: view(answer, details=False), (each.text for each in answer.unseen))

    workload.help = f"Explain a {kind.kind}: what its pods wait for or have, and what admission says of its template."


for _each in _WORKLOADS.values():
    _command(_each)


async def _explained(api: Api, kind: Kind[_Workload], name: str, namespace: str) -> Explanation:
    found = await parameters.named_object(api, kind, name, namespace)
    seen, owners = await look(api, namespace), [found]
    if kind.kind == "Deployment":
        sets = await api.list(_WORKLOADS["ReplicaSet"], namespace=namespace)
        uid = found.metadata.uid
        owners += [each for each in sets if each.metadata.controller and each.metadata.controller.uid == uid]
    uids = {each.metadata.uid for each in owners}
    pods = [pod for pod in seen.pods.values() if pod.metadata.controller and pod.metadata.controller.uid in uids]
    subject = f"{kind.kind} {namespace}/{name}"
    answer = explanations.explain_workload(seen.fleet, subject, pods, seen.groups, seen.pods.values())
    template = found.spec.template
    concern = concern_of(template.metadata, template.spec.share, DEFAULTS.dialects)
    injection = inject(template, seen.groups.get(concern.group) if concern else None, settings=DEFAULTS)
    told = "\n".join(pod.metadata.annotations.get(contract.WARNINGS, "") for pod in pods).split("\n")
    warnings = [*(dict.fromkeys(filter(None, told)) or injection.warnings), *(bypasses(template) if concern else ())]
    refused = await _refused(api, owners, namespace, has_pods=bool(pods)) or injection.refusal
    if concern is None and not (pods or refused):
        alone = "its pods name no group and ask for no share, so deviceshare leaves them alone"
        answer = replace(answer, message=alone)
    return replace(answer, not_created=refused, warnings=warnings, unseen=list(seen.unseen))


async def _refused(api: Api, owners: list[_Workload], namespace: str, *, has_pods: bool) -> str:
    """Why the controller can't create pods: Deployments and ReplicaSets have a condition, others only Events."""
    every = (condition for each in reversed(owners) for condition in each.status.conditions)
    said = (each.message for each in every if each.type == "ReplicaFailure" and each.status == "True")
    if message := next(filter(None, said), ""):
        return message
    if not has_pods:  # else what was said before is over
        with suppress(Forbidden):
            chosen = f"involvedObject.uid={owners[0].metadata.uid},reason=FailedCreate"
            events = await api.list(EVENTS, namespace=namespace, field_selector=chosen)
            return max(events, key=lambda event: event.last_timestamp or "").message if events else ""
    return ""


def _case(seen: ClusterSnapshot, name: str) -> tuple[ClusterSnapshot, Case]:
    found = seen.groups.get(name)
    home = seen.fleet.node(found.node) if found else None
    return seen, Case(seen.fleet, found, home, seen.pods.values(), not seen.visibility.whole)


async def _asked(api: Api, name: str, namespace: str) -> tuple[ClusterSnapshot, Case]:
    seen, case = _case(await look(api, namespace), name)
    if case.group and case.group.node and case.home is None:
        with suppress(NotFound, Forbidden):  # only shared nodes were listed: is it deleted, or no longer shared?
            return seen, case._replace(home=await api.get(NODES, case.group.node))
    return seen, case


def _answer(
    explanation: Explanation, seen: ClusterSnapshot, group: Group | None, output: str, *, details: bool
) -> None:
    answer = replace(explanation, unseen=list(seen.unseen))
    if group and not group.node and (selector := seen.selectors.get(group.name)):
        # It may rule out the node that fits best.
        known = {name: fact for name, fact in answer.facts.items() if not name.startswith("would ")}
        not_compared = f"{labels_text(selector)}, which the verdicts leave out: you can't list nodes"
        answer = replace(answer, facts={**known, "nodeSelector": not_compared})
    answer_with(answer, output, lambda: view(answer, details=details), (each.text for each in answer.unseen))


def view(explanation: Explanation, *, details: bool) -> list[Part]:
    """The message, the facts, the nodes, and of a workload what its pods wait for; `details` folds nothing."""
    # What speaks against each node is said below.
    message = explanation.why.headline if explanation.why and explanation.nodes else explanation.message
    parts: list[Part] = [message]
    facts = {"can't create pods": explanation.not_created, **explanation.facts}
    if rows := [(styled(name, "bold"), fact) for name, fact in facts.items() if fact]:
        parts += ["", table(("", ""), rows)]
    if explanation.waiting:
        shown = ((listed(each.pods, most=SHOWN), styled(each.reason, "yellow")) for each in explanation.waiting)
        parts += ["", table(("WAITING", "FOR"), shown)]
    if explanation.warnings:
        parts += ["", table(("ADMISSION WARNS",), ((each,) for each in explanation.warnings))]
    if explanation.nodes:

        def fitting(rest: list[NodeVerdict]) -> str:
            return f"{fits} of them fit" if (fits := sum(node.fits for node in rest)) else "none of them fits"

        nodes, most = partial(_nodes, details=details), None if details else SHOWN
        parts += ["", *folded(explanation.nodes, nodes, most, "node", summary=fitting)]
    return parts


def _nodes(nodes: list[NodeVerdict], *, details: bool) -> list[Part]:
    parts: list[Part] = []
    for node in nodes:
        parts.append(joined(styled(node.node, "bold"), ": ", _verdict(node)))
        # Devices are listed only where a lack of them is the obstacle.
        if details or (node.why and node.why.kind is ReasonKind.TOO_FULL):
            parts.append(indented(_devices(node, details=details)))
    return parts


def _devices(node: NodeVerdict, *, details: bool) -> Iterator[Row]:
    alike: defaultdict[tuple[str, str, str], list[DeviceVerdict]] = defaultdict(list)
    for device in node.devices:
        alike[device.resource, str(_state(device, details=details)), device.cure].append(device)
    for (resource, _, cure), devices in alike.items():
        numbers = ",".join(str(device.index) for device in devices)
        when = f"; what would free it: {cure}" if cure else ""
        yield f"{resource} {numbers}", joined(_state(devices[0], details=details), when)


def _state(device: DeviceVerdict, *, details: bool) -> Cell:
    """Why it can't be had or how much of it is free, and who has the rest."""
    has = ""
    if device.free and device.parts:
        has = f" ({listed(map(str, device.parts), most=0 if details else SHOWN_PODS)})"
    if device.reason:
        return f"{device.reason}{has}"
    return styled(f"{device.free} free{has}" if device.free else "free", "green")


def _verdict(node: NodeVerdict) -> Cell:
    if not node.fits:
        return styled(node.reason, "yellow")
    score = "fits" if node.score is None else f"fits, scores {node.score} of 10"
    return joined(styled(score, "green"), f"; would get {node.gets}" if node.gets else "")
