"""Policies: whether those that admit pods and groups are there, bound, strict, and of this release."""

from typing import Final

from deviceshare import __version__, assets
from deviceshare.doctor import namespaces, replicas
from deviceshare.doctor.findings import PROBLEM, WARNING, Finding, unread
from deviceshare.doctor.kinds import Rollout
from deviceshare.domain.admission.pod_guard import left_out
from deviceshare.kube.refusals import Unserved
from deviceshare.loops.kinds import MUTATING, POLICIES, AdmissionPolicy, PolicyBinding, PolicyKinds
from deviceshare.loops.ports import ApiError, Cluster, NotFound

_OF_PODS: Final = ("deviceshare-mutate-pods", "deviceshare-pods", "deviceshare-bypasses")
_OF_AGENTS: Final = "deviceshare-node-devices"
_OF_BYPASSES: Final = "deviceshare-bypasses"
"""By its setting it warns or denies."""
_WITHOUT: Final = {
    "deviceshare-mutate-pods": "pods of groups get no devices",
    "deviceshare-pods": "anybody may change their devices",
    _OF_BYPASSES: "nobody is told of ways around the hand-over of devices",
    "deviceshare-groups": "groups are deleted while pods use them",
    _OF_AGENTS: "an agent may write what other nodes have",
    "deviceshare-ledger-deletions": "a NodeDevices with claims can be deleted, and is gone with the last of these",
}
"""What is so where one of them isn't in force."""
_VERSION: Final = "app.kubernetes.io/version"
_UPGRADE: Final = "helm upgrade the release"


async def examine(api: Cluster, release: str, deployment: Rollout | None) -> list[Finding]:
    """What is wrong with the policies in the cluster."""
    setting = namespaces.setting(deployment, release)
    version = (deployment.metadata.labels.get(_VERSION) if deployment else None) or __version__
    watched = await replicas.has_agents(api, release)
    findings = []
    for name, kinds in POLICIES.items():
        if name == _OF_AGENTS and not watched:
            continue
        try:
            policy = await api.get(kinds.policies, name)
            findings += judge(kinds, policy, version)
            binding = await api.get(kinds.bindings, name)
            findings += judge_binding(kinds, binding, name)
        except (NotFound, Unserved) as error:
            findings.append(_missing(kinds, name, error))
        except ApiError as error:
            findings.append(unread(f"the {kinds.policies.kind} {name} and its binding", error))
        else:
            if setting is not None and name in _OF_PODS:
                findings += namespaces.judge(name, leaves_out(policy, binding), setting)
    return findings


async def leftovers(api: Cluster) -> list[Finding]:
    """Policies that review pods where webhooks do; a person who may not see that is told of the webhooks already."""
    findings = []
    for name, kinds in POLICIES.items():
        try:
            await api.get(kinds.bindings, name)
        except ApiError:
            continue
        cure = (
            f"{_UPGRADE} once more if that changed admission, so that one of both goes; policies of nobody's go with"
            f" kubectl delete {kinds.bindings.plural},{kinds.policies.plural} {name}"
        )
        findings.append(Finding(WARNING, f"the policy {name} is in force besides the webhooks", cure))
    return findings


def judge(kinds: PolicyKinds, policy: AdmissionPolicy, version: str) -> list[Finding]:
    """What is wrong with a policy that should be of this version."""
    name = policy.metadata.name
    whole, findings = f"{kinds.policies.kind} {name}", []
    if policy.spec.failure_policy != "Fail":
        what = f"{whole} has failurePolicy {policy.spec.failure_policy}: where it can't be evaluated, {_WITHOUT[name]}"
        findings.append(Finding(PROBLEM, what, f"{_UPGRADE}: its failurePolicy is Fail"))
    found = policy.metadata.labels.get(_VERSION, "")
    if found != version:
        what = f"{whole} is of {f'deviceshare {found}' if found else 'an unknown version'}, not {version}"
        findings.append(Finding(WARNING, what, _UPGRADE))
    if warnings := policy.status.type_checking.expression_warnings:
        said = "; ".join(" ".join(f"{each.field_ref}: {each.warning}".split()) for each in warnings)
        what = f"the API server finds faults in {whole}, which may refuse what it should admit: {said}"
        cure = f"{_UPGRADE}; if it stays, report it with: kubectl get {kinds.policies.plural} {name} -o yaml"
        findings.append(Finding(WARNING, what, cure))
    return findings


def judge_binding(kinds: PolicyKinds, binding: PolicyBinding, name: str) -> list[Finding]:
    """Whether a binding puts the policy of this name in force."""
    whole = f"{kinds.bindings.kind} {binding.metadata.name}"
    if binding.spec.policy_name != name:
        what = f"{whole} binds {binding.spec.policy_name or 'no policy'}, not {name}: {_WITHOUT[name]}"
        return [Finding(PROBLEM, what, _UPGRADE)]
    wanted = {"Warn", "Deny"} if name == _OF_BYPASSES else {"Deny"}
    if kinds is not MUTATING and wanted.isdisjoint(binding.spec.validation_actions):
        actions = ", ".join(binding.spec.validation_actions) or "none"
        return [Finding(PROBLEM, f"{whole} has validationActions {actions}, not Deny: {_WITHOUT[name]}", _UPGRADE)]
    return []


def leaves_out(policy: AdmissionPolicy, binding: PolicyBinding) -> frozenset[str]:
    """The namespaces that either of them excludes."""
    return left_out(policy.spec.match_constraints) | left_out(binding.spec.match_resources)


def _missing(kinds: PolicyKinds, name: str, error: ApiError) -> Finding:
    if isinstance(error, Unserved):
        what = f"the API server doesn't serve the kind {kinds.policies.kind} (Kubernetes 1.36 does): {_WITHOUT[name]}"
        return Finding(PROBLEM, what, f"{_UPGRADE} with admission=auto, which chooses webhooks")
    what = f"{kinds.policies.kind} {name} or its binding of the same name is missing: {_WITHOUT[name]}"
    return Finding(PROBLEM, what, f"{_UPGRADE}, or kubectl apply -f {assets.manifests() / 'policies.yaml'}")
