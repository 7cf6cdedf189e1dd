"""`deviceshare rebind pod`: moves a pod's share from unhealthy or lost devices to healthy ones."""

from typing import NamedTuple

import click

from deviceshare.cli.rebind_request import ANSWER_SECONDS, new_token, no_answer
from deviceshare.cli.retries import poll, retry_on_conflict
from deviceshare.domain import contract
from deviceshare.domain.answers.device_parts import parts_text
from deviceshare.domain.objects.devices import described
from deviceshare.domain.objects.ledger import Claim, NodeDevices
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import current
from deviceshare.domain.placement import replacement, share_replacement
from deviceshare.domain.placement.replacement import Replacement
from deviceshare.loops.kinds import NODE_DEVICES, PODS
from deviceshare.loops.ports import Cluster, NotFound


class _SeenPod(NamedTuple):
    pod: Pod
    ledger: NodeDevices
    claim: Claim

    @property
    def has(self) -> str:
        return f"{parts_text(current(self.claim.shares))} on node {self.ledger.node}"


async def ask_for_pod(api: Cluster, namespace: str, name: str, *, seconds: float = ANSWER_SECONDS) -> str:
    """Requests a rebind of the pod's share, and returns the outcome as a sentence.

    Raises:
        ClickException: the share was not moved; the text says why and what to do.
        ApiError: a request failed.
    """
    key = f"{namespace}/{name}"
    before, verdict = await retry_on_conflict(lambda: _request(api, namespace, name))
    if not verdict.broken:
        return f"All devices of which pod {key} has a share are healthy: it keeps {before.has}."
    if verdict.obstacle:
        raise click.ClickException(
            f"Pod {key} {verdict.obstacle}: delete and recreate it (kubectl delete pod -n {namespace} {name})"
        )

    async def look() -> "_SeenPod | None":
        seen = await _look(api, namespace, name)
        return seen if seen.claim.rebound == seen.pod.rebind != "" else None

    after = await poll(look, doing=f"Waiting for other devices for pod {key}", seconds=seconds)
    if after is None:
        raise no_answer(seconds, f"kubectl describe pod -n {namespace} {name}")
    kept = [d for d in verdict.broken if any(replacement.same(d, now) for now in after.claim.devices)]
    if kept:
        raise click.ClickException(
            f"Pod {key} keeps its share of {described(kept)}, as nothing could replace it; see why with"
            f" kubectl describe pod -n {namespace} {name}"
        )
    return (
        f"Pod {key} now has {after.has}, and no longer a share of {described(verdict.broken)}.\n"
        "Containers see that when they restart. What the pod had before stays reserved until it has ended."
    )


async def _request(api: Cluster, namespace: str, name: str) -> tuple[_SeenPod, Replacement]:
    """Requests other devices from the leader, if any have room; returns the pod and its claim as they were before."""
    seen = await _look(api, namespace, name)
    verdict = share_replacement.judge_share(seen.ledger, seen.pod)
    if verdict.replacements:
        version = seen.pod.metadata.resource_version
        body = {"metadata": {"resourceVersion": version, "annotations": {contract.REBIND: new_token()}}}
        await api.patch(PODS, name, body, namespace=namespace)
    return seen, verdict


async def _look(api: Cluster, namespace: str, name: str) -> _SeenPod:
    key = f"{namespace}/{name}"
    try:
        pod = await api.get(PODS, name, namespace)
    except NotFound:
        raise click.ClickException(f"There is no pod {key}; see them with kubectl get pods -n {namespace}") from None
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
    return _SeenPod(pod, ledger, claim)
