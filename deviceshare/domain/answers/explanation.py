"""Explanations, the answers of `deviceshare explain`: a reason, the facts that belong to it, and verdicts on nodes.

The reason is that of the group's condition and event, from the same function.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import accumulate
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from deviceshare.domain import contract, vendors
from deviceshare.domain.answers import group_status, waiting
from deviceshare.domain.answers.device_parts import ContainerPart, PodPart, named, overuse_text, parts, parts_text
from deviceshare.domain.answers.picture import Unseen
from deviceshare.domain.answers.pod_view import standings
from deviceshare.domain.device_health.violations import OVERUSE_CURE
from deviceshare.domain.objects.devices import described, selected
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.objects.shares import GPU_MEM, GPU_PERCENT, Request, ShareRequest, current
from deviceshare.domain.placement import allocation, join_obstacles
from deviceshare.domain.placement.device_states import SERVES_GROUPS, SERVES_SHARES, DeviceState, Health, Use, held_by
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.join_obstacles import behind_gates, invalid, left_out, pod_obstacle, request_of
from deviceshare.domain.placement.preemption import NEVER, Holders, fits_somewhere, make_room, searched
from deviceshare.domain.placement.resizing import judge, refusal
from deviceshare.domain.placement.rooms import Room, units, used
from deviceshare.domain.wording import counted, listed

LOWEST = "the lowest numbers that were free; nothing is known of how the devices are joined"
_HIDDEN = "can't be read"


class DeviceVerdict(Struct, frozen=True, rename="camel", omit_defaults=True):
    """One device that the holder could use. No `reason`: it is free, or has room for a share."""

    resource: str
    index: int
    reason: str = ""
    cure: str = ""
    """What would free it."""
    free: str = ""
    """How much of it is left for a share: `3 of 16 GiB`, `40 of 100%`."""
    parts: list[PodPart] = field(default_factory=list)
    """Who has the rest."""


class NodeVerdict(Struct, frozen=True, rename="camel", omit_defaults=True):
    """One node. No `reason`: the holder's next pod may go there."""

    node: str
    fits: bool
    reason: str = ""
    why: Reason | None = None
    """The reason for programs."""
    score: int | None = None
    """Among the nodes that fit, 0 to 10; kube-scheduler adds its own."""
    would_get: dict[str, str] = field(default_factory=dict)
    """As `status.selectedDevices`."""
    shares: list[ContainerPart] = field(default_factory=list)
    """The parts of these devices that the pod's containers would get."""
    why_these: str = ""
    lacks: int = 0
    """How many devices more it would need."""
    devices: list[DeviceVerdict] = field(default_factory=list)

    @property
    def gets(self) -> str:
        """What of it the pod or the group would get and why these, in words; "" where that isn't said."""
        held = parts_text(self.shares) if self.shares else described(self.would_get)
        return f"{held}, {self.why_these}" if held and self.why_these else held


class PodsWaiting(Struct, frozen=True, rename="camel"):
    """Waiting pods, of which each has the same reason."""

    pods: list[str]
    """`namespace/name`"""
    reason: str
    why: Reason
    """The reason for programs."""


class Explanation(Struct, frozen=True, rename="camel", omit_defaults=True):
    """`message` says it in one text, `facts` what belongs to it, `nodes` what speaks for and against each node."""

    subject: str
    message: str
    not_created: str = ""
    """Why the controller of a workload can't create pods."""
    warnings: list[str] = field(default_factory=list)
    """What admission says of its template, which only the controller is told, and nobody reads who creates it."""
    waiting: list[PodsWaiting] = field(default_factory=list)
    """The pods of a workload that wait."""
    facts: dict[str, str] = field(default_factory=dict)
    nodes: list[NodeVerdict] = field(default_factory=list)
    unseen: list[Unseen] = field(default_factory=list)
    """What the person who asked may not read."""
    why: Reason | None = None
    """The message for programs, where it is a reason."""


