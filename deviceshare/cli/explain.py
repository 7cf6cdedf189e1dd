"""`deviceshare explain`: why a pod or a group waits, or why it is where it is."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import click
from msgspec.structs import replace

from deviceshare.cli.cluster import Target
from deviceshare.cli.output import Cell, Part, Row, answer_with, folded, joined, note, styled, table
from deviceshare.cli.parameters import (
    complete_groups,
    complete_pods,
    did_you_mean,
    in_namespace,
    on_cluster,
    output_as,
    pod_named,
    suggestion,
)
from deviceshare.cli.snapshot import ClusterSnapshot, guard_of, labels_text, look
from deviceshare.domain.answers.device_parts import SHOWN_PODS, parts_text
from deviceshare.domain.answers.explanation import Explanation, explain_group, explain_pod
from deviceshare.domain.answers.verdicts import DeviceVerdict, NodeVerdict
from deviceshare.domain.objects.devices import described
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import ReasonKind
from deviceshare.domain.wording import listed
from deviceshare.loops.kinds import NODES, PODS
from deviceshare.loops.ports import Forbidden, NotFound

if TYPE_CHECKING:
    from deviceshare.kube.api import Api


SHOWN: Final = 5
"""Nodes, each with all its devices, before the rest is counted; as many as a condition names."""


class Case(NamedTuple):
    """A group, where there is one, and what belongs to it."""

    seen: ClusterSnapshot
    group: Group | None
    home: Node | None

    @property
    def pods(self) -> list[Pod]:
        """The pods that name the group."""
        return [pod for pod in self.seen.pods.values() if self.group and pod.group == self.group.name]


_details = click.option("-d", "--details", is_flag=True, help="Every node and every device, nothing folded.")


@click.group(
    short_help="Explain why a pod or a group waits, or is where it is.",
    epilog="""\b
Examples:
  deviceshare explain group team-a         what it waits for, node by node; or what it has and why
  deviceshare explain pod trainer          where its share would fit, device by device; or what it has
  deviceshare explain group team-a -d      every node and every device
\b
Exit codes: 0 explained, 1 failed or not found, 2 wrong flags.""",
)
def explain() -> None:
    """Explain why a pod or a group waits, or why it is where it is.

    The first line is what the group's condition Bound and its events say. The verdicts below are those of the
    scheduler extender, for the cluster as it is now.
    """


@explain.command(short_help="What a group waits for, or what it has.")
@click.argument("name", shell_complete=complete_groups)
@_details
@output_as("table", "json", "yaml")
@on_cluster
def group(target: Target, name: str, output: str, *, details: bool) -> None:
    """Explain the SharedDeviceGroup NAME."""
    case = target.ask(lambda api: _case(api, name, target.namespace))
    if case.group is None:
        raise click.ClickException(
            f"There is no SharedDeviceGroup {name}; see them with kubectl get sdg{did_you_mean(name, case.seen.groups)}"
        )
    partly = not case.seen.visibility.whole
    explanation = explain_group(case.seen.fleet, case.group, case.pods, case.home, partly_seen=partly)
    _answer(explanation, case, output, details=details)


@explain.command(short_help="What a pod waits for, or what it has.")
@click.argument("name", metavar="[NAMESPACE/]NAME", shell_complete=complete_pods)
@in_namespace
@_details
@output_as("table", "json", "yaml")
@on_cluster
def pod(target: Target, name: str, namespace: str | None, output: str, *, details: bool) -> None:
    """Explain a pod, by default of the namespace of the kubeconfig's context."""
    within, name = pod_named(name, namespace, target)

    async def ask(api: "Api") -> tuple[Pod, Case]:
        # A list: a get would refuse a pod with unreadable fields, which can be explained.
        found = await api.list(PODS, namespace=within, field_selector=f"metadata.name={name}")
        if not found:
            near = await suggestion(api, PODS, name, within)
            raise click.ClickException(
                f"There is no pod {within}/{name}; see them with kubectl get pods -n {within}{near}"
            )
        seen = (await guard_of(api))(found[0])
        return seen, await _case(api, seen.group, within)

    asked, case = target.ask(ask)
    partly = not case.seen.visibility.whole
    explanation = explain_pod(case.seen.fleet, asked, case.group, case.pods, case.home, partly_seen=partly)
    _answer(explanation, case, output, details=details)


async def _case(api: "Api", name: str, namespace: str) -> Case:
    seen = await look(api, namespace)
    found = seen.groups.get(name)
    home = seen.fleet.node(found.node) if found else None
    if found and found.node and home is None:  # only shared nodes were listed: is it deleted, or no longer shared?
        with suppress(NotFound, Forbidden):
            home = await api.get(NODES, found.node)
    return Case(seen, found, home)


def _answer(explanation: Explanation, case: Case, output: str, *, details: bool) -> None:
    answer = replace(explanation, unseen=list(case.seen.unseen))
    if case.group and not case.group.node and (selector := case.seen.selectors.get(case.group.name)):
        # It may rule out the node that fits best.
        known = {name: fact for name, fact in answer.facts.items() if not name.startswith("would ")}
        not_compared = f"{labels_text(selector)}, which the verdicts leave out: you can't list nodes"
        answer = replace(answer, facts={**known, "nodeSelector": not_compared})
    answer_with(answer, output, lambda: view(answer, details=details))
    note(each.text for each in case.seen.unseen)


def view(explanation: Explanation, *, details: bool) -> list[Part]:
    """The message, the facts, the nodes; `details` folds nothing."""
    parts: list[Part] = [explanation.message]
    if explanation.facts:
        parts += ["", table(("", ""), ((styled(name, "bold"), fact) for name, fact in explanation.facts.items()))]
    if explanation.nodes:
        columns, shown = ("NODE", "DEVICE", "VERDICT", "WHAT WOULD FREE IT"), None if details else SHOWN
        rows = partial(_rows, details=details)
        parts += ["", *folded(columns, explanation.nodes, rows, shown, "node", summary=_summary)]
    return parts


def _rows(node: NodeVerdict, *, details: bool) -> Iterator[Row]:
    yield node.node, "", _verdict(node), ""
    if not details and not (node.why and node.why.kind is ReasonKind.TOO_FULL):
        return  # devices are listed only where a lack of them is the obstacle
    alike: defaultdict[tuple[str, str, str], list[DeviceVerdict]] = defaultdict(list)
    for device in node.devices:
        alike[device.resource, str(_state(device, details=details)), device.cure].append(device)
    for (resource, _, cure), devices in alike.items():
        numbers = ",".join(str(device.index) for device in devices)
        yield "", f"{resource} {numbers}", _state(devices[0], details=details), cure


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
    held = parts_text(node.shares) if node.shares else described(node.would_get)
    why = f", {node.why_these}" if node.why_these else ""
    score = "fits" if node.score is None else f"fits, scores {node.score} of 10"
    return joined(styled(score, "green"), f"; would get {held}{why}" if held else "")


def _summary(rest: list[NodeVerdict]) -> str:
    fits = sum(node.fits for node in rest)
    return f"{fits} of them fit" if fits else "none of them fits"
