"""The whole answer of `deviceshare explain`: a reason, the facts that belong to it, and the verdicts on nodes.

Its first text is the one of the group's condition and event, from the same function.
"""

from collections.abc import Collection

from msgspec import Struct, field
from msgspec.structs import replace

from deviceshare.domain import contract, vendors
from deviceshare.domain.answers import group_status
from deviceshare.domain.answers.verdicts import NodeVerdict, verdicts
from deviceshare.domain.answers.waiting import scheduler_said, why_a_pod_waits
from deviceshare.domain.objects.devices import described
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.object_meta import Condition
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement import topology
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.join_obstacles import behind_gates, left_out, pod_obstacle
from deviceshare.domain.wording import listed

LOWEST = "the lowest numbers that were free; nothing is known of how the devices are joined"


_HIDDEN = "can't be read"

_SHARED_FACTS = ("would go to", "would get", "in vain", "health")
"""Facts of a pod's group that belong to the pod's explanation, too."""


class Explanation(Struct, frozen=True, rename="camel", omit_defaults=True):
    """`message` says it in one text, `facts` what belongs to it, `nodes` what speaks for and against each node."""

    subject: str
    message: str
    facts: dict[str, str] = field(default_factory=dict)
    nodes: list[NodeVerdict] = field(default_factory=list)


def explain_group(fleet: Fleet, group: Group, pods: Collection[Pod], home: Node | None) -> Explanation:
    """A group: where it lives, with which devices and why these; or what it waits for and where it could go.

    `pods` are those that name the group, `home` is its node.
    """
    said = _conditions(fleet, group, pods, home)
    subject, message = f"group {group.name}", said[group_status.IS_BOUND].message
    hidden = {_HIDDEN: group.metadata.fault} if group.metadata.fault else {}
    waiting = _waiting(pods)
    if not group.node:
        nodes = verdicts(fleet, group)
        facts = {**_outlook(group, nodes), **_too_much(fleet, group), **waiting, **hidden}
        return Explanation(subject, message, facts, nodes)
    ledger = fleet.ledger(group.node)
    claim = ledger.claims.get(group.uid) if ledger else None
    facts = dict(hidden)
    if ledger and claim:
        held = ledger.held(claim)
        facts["devices"] = described(held)
        facts["why these"] = topology.reason(held, ledger.hardware.links) or (LOWEST if len(held) > 1 else "")
        facts["before a rebind"] = (
            f"{described(claim.former)}, reserved while pods may use them" if claim.former else ""
        )
    users = sorted(fleet.pods(group.uid))
    facts |= {"used by": ", ".join(users) or "no pod", **waiting, "health": said[group_status.IS_HEALTHY].message}
    return Explanation(subject, message, {name: fact for name, fact in facts.items() if fact})


def explain_pod(fleet: Fleet, pod: Pod, group: Group | None, pods: Collection[Pod], home: Node | None) -> Explanation:
    """A pod: what it has and from which group, or what it waits for. `pods` and `home` are its group's."""
    told = _told(fleet, pod, group, pods, home)
    hidden = {_HIDDEN: pod.metadata.fault} if pod.metadata.fault else {}
    return replace(told, facts={**hidden, **told.facts}) if hidden else told


def _told(fleet: Fleet, pod: Pod, group: Group | None, pods: Collection[Pod], home: Node | None) -> Explanation:
    subject = f"pod {pod.metadata.key}"
    if pod.left_out:
        return Explanation(subject, str(left_out(pod)))
    if not pod.group:
        return Explanation(subject, _groupless(pod))
    if pod.finished:
        return Explanation(subject, f"it has ended ({pod.status.phase}) and uses no device any more")
    if pod.ending:
        text = (
            f"it has ended ({pod.status.phase}), but its node does not say that its containers have: what it was given"
        )
        return Explanation(subject, f"{text} stays reserved until they have, or their grace period is over")
    if pod.pending:
        return _pending(fleet, pod, group, pods, home)
    return Explanation(subject, _bound(pod, group), _given(fleet, pod, group, pods, home))