def explain_workload(
    fleet: Fleet, subject: str, pods: Collection[Pod], groups: Mapping[str, Group], everyone: Collection[Pod]
) -> Explanation:
    """A Deployment or the like, by its pods; `everyone` are all that want devices."""
    named = {name: [pod for pod in everyone if pod.group == name] for name in {pod.group for pod in pods} - {""}}
    bound = {name: group_status.bound(groups[name], fleet, mine) for name, mine in named.items() if name in groups}
    alike: dict[Reason, list[str]] = {}
    for mine in waiting.WaitingReasons(fleet).of_pods((pod for pod in pods if not pod.left_out), groups, bound):
        for each in mine:
            alike.setdefault(each.why, []).append(each.pod)
    found = [PodsWaiting(sorted(mine), str(reason), reason) for reason, mine in alike.items()]
    on: dict[str, list[str]] = {}
    for pod in pods:
        if pod.node and not pod.finished:
            on.setdefault(pod.node, []).append(pod.metadata.key)
    facts = {f"on node {node}": listed(sorted(mine), most=3) for node, mine in sorted(on.items())}
    updates = (waiting.rolling_update(fleet, pod, everyone) for pod in pods if pod.pending)
    facts["rolling update"] = next(filter(None, updates), "")
    number = sum(len(each.pods) for each in found)
    message = f"{counted(sum(map(len, on.values())), 'pod')} with a node, {number} waiting"
    return Explanation(subject, message, waiting=found, facts=_known(facts))


def preemption(fleet: Fleet, pod: Pod, group: Group | None, everyone: Collection[Pod]) -> str:
    """Who would have to go for the pod by its priority, or why nobody may; "" where it has none, or fits."""
    request = request_of(pod, group)
    if request is None or not pod.spec.priority or fits_somewhere(fleet, pod, request):
        return ""
    if pod.spec.preemption_policy == NEVER:
        return f"nobody goes for it, by its preemptionPolicy {NEVER}"
    used = {each.group for each in everyone if each.pending or each.lives}
    pods = {each.metadata.key: each for each in everyone}
    room = searched(make_room(fleet, pod, request, Holders(pods.get, lambda claim: claim.group not in used)))
    if room is None:
        return f"nobody of lower priority than {pod.spec.priority} has what it needs"
    if not room.victims:
        return f"what it needs comes free on node {room.node}"
    return f"{listed(map(str, room.victims))} would have to go, on node {room.node}"


class Case(NamedTuple):
    """What is explained: a group, where there is one, or a pod of it, in the cluster as far as it is seen."""

    fleet: Fleet
    group: Group | None
    home: Node | None
    """The group's node."""
    everyone: Collection[Pod]
    """All pods that want devices."""
    partly_seen: bool = False
    """Where the cluster is, the conditions are those that the leader stated."""


def explain_group(case: Case) -> Explanation:
    """The group: where it lives, with which devices and why these; or what it waits for and where it could go."""
    fleet, group, home, everyone, partly_seen = case
    assert group is not None, "nothing can be said of a group that isn't there"
    pods = [pod for pod in everyone if pod.group == group.name]
    stated = group_status.stated(group) if partly_seen else {}
    bound = stated.get(group_status.IS_BOUND) or group_status.bound(group, fleet, pods)
    nodes, facts = list[NodeVerdict](), {_HIDDEN: group.metadata.fault}
    if group.node:
        healthy = stated.get(group_status.IS_HEALTHY)
        facts |= {**_held(fleet, group), "used by": ", ".join(sorted(fleet.pods(group.uid))) or "no pod"}
        facts |= _waiting(pods)
        facts["health"] = str(healthy or group_status.health(group, fleet.ledger(group.node), home, pods))
    else:
        fault = invalid(group)
        nodes = verdicts(fleet, group.request, fault)
        never = {} if fault else _never_fits(fleet, group.request, str(bound))
        facts |= {**_outlook(group.request, nodes), **never, **_waiting(pods)}
        facts["barred pods"] = group_status.cannot_join(fleet, group, pods)
    return Explanation(f"group {group.name}", str(bound), facts=_known(facts), nodes=nodes, why=bound)


