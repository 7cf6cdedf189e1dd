"""Usage reports of the nodes' agents, asked through the API server, with the holders that the ledgers name.

People rarely have another way to a pod. An agent doesn't know who holds a device; the ledgers say that.
"""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field, structs

from deviceshare.cli.missing_rights import explained, missing_right
from deviceshare.domain import contract
from deviceshare.domain.answers.device_parts import PodPart, parts
from deviceshare.domain.answers.picture import Unseen
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.usage import DeviceUsage, TurnQueue, Usage
from deviceshare.domain.placement.device_state import DeviceState
from deviceshare.domain.placement.device_states import device_states
from deviceshare.loops.kinds import NODE_DEVICES, PODS
from deviceshare.loops.ports import ApiError, Forbidden

if TYPE_CHECKING:
    from deviceshare.kube.api import Api

LABEL = f"app.kubernetes.io/name={contract.AGENT}"
AT_ONCE = 32
"""Agents asked at the same time: each request takes two connections of the API server."""
ANSWER_SECONDS = 5.0


class DeviceNow(DeviceUsage, frozen=True, rename="camel", omit_defaults=True):
    """A device, what it does, and who holds it."""

    groups: list[str] = field(default_factory=list)
    """Those that hold it or, after a rebind, whose pods may still use it."""
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


async def ask_or_read(api: "Api", namespace: str, node: str = "") -> tuple[list[NodeNow], list[Unseen]]:
    """As `ask`; for who may not reach agents, what ledgers say, and a note on that.

    Raises:
        Forbidden: the user may not even read ledgers.
        ApiError: ledgers or the agents' pods can't be read.
    """
    try:
        return await ask(api, namespace, node), []
    except Forbidden as error:
        ledgers = await api.list(NODE_DEVICES)
        known = [_read(each) for each in sorted(ledgers, key=lambda each: each.node) if node in ("", each.node)]
        right = missing_right(error)
        proxy = right._replace(verb="get", resource="pods/proxy") if right else None
        cure = f"The ClusterRole {proxy.role} permits it:\n  {proxy.cure}" if proxy else explained(error)
        return known, [Unseen("usage", f"{_NOT_ASKED} {cure}")]


_NOT_ASKED: Final = "Agents can't be asked by you: utilization, used memory and processes are not known."


def _read(ledger: NodeDevices) -> NodeNow:
    devices = [
        _with_holders(
            DeviceUsage(
                state.device.resource,
                state.device.index,
                state.device.uuid,
                state.part.model if state.part else "",
                memory_total_mib=state.memory_mib,
            ),
            [state],
        )
        for state in device_states(ledger)
        if not state.lost
    ]
    return NodeNow(ledger.node, devices=devices, unmeasured=True, silent="" if devices else "it has no devices")


async def ask(api: "Api", namespace: str, node: str = "") -> list[NodeNow]:
    """All shared nodes, or the one of this name if it is shared, sorted by name.

    Raises:
        Forbidden: the user may not read ledgers and the agents' pods, or not reach pods through the API server.
        ApiError: ledgers or the agents' pods can't be read.
    """
    try:
        async with asyncio.TaskGroup() as group:
            listing = group.create_task(api.list(NODE_DEVICES), name="list ledgers")
            finding = group.create_task(api.list(PODS, namespace=namespace, label_selector=LABEL), name="list agents")
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from failed
    ledgers = {ledger.node: ledger for ledger in listing.result()}
    agents = {pod.node: pod for pod in sorted(finding.result(), key=_fitness)}
    names = sorted(name for name in ledgers.keys() | agents.keys() if name and node in ("", name))
    turns = asyncio.Semaphore(AT_ONCE)

    async def look(name: str) -> NodeNow:
        async with turns:
            return await _ask_node(api, name, agents.get(name), ledgers.get(name, NodeDevices()))

    try:
        async with asyncio.TaskGroup() as group:
            looks = [group.create_task(look(name), name=f"ask {name}") for name in names]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from failed
    return [each.result() for each in looks]


def _fitness(pod: Pod) -> bool:
    """A terminating agent may be listed beside its successor; sorted by this, the successor comes last and counts."""
    return pod.status.phase == "Running" and not pod.metadata.deletion_timestamp


async def _ask_node(api: "Api", name: str, agent: Pod | None, ledger: NodeDevices) -> NodeNow:
    if agent is None:
        return NodeNow(name, silent="no agent runs there")
    if agent.status.phase != "Running":
        return NodeNow(name, silent=f"its agent {agent.metadata.name} is {agent.status.phase or 'not there yet'}")
    where = (agent.metadata.namespace, agent.metadata.name, contract.AGENT_PORT)
    try:
        usage = await api.ask_pod(*where, "usage", Usage, timeout=ANSWER_SECONDS)
    except Forbidden:
        raise  # all agents are asked with the same rights
    except ApiError as error:
        return NodeNow(name, silent=f"its agent {agent.metadata.name} doesn't answer: {error}")
    devices = [_with_holders(device, device_states(ledger)) for device in usage.devices]
    return NodeNow(name, usage.time, devices=devices, turns=usage.turns)


def _with_holders(usage: DeviceUsage, states: Iterable[DeviceState]) -> DeviceNow:
    seen = (each for each in states if not (each.part and each.part.lost))  # a lost one's number may be another's now
    number = (usage.resource, usage.index)
    state = next((each for each in seen if (each.device.resource, each.device.index) == number), None)
    groups = [state.group] if state and state.group else []
    shares = parts(state) if state else []
    unhealthy = state.unhealthy if state else ""
    return DeviceNow(**structs.asdict(usage), groups=groups, parts=shares, unhealthy=unhealthy)