def _pending(fleet: Fleet, pod: Pod, group: Group | None, pods: Collection[Pod], home: Node | None) -> Explanation:
    subject, said = f"pod {pod.metadata.key}", scheduler_said(pod)
    bound = group_status.bound(group, fleet, pods) if group else None
    reason = why_a_pod_waits(fleet, pod, group, bound)
    if group is None or pod_obstacle(pod, group):
        return Explanation(subject, str(reason))
    rest = explain_group(fleet, group, pods, home)
    facts = {"group": group.name if reason == bound else f"{group.name}: {bound}"}
    facts |= {name: fact for name, fact in rest.facts.items() if name in _SHARED_FACTS}
    if said and said != reason:
        facts["kube-scheduler"] = said.text
    return Explanation(subject, str(reason), facts, rest.nodes)


def _conditions(fleet: Fleet, group: Group, pods: Collection[Pod], home: Node | None) -> dict[str, Condition]:
    """The group's conditions by type as the leader writes them, but for their times; `home` is the group's node."""
    wanted = group_status.desired_status(group, fleet, home=home, pods=pods, now="")
    return {condition.type: condition for condition in wanted.conditions}


def _outlook(group: Group, nodes: list[NodeVerdict]) -> dict[str, str]:
    """Where a group that is bound nowhere would go, if it could."""
    if not nodes or not nodes[0].fits:
        return {}
    best = nodes[0]
    equals = sum(each.score == best.score for each in nodes if each.fits) - 1
    others = f", like {equals} other{'s' * (equals > 1)}" if equals else ""
    strategy = group.spec.scheduling_strategy
    facts = {"would go to": f"{best.node}: scores {best.score} of 10 for {strategy}{others}"}
    if best.would_get:
        held = described(best.would_get)
        facts["would get"] = f"{held}, {best.why_these}" if best.why_these else held
    return facts


def _too_much(fleet: Fleet, group: Group) -> dict[str, str]:
    """Whether the group waits for what no node could ever give, such as nine devices of nodes with eight."""
    ledgers = [ledger for name in fleet.names() if (ledger := fleet.ledger(name))]
    for resource, count in group.spec.resources.items():
        most = max((sum(device.resource == resource for device in ledger.devices) for ledger in ledgers), default=0)
        if ledgers and count > most:
            return {"in vain": f"no shared node has more than {most} {resource}: ask for fewer, or add a larger node"}
    return {}


def _waiting(pods: Collection[Pod]) -> dict[str, str]:
    gated = [pod for pod in pods if pod.gates]
    pending = [pod for pod in pods if pod.pending and not pod.gates]
    said = next((reason.text for pod in pending if (reason := scheduler_said(pod))), "")
    facts = {
        "pods that wait": _named(pending),
        "kube-scheduler": said,
        "gated pods": f"{_named(gated)}: each {behind_gates(gated)}" if gated else "",
    }
    return {name: fact for name, fact in facts.items() if fact}


def _named(pods: Collection[Pod]) -> str:
    return listed(sorted(pod.metadata.key for pod in pods), most=3)


def _groupless(pod: Pod) -> str:
    text = f"it names no group; a pod joins one with the annotation {contract.GROUP}: NAME"
    plugin = sorted(pod.plugin_resources())
    return f"{text}. It asks the vendor's device plugin for {listed(plugin)}" if plugin else text


def _bound(pod: Pod, group: Group | None) -> str:
    if pod.impostor:
        return "it got a binding that was meant for an earlier pod of its name, and is deleted for that"
    held = f"it is on node {pod.node} with {described(pod.devices)} of group {pod.group}"
    if not pod.devices:
        return f"it is on node {pod.node} without devices, since deviceshare did not bind it: delete and recreate it"
    if group is None:
        return f"{held}, which is gone: nobody else gets the devices while the pod lives"
    if group.uid != pod.holder_uid:
        return f"{held} as it was before it was deleted and recreated: recreate the pod to get what it has now"
    return held


def _given(fleet: Fleet, pod: Pod, group: Group | None, pods: Collection[Pod], home: Node | None) -> dict[str, str]:
    seen = {vendor.env: pod.metadata.annotations.get(vendor.annotation, "") for vendor in vendors.VENDORS}
    facts = {name: text for name, text in seen.items() if text}
    if group is not None and group.uid == pod.holder_uid:
        facts |= explain_group(fleet, group, pods, home).facts
    return facts
