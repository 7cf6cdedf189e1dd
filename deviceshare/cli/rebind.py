"""`deviceshare rebind`: replaces unhealthy or lost devices of a group, or of a pod's share, by healthy ones.

The command requests that of the leader by an annotation of the holder, and waits for the answer in the ledger.
"""

import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import click

from deviceshare import timestamps
from deviceshare.cli.cluster import OUTCOME_SECONDS, Target, deleted, poll, retry_on_conflict
from deviceshare.cli.output import say
from deviceshare.cli.parameters import complete_group_or_pod, in_namespace, named_object, on_cluster, pod_named
from deviceshare.domain import contract
from deviceshare.domain.answers.device_parts import parts_text
from deviceshare.domain.objects.devices import described
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import Claim, NodeDevices
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import current
from deviceshare.domain.placement import replacement
from deviceshare.domain.placement.device_states import device_states, held_by
from deviceshare.domain.placement.replacement import Replacement
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, PODS, annotate
from deviceshare.loops.ports import Cluster, NotFound


@click.command(
    short_help="Replace unhealthy devices of a group, or of a pod's share.",
    epilog="""\b
Examples:
  deviceshare rebind team-a              replace what is unhealthy, lost or given to plain pods
  deviceshare rebind pod research/embed  move the pod's share to a healthy device with room
  deviceshare inspect -d                 list the unhealthy devices
  kubectl delete pod -n research train   let a pod's successor see its new devices at once

\b
Exit codes: 0 replaced, or nothing to replace; 1 failed, no such group, or no healthy device is free on its node,
or none has room; 2 wrong flags.""",
)
@click.argument(
    "name", nargs=-1, required=True, metavar="GROUP | pod [NAMESPACE/]NAME", shell_complete=complete_group_or_pod
)
@in_namespace
@on_cluster
def rebind(target: Target, name: tuple[str, ...], namespace: str | None) -> None:
    """Replace devices of GROUP that are unhealthy or lost, or that the device plugin gave or may give to plain pods.

    They are replaced by healthy ones of the same node. The others stay. Shares that the group's pods have of its
    devices move with them. With `pod`, this pod's share moves from such devices to healthy ones that have room for it.

    Containers see their new devices when they restart; where devices are injected by CDI, pods have to be recreated.
    What a pod had before stays reserved until the pod has ended.
    """
    if len(name) > 2 or (len(name) == 2 and name[0] != "pod"):
        raise click.UsageError("Name a group, or a pod as pod NAMESPACE/NAME.")
    within, holder = pod_named(name[1], namespace, target) if len(name) == 2 else ("", name[0])
    say(target.ask(lambda api: ask(api, holder, within)))


Found = tuple[Group | Pod, NodeDevices, Claim]
"""A group, or a pod with a share, the ledger of its node, and its claim there."""


async def ask(api: Cluster, name: str, namespace: str = "") -> str:
    """Requests a rebind of the group or, in a namespace, of the pod's share, and returns the outcome as a sentence.

    Raises ApiError, and ClickException where the devices were not replaced, which says why and what to do.
    """
    look: Callable[[str], Awaitable[Found]] = partial(_group_with_claim, api, name)
    who, outcome = f"group {name}", f"kubectl describe sdg {name}"  # which shows what the leader says of it
    if namespace:
        look = partial(pod_with_share, api, namespace, name)
        who, outcome = f"pod {namespace}/{name}", f"kubectl describe pod -n {namespace} {name}"
    subject = f"{who[0].upper()}{who[1:]}"

    async def request() -> tuple[Found, Replacement]:
        by, ledger, claim = await look("")
        verdict = replacement.judge(ledger, by)
        if verdict.replacements and not await annotate(api, by, {contract.REBIND: new_token()}):
            raise deleted(subject, f"deviceshare explain {who}")
        return (by, ledger, claim), verdict

    async def answer() -> Found | None:
        now, ledger, claim = await look(by.metadata.uid)
        return (now, ledger, claim) if claim.rebound == now.rebind != "" else None

    (by, ledger, claim), verdict = await retry_on_conflict(request)
    if not verdict.broken:
        devices = f"All devices of which {who} has a share" if namespace else f"All devices of {who}"
        return f"{devices} are healthy: it keeps {_has(ledger, claim)}."
    if verdict.obstacle:
        raise click.ClickException(f"{subject} {verdict.obstacle}: {_cure(ledger, by)}")
    after = await poll(answer, doing=f"Waiting for other devices for {who}")
    if after is None:
        see = f"kubectl get pods -A -l app.kubernetes.io/name={contract.NAME}"
        silent = f"deviceshare has not answered within {OUTCOME_SECONDS:g} s. It will when it runs"
        raise click.ClickException(f"{silent}; see that with {see}, and the outcome with {outcome}")
    by, ledger, claim = after
    if kept := [each for each in verdict.broken if any(replacement.same(each, now) for now in claim.devices)]:
        what = f"{'its share of ' if namespace else ''}{described(kept)}, as nothing could replace it"
        raise click.ClickException(f"{subject} keeps {what}; see why with {outcome}")
    return _outcome(subject, by, ledger, claim, described(verdict.broken))