def explain_pod(case: Case, pod: Pod) -> Explanation:
    """A pod: what it has and from which group, or what it waits for."""
    fleet, group, _, everyone, _ = case
    of_group = explain_group(case) if group else None
    pending = pod.wants_devices and pod.pending and not pod.left_out
    found = (_pending if pending else _not_pending)(fleet, pod, group, of_group)
    facts = {_HIDDEN: pod.metadata.fault, **found.facts}
    if pending:
        facts["rolling update"] = waiting.rolling_update(fleet, pod, everyone)
        facts["preemption"] = preemption(fleet, pod, group, everyone)
    facts["admission warned"] = pod.metadata.annotations.get(contract.WARNINGS, "").replace("\n", "; ")
    return replace(found, facts=_known(facts))


def _not_pending(fleet: Fleet, pod: Pod, group: Group | None, of_group: Explanation | None) -> Explanation:
    subject = f"pod {pod.metadata.key}"
    if pod.left_out:
        return Explanation(subject, str(left_out(pod)))
    if not pod.wants_devices:
        return Explanation(subject, _wants_nothing(pod))
    if pod.finished:
        return Explanation(subject, f"it has ended ({pod.status.phase}) and uses no device any more")
    if pod.ending:
        text = f"it has ended ({pod.status.phase}), but its node does not say that its containers have"
        rest = "its devices stay reserved until they have, or their grace period is over"
        return Explanation(subject, f"{text}: {rest}")
    facts = {vendor.env: pod.metadata.annotations.get(vendor.annotation, "") for vendor in vendors.VENDORS}
    facts |= _held_by_pod(fleet, pod)
    if group is not None and of_group is not None and group.uid == pod.holder_uid:
        facts |= of_group.facts
    if pod.placed_on and pod.refusal:
        facts["kube-scheduler"] = pod.refusal.message
    return Explanation(subject, _placed(pod) if pod.placed_on else _bound(pod, group), facts=facts)


def _pending(fleet: Fleet, pod: Pod, group: Group | None, of_group: Explanation | None) -> Explanation:
    bound = of_group.why if of_group else None
    subject, said = f"pod {pod.metadata.key}", waiting.scheduler_said(pod)
    reason, request = waiting.WaitingReasons(fleet).of_pod(pod, group, bound), request_of(pod, group)
    if request is None or pod_obstacle(pod, group, fleet.namespaces):
        return Explanation(subject, str(reason))
    if group is None or of_group is None:
        nodes = verdicts(fleet, request, pod=pod)
        facts = _outlook(request, nodes) | _never_fits(fleet, request, str(reason))
    else:
        facts = {"group": group.name if reason == bound else f"{group.name}: {bound}"}
        facts |= {name: fact for name, fact in of_group.facts.items() if name in ("never fits", "health")}
        # The group may go where this pod can't be scheduled to.
        judged = bool(request.share) or not group.node
        nodes = verdicts(fleet, request, invalid(group), pod) if judged else of_group.nodes
        facts |= _outlook(request, nodes) if judged else {}
    if said and said != reason:
        facts["kube-scheduler"] = said.text
    return Explanation(subject, str(reason), facts=facts, nodes=nodes, why=reason)


def _known(facts: dict[str, str]) -> dict[str, str]:
    return {name: fact for name, fact in facts.items() if fact}


def _held(fleet: Fleet, group: Group) -> dict[str, str]:
    ledger = fleet.ledger(group.node)
    claim = ledger.claims.get(group.uid) if ledger else None
    if ledger is None or claim is None:
        return {}
    held, former = ledger.held(claim), described(claim.former)
    return {
        "devices": described(held),
        "why these": allocation.topology_reason(held, ledger.hardware.links) or (LOWEST if len(held) > 1 else ""),
        "before a rebind": f"{former}, reserved while pods may use them" if former else "",
    }


def _outlook(request: Request, nodes: list[NodeVerdict]) -> dict[str, str]:
    """Where what is bound nowhere would go, if it could."""
    if not nodes or not nodes[0].fits:
        return {}
    best = nodes[0]
    equals = sum(each.score == best.score for each in nodes if each.fits) - 1
    others = f", like {equals} other{'s' * (equals > 1)}" if equals else ""
    goes = f"{best.node}: scores {best.score} of 10 for {request.strategy}{others}"
    return {"would go to": goes, "would get": best.gets}


def _never_fits(fleet: Fleet, request: Request, reason: str) -> dict[str, str]:
    """Whether no node could ever meet the request, unless the reason says so already."""
    found = waiting.too_large(fleet, request)
    return {"never fits": str(found)} if found and found.text not in reason else {}


