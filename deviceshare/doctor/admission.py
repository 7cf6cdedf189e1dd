"""Admission: which of webhooks and policies should review pods, and whether those are there and the others gone."""

from typing import Any

from deviceshare.doctor import policies, webhooks
from deviceshare.doctor.findings import Check, check
from deviceshare.doctor.kinds import Rollout
from deviceshare.domain import contract
from deviceshare.domain.admission.modes import POLICIES, WEBHOOKS
from deviceshare.domain.admission.pod_guard import GUARDING_POLICY
from deviceshare.loops.kinds import VALIDATING, WEBHOOK_CONFIGURATIONS
from deviceshare.loops.ports import ApiError, Cluster, Kind


async def examine(api: Cluster, release: str, deployment: Rollout | None) -> Check:
    """Checks the webhook configurations or the policies in the cluster."""
    if await _mode(api, deployment) == POLICIES:
        findings = [*await policies.examine(api, release, deployment), *await webhooks.leftovers(api)]
        return check("policies", "bound, strict, and of this release", findings)
    findings = [*await webhooks.examine(api, release, deployment), *await policies.leftovers(api)]
    return check("webhooks", "configured, with a CA that is valid", findings)


async def _mode(api: Cluster, deployment: Rollout | None) -> str:
    """What deviceshare was told; where that isn't known, what is in the cluster."""
    if deployment:
        return deployment.flag("admission") or WEBHOOKS
    if await _there(api, WEBHOOK_CONFIGURATIONS[1], contract.NAME):
        return WEBHOOKS
    return POLICIES if await _there(api, VALIDATING.policies, GUARDING_POLICY) else WEBHOOKS


async def _there(api: Cluster, kind: Kind[Any], name: str) -> bool:
    try:
        await api.get(kind, name)
    except ApiError:
        return False
    return True
