"""Webhooks: whether they are configured and trusted, or left over where policies took their place."""

import base64
import binascii
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import yaml
from cryptography import x509

from deviceshare import assets
from deviceshare.certificates import issuance
from deviceshare.doctor import namespaces, replicas
from deviceshare.doctor.findings import PROBLEM, WARNING, Finding, listed, unread
from deviceshare.doctor.kinds import Rollout
from deviceshare.domain import contract
from deviceshare.domain.admission.pod_guard import GUARDING, left_out
from deviceshare.loops.kinds import WEBHOOK_CONFIGURATIONS, WebhookConfiguration
from deviceshare.loops.ports import ApiError, Cluster, NotFound

SOON: Final = timedelta(days=7)
"""A CA that ends within this time should have been replaced already."""
_OF_PODS: Final = ("mutate-pods.deviceshare.io", GUARDING)
OF_AGENTS: Final = "validate-node-devices.deviceshare.io"
"""Needed only where agents run."""

_APPLY = "helm upgrade the release, or kubectl apply -f {file} and let deviceshare fill in the caBundle (--ca-secret)"


async def examine(api: Cluster, release: str, deployment: Rollout | None) -> list[Finding]:
    """What is wrong with the webhook configurations in the cluster."""
    findings = []
    setting = namespaces.setting(deployment, release)
    watched = await replicas.has_agents(api, release)
    for kind, names in zip(WEBHOOK_CONFIGURATIONS, _shipped(), strict=True):
        try:
            found = await api.get(kind, contract.NAME)
        except NotFound:
            findings.append(_missing(f"{kind.kind} {contract.NAME} is missing", names))
        except ApiError as error:
            findings.append(unread(f"the {kind.kind} {contract.NAME}", error))
        else:
            wanted = [name for name in names if watched or name != OF_AGENTS]
            findings += judge(kind.kind, found, wanted, datetime.now(UTC))
            if setting is not None:
                findings += judge_left_out(found, setting)
    return findings


async def leftovers(api: Cluster) -> list[Finding]:
    """Configurations that remain where policies admit pods: no replica answers them."""
    findings = []
    for kind in WEBHOOK_CONFIGURATIONS:
        try:
            await api.get(kind, contract.NAME)
        except NotFound:
            continue
        except ApiError as error:
            findings.append(unread(f"whether a {kind.kind} {contract.NAME} is left", error))
        else:
            what = f"{kind.kind} {contract.NAME} is left, but deviceshare serves no webhooks (--admission=policies)"
            cure = f"kubectl delete {kind.plural} {contract.NAME}"
            findings.append(Finding(PROBLEM, f"{what}: the API server refuses what it can't ask them about", cure))
    return findings


def judge(kind: str, found: WebhookConfiguration, names: list[str], now: datetime) -> list[Finding]:
    """What is wrong with one configuration that should have the webhooks of these names."""
    present = {webhook.get("name", "") for webhook in found.webhooks}
    missing = [name for name in names if name not in present]
    findings = [_missing(f"{kind} {contract.NAME} lacks {listed(missing)}", missing)] if missing else []
    for webhook in found.webhooks:
        findings += _judge_bundle(kind, webhook, now)
    return findings


def judge_left_out(found: WebhookConfiguration, setting: set[str]) -> list[Finding]:
    """Whether the webhooks leave out just the namespaces whose pods deviceshare ignores (pod_guard.py)."""
    ours = (webhook for webhook in found.webhooks if webhook.get("name") in _OF_PODS)
    return [finding for each in ours for finding in namespaces.judge(each["name"], left_out(each), setting)]


def _shipped() -> list[list[str]]:
    """The webhooks' names in the mutating and the validating configuration of this release."""
    text = (assets.manifests() / "webhooks.yaml").read_text()
    documents = [msgspec.convert(each, WebhookConfiguration) for each in yaml.safe_load_all(text)]
    return [[webhook["name"] for webhook in document.webhooks] for document in documents]


def _missing(what: str, names: list[str]) -> Finding:
    away = "anybody may change their devices"
    if "mutate-pods.deviceshare.io" in names:
        away = "pods of groups get no devices"
    elif names == [OF_AGENTS]:
        away = "an agent may write what other nodes have, and people with deviceshare-recover misreport devices"
    return Finding(PROBLEM, f"{what}: {away}", _APPLY.format(file=assets.manifests() / "webhooks.yaml"))


def _judge_bundle(kind: str, webhook: dict[str, Any], now: datetime) -> list[Finding]:
    name = f"{kind} {contract.NAME}, webhook {webhook.get('name')}"
    try:
        text = base64.b64decode(webhook.get("clientConfig", {}).get("caBundle", "")).decode(errors="replace")
    except (binascii.Error, ValueError):
        text = ""
    authorities = [x509.load_pem_x509_certificate(each.encode()) for each in issuance.split(text)]
    if not authorities:
        cure = "see deviceshare's log for the certificate authority; with cert-manager, check that its CA injector runs"
        return [
            Finding(PROBLEM, f"{name}: caBundle holds no certificate, so the API server trusts no certificate", cure)
        ]
    until = max(each.not_valid_after_utc for each in authorities)
    if until - now > SOON:
        return []
    ends = f"{name}: the CA {'ended' if until < now else 'ends'} on {until:%Y-%m-%d %H:%M} UTC"
    cure = "deviceshare rotates its own CA, so see its log; replace any other CA in the caBundle"
    return [Finding(PROBLEM if until < now else WARNING, ends, cure)]