def _outcome(subject: str, by: Group | Pod, ledger: NodeDevices, claim: Claim, broken: str) -> str:
    when = "Containers see that when they restart. What"
    if not isinstance(by, Group):
        had = f"{when} the pod had before stays reserved until it has ended."
        return f"{subject} now has {_has(ledger, claim)}, and no longer a share of {broken}.\n{had}"
    if replacement.by_cdi(ledger, claim.devices):
        when = "Its pods keep what they had, also when their containers restart, since devices are injected by CDI."
        when = f"{when} Recreate them; what they had stays reserved until they have ended:"
    else:
        when = f"{when} these pods had before stays reserved until they have ended:"
    pods = [f"  {pod}" for pod in by.status.allocated_pods]
    now = f"{subject} now holds {_has(ledger, claim)}, and no longer {broken}."
    return "\n".join([now, *([when, *pods] if pods else [])])


def _has(ledger: NodeDevices, claim: Claim) -> str:
    return f"{parts_text(current(claim.shares)) if claim.pod else described(claim.devices)} on node {ledger.node}"


def _cure(ledger: NodeDevices, by: Group | Pod) -> str:
    """What to do where nothing can replace its devices."""
    if isinstance(by, Pod):
        return f"delete and recreate it (kubectl delete pod -n {by.metadata.namespace} {by.metadata.name})"
    unhealthy = [each.device for each in held_by(device_states(ledger), by.uid) if each.unhealthy]
    names = " ".join(device.uuid or str(device.index) for device in unhealthy)
    recover = f", or repair one and report it with deviceshare recover {ledger.node} {names}" if names else ""
    return f"free a device{recover}"


def new_token() -> str:
    """A unique request: the time in RFC 3339, and random digits for requests made in the same second."""
    return f"{timestamps.now()}-{secrets.token_hex(4)}"


async def _group_with_claim(api: Cluster, name: str, uid: str) -> tuple[Group, NodeDevices, Claim]:
    """The group, its node's ledger and its claim there; raises ClickException where it has none.

    And where the group has another UID than `uid`, unless that is "".
    """
    nobody = f"There is no group {name}; see them with kubectl get sdg"
    group = await named_object(api, GROUPS, name, missing=nobody)
    if uid not in ("", group.metadata.uid):
        raise deleted(f"Group {name}", f"deviceshare explain group {name}")
    if group.claim:
        fixed = f"The devices of group {name} are in ResourceClaim {group.claim}, whose allocation can't be changed"
        raise click.ClickException(f"{fixed}: delete the group and its pods, and recreate both.")
    if not group.node:
        raise click.ClickException(f"Group {name} holds no devices yet; see why with deviceshare explain group {name}")
    retry = f"without any the group leaves the node. Retry once deviceshare inspect {group.node} shows it"
    whose = f"group {name} on node {group.node}"
    return group, *await _claim(api, group.node, group.uid, whose, f"its pods; {retry}")


async def pod_with_share(api: Cluster, namespace: str, name: str, uid: str = "") -> tuple[Pod, NodeDevices, Claim]:
    """The pod, its node's ledger and its claim there; raises ClickException where it has none, or another UID."""
    key, pod = f"{namespace}/{name}", await named_object(api, PODS, name, namespace)
    if uid not in ("", pod.metadata.uid):
        raise deleted(f"Pod {key}", f"deviceshare explain pod {key}")
    if not (pod.node and pod.shares):
        rebind = f"replace its group's devices with deviceshare rebind {pod.group}"
        instead = rebind if pod.group else f"see deviceshare explain pod {key}"
        raise click.ClickException(f"Pod {key} has no share of a device: {instead}")
    retry = f"retry once kubectl get ndev {pod.node} -o yaml shows it"
    whose = f"pod {key} on node {pod.node}"
    return pod, *await _claim(api, pod.node, pod.metadata.uid, whose, f"the pod; {retry}")


async def _claim(api: Cluster, node: str, uid: str, whose: str, source: str) -> tuple[NodeDevices, Claim]:
    """The ledger of the node and the claim in it; where there is none, what it is restored from is said."""
    with suppress(NotFound):
        ledger = await api.get(NODE_DEVICES, node)
        if claim := ledger.claims.get(uid):
            return ledger, claim
    raise click.ClickException(f"The claim of {whose} is missing and is restored from {source}")
