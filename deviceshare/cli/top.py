"""`deviceshare top`: utilization, memory and processes of every shared device.

The nodes' agents are asked through the API server: people rarely have another way to a pod. An agent doesn't know who
holds a device; the ledgers say that.
"""

import asyncio
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import click
from msgspec import Struct, field, structs

from deviceshare.cli.cluster import Target, explained, missing_right
from deviceshare.cli.output import Cell, Part, Row, answer_with, group_name, joined, note, screen, styled, table
from deviceshare.cli.parameters import complete_nodes, no_such, on_cluster
from deviceshare.cli.turns_table import turns_table
from deviceshare.domain import contract
from deviceshare.domain.answers.device_parts import PodPart, parts
from deviceshare.domain.answers.picture import Unseen
from deviceshare.domain.answers.pod_view import NONE, numbers, processes
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.usage import DeviceUsage, TurnQueue, Usage
from deviceshare.domain.placement.device_states import DeviceState, device_states
from deviceshare.loops.kinds import NODE_DEVICES, PODS
from deviceshare.loops.ports import ApiError, Forbidden, Unavailable

if TYPE_CHECKING:
    from deviceshare.kube.api import Api

WATCH_SECONDS = 2.0
LABEL: Final = f"app.kubernetes.io/name={contract.AGENT}"
AT_ONCE: Final = 32
"""Agents asked at the same time: each request takes two connections of the API server."""
ANSWER_SECONDS: Final = 5.0
_NOT_ASKED: Final = "Agents can't be asked by you: utilization, used memory and processes are not known."


class DeviceNow(DeviceUsage, frozen=True, rename="camel", omit_defaults=True):
    """A device, what it does, and who holds it."""

    groups: list[str] = field(default_factory=list)
    """The groups that hold it or, after a rebind, whose pods may still use it."""
    parts: list[PodPart] = field(default_factory=list)
    """The pods that have parts of it."""
    unhealthy: str = ""


