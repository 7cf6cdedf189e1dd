"""Replicas, leader, kube-scheduler and agents: whether each is running."""

import asyncio
import time
from typing import Final

from deviceshare.doctor.findings import PROBLEM, WARNING, Check, Finding, check, logs, unread
from deviceshare.doctor.kinds import DAEMON_SETS, DEPLOYMENTS, Rollout
from deviceshare.domain import contract
from deviceshare.loops.kinds import LEASES, Lease
from deviceshare.loops.leadership import LEASE_NAME
from deviceshare.loops.ports import ApiError, Cluster, Kind, NotFound

POLL_SECONDS: Final = 0.5
NO_DURATION_SECONDS: Final = 15.0
"""How long a lease without a duration is watched."""


async def deployment(api: Cluster, namespace: str) -> Rollout | None:
    """deviceshare's own Deployment; None where it runs by other means. Raises ApiError."""
    return await _labelled(api, DEPLOYMENTS, contract.NAME, namespace)


async def agents(api: Cluster, namespace: str) -> Rollout | None:
    """The agents' DaemonSet; None where no agents are installed. Raises ApiError."""
    return await _labelled(api, DAEMON_SETS, contract.AGENT, namespace)


async def _labelled(api: Cluster, kind: Kind[Rollout], label: str, namespace: str) -> Rollout | None:
    """By the label, which stays the same however the chart's `fullnameOverride` calls the object."""
    found = await api.list(kind, namespace=namespace, label_selector=f"app.kubernetes.io/name={label}")
    return min(found, key=lambda each: each.metadata.name, default=None)


async def has_agents(api: Cluster, namespace: str) -> bool:
    """Whether agents are installed, as far as that can be seen."""
    try:
        return await agents(api, namespace) is not None
    except ApiError:  # the check of the replicas reports it
        return False


async def examine(api: Cluster, namespace: str) -> Check:
    """Watches each lease until it is renewed: clocks differ, so its renewTime alone proves nothing."""
    try:
        found = await deployment(api, namespace)
        findings = judge_deployment(found, namespace)
        leases = [LEASE_NAME]
        if found and found.container("kube-scheduler"):
            leases.append(contract.SCHEDULER_NAME)
        for name in leases:
            renewed = await _renewed(api, name, namespace)
            findings += judge_lease(name, namespace, renewed=renewed, deployed=found is not None)
        findings += judge_agents(await agents(api, namespace), namespace)
    except ApiError as error:
        return check("replicas", "", [unread(f"what runs in {namespace}", error)])
    ready = f"{found.status.ready_replicas} ready, " if found else ""
    return check("replicas", f"{ready}a leader renews its lease", findings)


def judge_deployment(found: Rollout | None, namespace: str) -> list[Finding]:
    """A missing Deployment is no finding: where deviceshare runs by other means, its lease shows whether it runs."""
    if found is None or found.status.ready_replicas >= found.spec.replicas > 0:
        return []
    name = found.metadata.name or contract.NAME
    text = f"{found.status.ready_replicas} of {found.spec.replicas} replicas of {namespace}/{name} are ready"
    cure = f"kubectl -n {namespace} describe pods -l app.kubernetes.io/name={contract.NAME}"
    if found.spec.replicas == 0:
        cure = f"kubectl -n {namespace} scale deployment {name} --replicas 2"
    return [Finding(WARNING if found.status.ready_replicas else PROBLEM, text, cure)]


def judge_lease(name: str, namespace: str, *, renewed: bool | None, deployed: bool) -> list[Finding]:
    """`renewed` is None where there is no such lease or nobody holds it."""
    if renewed:
        return []
    who = "kube-scheduler" if name == contract.SCHEDULER_NAME else contract.NAME
    if renewed is None and not deployed:
        what = f"deviceshare doesn't run in {namespace}: there is neither a Deployment nor a leader"
        return [Finding(PROBLEM, what, "helm install it, or name its namespace with --release-namespace NAME")]
    fate = "nobody holds" if renewed is None else "nobody renews"
    consequence = "no pod of a group is placed" if who == "kube-scheduler" else "statuses and ledgers stand still"
    return [Finding(PROBLEM, f"{fate} the Lease {namespace}/{name}: {consequence}", logs(namespace, who))]


def judge_agents(found: Rollout | None, namespace: str) -> list[Finding]:
    """Agents are optional; those of the DaemonSet should be ready."""
    if found is None or found.status.number_ready >= found.status.desired_number_scheduled:
        return []
    text = f"{found.status.number_ready} of {found.status.desired_number_scheduled} agents are ready"
    cure = f"kubectl -n {namespace} get pods -o wide -l app.kubernetes.io/name={contract.AGENT}"
    return [Finding(WARNING, f"{text}: the other nodes' GPUs are known by number only, and not watched", cure)]


async def _renewed(api: Cluster, name: str, namespace: str) -> bool | None:
    """Whether the lease changes within its own duration; None where nobody holds it."""
    try:
        first = await api.get(LEASES, name, namespace)
        if not first.spec.holder_identity:
            return None
        deadline = time.monotonic() + (first.spec.lease_duration_seconds or NO_DURATION_SECONDS)
        while time.monotonic() < deadline:
            await asyncio.sleep(POLL_SECONDS)
            if _beat(await api.get(LEASES, name, namespace)) != _beat(first):
                return True
        return False
    except NotFound:
        return None


def _beat(lease: Lease) -> tuple[str, str | None]:
    return lease.spec.holder_identity, lease.spec.renew_time