def _held_by_pod(fleet: Fleet, pod: Pod) -> dict[str, str]:
    """What each container has (`8 GiB of nvidia.com/gpu 0`), and what the ledger of its node says of the pod.

    Of a pod with parts: what a rebind replaced, whether its limits are enforced and why not, what becomes of another
    size that was asked for, and what is wrong with the devices, with its cure. Then what of it uses more than its
    share, and which turns it has or waits for, as the node's agent reports.
    """
    shares, meta, facts = current(pod.shares), pod.metadata, dict[str, str]()
    for name in dict.fromkeys(share.container for share in shares):
        facts[f"container {name}"] = parts_text(share for share in shares if share.container == name)
    if (ledger := fleet.ledger(pod.node)) is None:
        return facts
    if (claim := ledger.claims.get(meta.uid)) and claim.pod:
        before = parts_text(share for share in claim.shares if share.former)
        facts["before a rebind"] = f"{before}, reserved until the pod ends" if before else ""
        missing = {each.missing for each in ledger.status.hardware.limits if each.uid == meta.uid} - {""}
        why = listed(sorted(missing)) or ledger.counts_only
        facts["limits"] = f"{ledger.limits_of(meta.uid)}{f': {why}' if why else ''}"
        resize = judge(ledger, pod)
        facts["resize"] = resize.obstacle or refusal(ledger, pod) or resize.lowering
        if not pod.group:  # of others the group's health says it
            gone = [each for each in fleet.states(pod.node) if meta.uid in each.holders and each.fault]
            ill = listed(f"{each.device} is {each.fault}" for each in gone)
            facts["health"] = f"{ill}: deviceshare rebind pod {meta.key}, or repair it" if ill else ""
    created = meta.creation_timestamp or ""  # what was found earlier is of an earlier pod of this name
    rows = [row for row in ledger.hardware.overuses if row.pod == meta.key and not "" < row.since < created]
    over = "; ".join(f"{overuse_text(row)}{f' (since {row.since})' if row.since else ''}" for row in rows)
    facts["over its share"] = f"{over}: {OVERUSE_CURE}" if over else ""
    facts["turn"] = "; ".join(standings(ledger.hardware.turns, meta.key))
    return facts


def _waiting(pods: Collection[Pod]) -> dict[str, str]:
    gated = [pod for pod in pods if pod.gates]
    pending = [pod for pod in pods if pod.pending and not pod.gates]
    said = next((reason.text for pod in pending if (reason := waiting.scheduler_said(pod))), "")
    return {
        "waiting pods": _named(pending),
        "kube-scheduler": said,
        "gated pods": f"{_named(gated)}: each {behind_gates(gated)}" if gated else "",
    }


def _named(pods: Collection[Pod]) -> str:
    return listed(sorted(pod.metadata.key for pod in pods), most=3)


def _wants_nothing(pod: Pod) -> str:
    if pod.awaits_placement:
        return join_obstacles.BEHIND_OUR_GATE
    text = f"it names no group and asks for no share; a pod joins a group with the annotation {contract.GROUP}: NAME"
    text += f", and asks for a part of a device with the limit {GPU_MEM} or {GPU_PERCENT}"
    plugin = sorted(pod.plugin_resources())
    return f"{text}. It asks the vendor's device plugin for {listed(plugin)}" if plugin else text


def _placed(pod: Pod) -> str:
    """A pod whose scheduling gate was lifted and that isn't bound yet."""
    text = f"it is placed on node {pod.placed_on} with {described(pod.devices)}, and {pod.spec.scheduler_name}"
    if not pod.refusal:
        return f"{text} is to bind it there"
    if pod.metadata.controller:
        return f"{text} finds no place for it there: if that stays, it is deleted, recreated, and placed elsewhere"
    return f"{text} finds no place for it there: delete the pod and create it again, to have it placed elsewhere"


