"""Webhooks: whether they are configured and trusted, and whether a pod comes back injected.

The dry run proves the whole way, API server to replica and back, and leaves nothing behind.
"""

import base64
import binascii
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec
import yaml
from cryptography import x509

from deviceshare import assets
from deviceshare.certificates import issuance
from deviceshare.doctor import canary, replicas
from deviceshare.doctor.findings import PROBLEM, UNTESTED, WARNING, Check, Finding, check, listed, unread
from deviceshare.doctor.kinds import Rollout
from deviceshare.domain import contract
from deviceshare.domain.admission.pod_guard import GUARDING, left_out
from deviceshare.domain.objects.pods import Pod
from deviceshare.loops.kinds import PODS, WEBHOOK_CONFIGURATIONS, WebhookConfiguration
from deviceshare.loops.ports import ApiError, NotFound

if TYPE_CHECKING:
    from deviceshare.kube.api import Api

SOON: Final = timedelta(days=7)
"""A CA that ends within this time should have been replaced already."""
_OF_PODS: Final = ("mutate-pods.deviceshare.io", GUARDING)
OF_AGENTS: Final = "validate-node-devices.deviceshare.io"
"""Needed where agents run, and only there."""

_APPLY = "helm upgrade the release, or kubectl apply -f {file} and let deviceshare fill in the caBundle (--ca-secret)"


async def examine(api: "Api", release: str, deployment: Rollout | None) -> Check:
    """The configurations, as they stand."""
    findings = []
    setting = deployment.flag("excluded-namespaces") if deployment else None
    try:
        watched = await replicas.agents(api, release) is not None
    except ApiError:  # the check of the replicas says so
        watched = False
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
                findings += judge_left_out(found, {*filter(None, setting.split(",")), release})
    return check("webhooks", "configured, with a CA that is valid", findings)


def judge(kind: str, found: WebhookConfiguration, names: list[str], now: datetime) -> list[Finding]:
    """What is wrong with one configuration that should have the webhooks of these names."""
    present = {webhook.get("name", "") for webhook in found.webhooks}
    missing = [name for name in names if name not in present]
    findings = [_missing(f"{kind} {contract.NAME} lacks {listed(missing)}", missing)] if missing else []
    for webhook in found.webhooks:
        findings += _judge_bundle(kind, webhook, now)
    return findings


def judge_left_out(found: WebhookConfiguration, setting: set[str]) -> list[Finding]:
    """Whether the webhooks leave out just the namespaces whose pods deviceshare doesn't believe either (guard.py)."""
    findings = []
    for webhook in found.webhooks:
        if webhook.get("name") not in _OF_PODS:
            continue
        names = left_out(webhook)
        flag = f"--excluded-namespaces={','.join(sorted(names))}"
        cure = f"helm upgrade the release: webhooks.excludedNamespaces sets both; or give deviceshare run {flag}"
        if loose := sorted(names - setting):
            what = f"{webhook['name']} leaves out {listed(loose)}, but deviceshare believes what pods there say"
            findings.append(Finding(PROBLEM, f"{what}: they can take devices by their annotations", cure))
        if vain := sorted(setting - names):
            what = (
                f"deviceshare takes no pod of {listed(vain)} into a group, but {webhook['name']} doesn't leave it out"
            )
            findings.append(Finding(WARNING, what, cure))
    return findings


async def examine_injection(api: "Api", namespace: str, release: str) -> Check:
    """Sends a pod of a group through admission, as a dry run."""
    body = canary.pod("deviceshare-canary-dry-run", "deviceshare-canary-dry-run")
    # With the label, the validating webhook is asked even where the mutating one was not: its answer tells why.
    body["metadata"]["labels"][contract.GROUP] = "deviceshare-canary-dry-run"
    try:
        answer: Pod | ApiError = await api.create(PODS, body, namespace, dry_run=True)
    except ApiError as error:
        answer = error
    said = f"a pod sent to {namespace} as a dry run came back with the group's variables"
    return check("injection", said, judge_injection(answer, namespace, release))


def judge_injection(answer: Pod | ApiError, namespace: str, release: str) -> list[Finding]:
    """What a dry run's answer tells about the way to the webhooks."""
    if isinstance(answer, Pod):
        if answer.admitted:
            return []
        what = f"a pod of a group in {namespace} is not injected: the webhooks are missing or leave this namespace out"
        cure = "name another with --namespace, or take it out of webhooks.excludedNamespaces in the chart's values"
        return [Finding(PROBLEM, what, cure)]
    said = str(answer)
    if "failed calling webhook" in said:
        cure = next(cure for sign, cure in _SIGNS.items() if sign in said).format(release=release)
        return [Finding(PROBLEM, f"the API server can't ask the webhooks: {said}", cure)]
    if "deviceshare.io" in said and "denied the request" in said:
        what = f"the mutating webhook is not asked, the validating one is: {said}"
        return [Finding(PROBLEM, what, f"kubectl get mutatingwebhookconfiguration {contract.NAME} -o yaml")]
    if "cannot create resource" in said:
        return [Finding(UNTESTED, f"you may not create pods in {namespace}", "name a namespace with --namespace NAME")]
    what = f"something else refused the pod: {said}"
    return [Finding(UNTESTED, what, "name a namespace whose policies allow a plain pod: --namespace NAME")]


_SIGNS: Final = {  # Go's words for what happened to a connection; the first that fits
    "x509": "the caBundle isn't that of who signs: deviceshare mends its own in seconds; else see cert-manager",
    "no endpoints": "no replica is ready: kubectl -n {release} get pods",
    "not found": "the webhooks' Service is gone: helm upgrade the release",
    "connection refused": "no replica answers there: kubectl -n {release} get pods,endpoints",
    "": "kubectl -n {release} get pods; if they are ready, let the API server reach their port 9443: firewall, network "
    "plugin, networkPolicy.enabled",
}


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
        away = "an agent may write what other nodes have"
    return Finding(PROBLEM, f"{what}: {away}", _APPLY.format(file=assets.manifests() / "webhooks.yaml"))


def _judge_bundle(kind: str, webhook: dict[str, Any], now: datetime) -> list[Finding]:
    name = f"{kind} {contract.NAME}, webhook {webhook.get('name')}"
    try:
        text = base64.b64decode(webhook.get("clientConfig", {}).get("caBundle", "")).decode(errors="replace")
    except (binascii.Error, ValueError):
        text = ""
    authorities = [x509.load_pem_x509_certificate(each.encode()) for each in issuance.split(text)]
    if not authorities:
        cure = "see deviceshare's log for the certificate authority; with cert-manager, see that its CA injector runs"
        return [Finding(PROBLEM, f"{name}: caBundle holds no certificate, so the API server trusts nobody", cure)]
    until = max(each.not_valid_after_utc for each in authorities)
    if until - now > SOON:
        return []
    ends = f"{name}: the CA {'ended' if until < now else 'ends'} on {until:%Y-%m-%d %H:%M} UTC"
    cure = "deviceshare replaces its own in time, so see its log; another's you replace in the caBundle"
    return [Finding(PROBLEM if until < now else WARNING, ends, cure)]