class NodeNow(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A shared node. `silent` says why nothing is known of it; empty where its agent answered."""

    node: str
    time: str = ""
    silent: str = ""
    devices: list[DeviceNow] = field(default_factory=list)
    turns: list[TurnQueue] = field(default_factory=list)
    unmeasured: bool = False
    """Whether its agent was not asked: the devices are those of its ledger, and what they do is not known."""


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
@click.option("--output", "-o", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option("--namespace", "-n", default=contract.NAMESPACE, show_default=True, help="Where the agents run.")
@on_cluster
def top(node: str, output: str, namespace: str, *, watch: bool, target: Target) -> None:
    """Show utilization, memory and processes of devices now, and who has turns, on all shared nodes or on NODE.

    The nodes' agents report it, through the API server: this takes the right to get pods/proxy in their namespace
    (ClusterRole deviceshare-top). Without it, devices and holders are shown as NodeDevices have them.
    """
    if watch and output != "table":
        raise click.UsageError("--watch shows a table; programs repeat: deviceshare top -o json")
    if watch:
        with suppress(KeyboardInterrupt):  # the last drawing stays on the screen
            target.ask(lambda api: _watch(api, namespace, node), seconds=None)
        return
    nodes, unseen = target.ask(lambda api: _look(api, namespace, node))
    answer = {"nodes": nodes, "unseen": unseen} if unseen else {"nodes": nodes}
    answer_with(answer, output, lambda: _drawn(nodes), (each.text for each in unseen))
    sys.exit(1 if all(each.silent for each in nodes) else 0)


async def _watch(api: "Api", namespace: str, node: str) -> None:
    (nodes, unseen), trouble = await _look(api, namespace, node), ""
    note(each.text for each in unseen)
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
    lines += [] if answered else [styled("Agents have to be installed and reachable: see docs/agent.md")]
    lines += [styled(trouble, "red")] if trouble else []
    turns = turns_table([(each.node, queue) for each in answered for queue in each.turns], None)
    return [*([cluster_table(answered)] if answered else []), *(["", *turns] if turns else []), *lines]


def cluster_table(nodes: list[NodeNow]) -> Part:
    """The devices of nodes whose agents answered: a line for each, and below it one for each of its processes."""
    columns = ("NODE", "DEVICE", "UTIL", "MEMORY (MiB)", "GROUP / POD", "CONTAINER", "MODEL / PROCESS", "PID", "")
    rows: list[Row] = []
    for node, device in ((each, device) for each in nodes for device in each.devices):
        name, measured = node.node if device is node.devices[0] else "", numbers(device)
        if node.unmeasured:
            measured = str(device.index), NONE, f"{NONE} / {device.memory_total_mib or NONE}"
        unhealthy = styled(device.unhealthy, "red")
        rows.append((styled(name, "bold"), *measured, _holders(device), "", device.model, "", unhealthy))
        greedy = {(share.pod, share.container) for share in device.shares if share.exceeded}
        for memory, process in processes(device):
            whose = styled(process.pod or "no pod", "" if process.pod else "dim")
            over = {(process.pod, process.container), (process.pod, "")} & greedy
            fault = styled("trespass" if process.trespass else "more than its share" if over else "", "red")
            program = process.name or NONE
            rows.append(("", "", "", memory, whose, process.container, program, str(process.pid), fault))
    return table(columns, rows)


def _holders(device: DeviceNow) -> Cell:
    """Its groups, the one pod with a part of it, or how many pods have one."""
    if device.groups:
        return joined(*map(group_name, device.groups), between=", ")
    if len(device.parts) == 1:
        return str(device.parts[0])
    return f"{len(device.parts)} pods share it" if device.parts else NONE


async def _look(api: "Api", namespace: str, node: str) -> tuple[list[NodeNow], list[Unseen]]:
    """All shared nodes, or the one of this name. For who may not reach agents, what ledgers say, and a note on that."""
    unseen, ledgers = list[Unseen](), {ledger.node: ledger for ledger in await api.list(NODE_DEVICES)}
    try:
        nodes = await _ask(api, namespace, node, ledgers)
    except Forbidden as error:
        nodes = [_read(ledgers[name]) for name in sorted(ledgers) if node in ("", name)]
        right = missing_right(error)
        proxy = right._replace(verb="get", resource="pods/proxy") if right else None
        cure = f"The ClusterRole {proxy.role} permits it:\n  {proxy.cure}" if proxy else explained(error)
        unseen.append(Unseen("usage", f"{_NOT_ASKED} {cure}"))
    if nodes:
        return nodes, unseen
    if node:
        missing = f"{node} is not a shared node; list them with: kubectl get nodedevices"
        raise await no_such(api, NODE_DEVICES, node, missing=missing)
    share = f"kubectl label node NODE {contract.MODE_LABEL}={contract.MODE_SHARED}"
    raise click.ClickException(f"No node is shared; share one: {share}")


def _read(ledger: NodeDevices) -> NodeNow:
    devices = []
    for state in device_states(ledger):
        if not state.lost:
            device, model = state.device, state.part.model if state.part else ""
            usage = DeviceUsage(device.resource, device.index, device.uuid, model, memory_total_mib=state.memory_mib)
            devices.append(_with_holders(usage, [state]))
    return NodeNow(ledger.node, devices=devices, unmeasured=True, silent="" if devices else "it has no devices")


async def _ask(api: "Api", namespace: str, node: str, ledgers: Mapping[str, NodeDevices]) -> list[NodeNow]:
    """What the agents of shared nodes, or of this one, answer; sorted by name."""
    slots, pods = asyncio.Semaphore(AT_ONCE), await api.list(PODS, namespace=namespace, label_selector=LABEL)
    # A terminating agent may be listed beside its successor, which counts.
    pods.sort(key=lambda pod: pod.status.phase == "Running" and not pod.metadata.deletion_timestamp)
    agents = {pod.node: pod for pod in pods}
    names = sorted(name for name in ledgers.keys() | agents.keys() if name and node in ("", name))

    async def look(name: str) -> NodeNow:
        async with slots:
            return await _ask_node(api, name, agents.get(name), ledgers.get(name, NodeDevices()))

    try:
        async with asyncio.TaskGroup() as group:
            looks = [group.create_task(look(name), name=f"ask {name}") for name in names]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from failed
    return [each.result() for each in looks]


async def _ask_node(api: "Api", name: str, agent: Pod | None, ledger: NodeDevices) -> NodeNow:
    if agent is None:
        return NodeNow(name, silent="no agent runs there")
    meta = agent.metadata
    if agent.status.phase != "Running":
        return NodeNow(name, silent=f"its agent {meta.name} is {agent.status.phase or 'not there yet'}")
    try:
        usage = await api.ask_pod(
            meta.namespace, meta.name, contract.AGENT_PORT, "usage", Usage, timeout=ANSWER_SECONDS
        )
    except Forbidden:
        raise  # all agents are asked with the same rights
    except ApiError as error:
        return NodeNow(name, silent=f"its agent {meta.name} doesn't answer: {error}")
    devices = [_with_holders(device, device_states(ledger)) for device in usage.devices]
    return NodeNow(name, usage.time, devices=devices, turns=usage.turns)


def _with_holders(usage: DeviceUsage, states: Iterable[DeviceState]) -> DeviceNow:
    seen = (each for each in states if not (each.part and each.part.lost))  # a lost one's number may be another's now
    number = (usage.resource, usage.index)
    device = DeviceNow(**structs.asdict(usage))
    for state in (each for each in seen if (each.device.resource, each.device.index) == number):
        groups = [state.group] if state.group else []
        return structs.replace(device, groups=groups, parts=parts(state), unhealthy=state.unhealthy)
    return device