def _bound(pod: Pod, group: Group | None) -> str:
    if pod.impostor:
        return "it got a binding that was meant for an earlier pod of its name, and is deleted for that"
    if pod.claim:
        return f"it is on node {pod.node} with the devices of group {pod.group}, by ResourceClaim {pod.claim}"
    if not pod.devices:
        return f"it is on node {pod.node} without devices, since deviceshare did not bind it: delete and recreate it"
    if not pod.group:
        return f"it is on node {pod.node} with {parts_text(current(pod.shares))}"
    held = f"it is on node {pod.node} with {described(pod.devices)} of group {pod.group}"
    if pod.shares:
        held = f"it is on node {pod.node} with {parts_text(current(pod.shares))} of the devices of group {pod.group}"
    if group is None:
        return f"{held}, which is gone: nobody else gets the devices while the pod lives"
    if group.uid != pod.holder_uid:
        return f"{held} as it was before it was deleted and recreated: recreate the pod to get what it has now"
    return held


# Verdicts on nodes and their devices: whether a request could be met there, why not, and what would free each device.
# The verdicts are those of `Fleet.filter`, which answers kube-scheduler; the devices those that the bind would take.


def verdicts(fleet: Fleet, request: Request, fault: Reason | None = None, pod: Pod | None = None) -> list[NodeVerdict]:
    """Every shared node, the best first, then those that lack the fewest devices, then the others.

    Of nodes that only lack room for a share of nobody's devices, those with the largest room on one device are first.
    With a `fault` of the request no node fits.
    """
    nobody = dict[str, int](), dict.fromkeys(fleet.names(), fault)
    scores, reasons = nobody if fault else waiting.candidates(fleet, request, pod)
    of = _of_share if request.share and (fleet.home(request) or not request.resources) else _of_devices
    found = []
    for name in fleet.names():
        why = reasons.get(name)
        found.append(of(fleet, request, NodeVerdict(name, not why, str(why or ""), why, scores.get(name))))

    def rank(verdict: NodeVerdict) -> tuple[bool, int, bool, int, int, str]:
        rooms = () if request.resources else fleet.rooms(verdict.node)
        room = max((room.free for _, room in rooms), default=0)
        otherwise = not verdict.why or verdict.why.kind is not ReasonKind.TOO_FULL
        return not verdict.fits, -(verdict.score or 0), otherwise, verdict.lacks, -room, verdict.node

    return sorted(found, key=rank)


def _of_devices(fleet: Fleet, request: Request, verdict: NodeVerdict) -> NodeVerdict:
    """For a group, which gets whole devices."""
    wants, name, available = request.resources, verdict.node, fleet.available(verdict.node)
    free = Counter(device.resource for device in available.devices)
    chosen = () if request.node or not verdict.fits else allocation.choose(request, available) or ()
    return replace(
        verdict,
        would_get=selected(chosen),
        why_these=allocation.topology_reason(chosen, available.links),
        lacks=sum(max(count - free[resource], 0) for resource, count in wants.items()),
        devices=[
            _verdict(state, _in_the_way(fleet, name, state, SERVES_SHARES))
            for state in fleet.states(name)
            if state.device.resource in wants
        ],
    )


def _of_share(fleet: Fleet, request: Request, verdict: NodeVerdict) -> NodeVerdict:
    name, within, wants = verdict.node, request.within, request.share
    states = fleet.states(name)
    mine = held_by(states, within) if within else [each for each in states if each.device.resource in wants.of]
    rooms = dict(fleet.rooms(name, within))
    shares = waiting.chosen_shares(fleet, request, name) if verdict.fits else ()
    spread = request.strategy == allocation.SPREAD
    which = "the most room is left" if spread else "the least room is left that suffices"
    return replace(
        verdict,
        would_get=selected({share.device for share in shares}),
        shares=[ContainerPart.of(share) for share in shares],
        why_these=f"where {which}" if shares else "",
        devices=[_in_part(fleet, name, state, wants, rooms.get(state.device)) for state in mine],
    )


