"""`deviceshare rebind pod`: moves a pod's share from unhealthy or lost devices to healthy ones."""

import click

from deviceshare.cli.rebind_request import ANSWER_SECONDS, Asked, answered
from deviceshare.cli.retries import retry_on_conflict
from deviceshare.cli.suggestions import did_you_mean, names
from deviceshare.domain.answers.device_parts import parts_text
from deviceshare.domain.objects.devices import described
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import current
from deviceshare.domain.placement import share_replacement
from deviceshare.domain.placement.replacement import Replacement
from deviceshare.loops.kinds import NODE_DEVICES, PODS
from deviceshare.loops.ports import Cluster, NotFound


async def ask_for_pod(api: Cluster, namespace: str, name: str, *, seconds: float = ANSWER_SECONDS) -> str:
    """Requests a rebind of the pod's share, and returns the outcome as a sentence.

    Raises:
        ClickException: the share was not moved; the text says why and what to do.
        ApiError: a request failed.
    """
    key = f"{namespace}/{name}"
    before, verdict = await retry_on_conflict(lambda: _request(api, namespace, name))
    if not verdict.broken:
        return f"All devices of which pod {key} has a share are healthy: it keeps {_has(before)}."
    if verdict.obstacle:
        raise click.ClickException(
            f"Pod {key} {verdict.obstacle}: delete and recreate it (kubectl delete pod -n {namespace} {name})"
        )
    after = await answered(
        lambda: _look(api, namespace, name),
        verdict.broken,
        who=f"pod {key}",
        keeps="its share of ",
        outcome=f"kubectl describe pod -n {namespace} {name}",
        seconds=seconds,
    )
    return (
        f"Pod {key} now has {_has(after)}, and no longer a share of {described(verdict.broken)}.\n"
        "Containers see that when they restart. What the pod had before stays reserved until it has ended."
    )


def _has(asked: Asked[Pod]) -> str:
    return f"{parts_text(current(asked.claim.shares))} on {asked.node}"


async def _request(api: Cluster, namespace: str, name: str) -> tuple[Asked[Pod], Replacement]:
    """Requests other devices from the leader, if any have room; returns the pod and its claim as they were before."""
    seen = await _look(api, namespace, name)
    verdict = share_replacement.judge_share(seen.ledger, seen.by)
    if verdict.replacements:
        await api.patch(PODS, name, seen.request, namespace=namespace)
    return seen, verdict


async def _look(api: Cluster, namespace: str, name: str) -> Asked[Pod]:
    key = f"{namespace}/{name}"
    try:
        pod = await api.get(PODS, name, namespace)
    except NotFound:
        near = did_you_mean(name, await names(api, PODS, namespace))
        raise click.ClickException(
            f"There is no pod {key}; see them with kubectl get pods -n {namespace}{near}"
        ) from None
    if not (pod.node and pod.shares):
        rebind = f"deviceshare rebind {pod.group}" if pod.group else ""
        instead = f"replace its group's devices with {rebind}" if rebind else f"see deviceshare explain pod {key}"
        raise click.ClickException(f"Pod {key} has no share of a device: {instead}")
    try:
        ledger = await api.get(NODE_DEVICES, pod.node)
    except NotFound:
        ledger = NodeDevices()
    claim = ledger.claims.get(pod.metadata.uid)
    if claim is None:
        raise click.ClickException(
            f"The claim of pod {key} on node {pod.node} is missing and is restored from the pod; retry once"
            f" kubectl get ndev {pod.node} -o yaml shows it"
        )
    return Asked(pod, ledger, claim)