def _in_part(fleet: Fleet, node: str, state: DeviceState, share: ShareRequest, room: Room | None) -> DeviceVerdict:
    """`room` is what is left of the device for the share, None where nothing of it is for shares now."""
    if room is None or state.serves == SERVES_GROUPS:
        return _verdict(state, _in_the_way(fleet, node, state, SERVES_GROUPS))
    if any(room.takes(need) for need in share.needs):
        return _verdict(state, (), str(room))
    if not room.size and all(need.memory_mib for need in share.needs):
        return _verdict(state, [("its memory is not known", allocation.MEMORY_UNKNOWN.cure)], str(room))
    least = min((cost for need in share.needs if (cost := units(need, room.size)) is not None), default=0)
    if least > room.capacity:
        smallest = min(share.needs, key=lambda need: units(need, room.size) or 0)
        larger = f"smaller than {smallest}", "ask for less, or add a node with larger devices"
        return _verdict(state, [larger], str(room))
    mine = [each for each in state.sharers if each.claim.within == (state.uid if state.uid in state.holders else "")]
    ends = _enough({each.claim.pod: used(each.shares, room.size) for each in mine}, least - room.free)
    cure = f"{named(ends)} {'ends' if len(ends) == 1 else 'end'}" if ends else "it is released soon"
    return _verdict(state, [(f"only {room} free", cure)], str(room))


def _enough(taken: dict[str, int], lacking: int) -> list[str]:
    """The pods whose end would free so many units: the one with the least that suffices, else the largest ones."""
    suffice = [pod for pod, cost in taken.items() if cost >= lacking]
    if suffice:
        return [min(suffice, key=lambda pod: (taken[pod], pod))]
    largest = sorted(taken, key=lambda pod: (-taken[pod], pod))
    freed = accumulate((taken[pod] for pod in largest), initial=0)
    return [pod for pod, before in zip(largest, freed, strict=False) if before < lacking]


def _verdict(state: DeviceState, found: Iterable[tuple[str, str]], free: str = "") -> DeviceVerdict:
    texts = list(found)
    reason, cure = ("; ".join(each) for each in zip(*texts, strict=True)) if texts else ("", "")
    return DeviceVerdict(state.device.resource, state.device.index, reason, cure, free, parts(state))


def _in_the_way(fleet: Fleet, node: str, state: DeviceState, others: str) -> Iterable[tuple[str, str]]:
    """Each reason why nobody else gets the device now, with what would change that.

    `others` get it where the node's owner reserved it for them.
    """
    group, pods = state.group, sorted(fleet.pods(state.uid))
    users = f"the last of its {len(pods)} pods ends" if len(pods) > 1 else f"pod {pods[0]} ends" if pods else ""
    soon = users or "it is released soon"
    if state.use is Use.HELD:
        delete = f"kubectl delete sdg {group}"
        yield f"held by group {group}", f"{users}, then {delete}" if users else f"no pod uses it, so {delete}"
    elif state.use is Use.SHARED:
        pods = sorted({each.claim.pod for each in state.sharers})
        all_end = f"{named(pods)} ends" if len(pods) == 1 else f"all of its {len(pods)} pods end"
        yield f"{named(pods)} {'has a part' if len(pods) == 1 else 'have parts'}", all_end
    elif state.use is Use.RELEASING:
        yield f"still used by the deleted group {group}", soon
    elif state.use is Use.FORMER:
        yield f"may still be used by pods of group {group}", soon
    doubt = state.doubt.cure if state.doubt else ""
    repaired = f"repair it, then deviceshare recover {node} {state.device.index}"
    cures = {
        Use.PLUGIN: f"pod {state.pod} ends",
        Use.CLAIMED: f"ResourceClaim {state.resource_claim} is deallocated, as when its last pod ends",
        Use.SPLIT: "unite it on its node with nvidia-smi -mig 0, if nobody has a part of it",
        Use.WITHHELD: f"change the annotation {contract.INVENTORY_ANNOTATION} of node {node}",
        Use.LEFT: "let placeholder pods have more devices (agent.placeholders of the chart)",
        Use.UNUSABLE: "delete one of them with its pods, and recreate it" if state.claimed_twice else doubt,
        Health.UNHEALTHY: repaired,
        Health.LOST: repaired if state.unhealthy else "repair the node",
    }
    for kind, reason in state.barriers.items():
        yield reason, cures[kind]
    if state.serves == others:
        key = contract.SHARE_DEVICES if others == SERVES_SHARES else contract.GROUP_DEVICES
        yield f"for {others} only", f"change the annotation {key} of node {node}"
