"""Injection: whether a pod comes back injected.

A pod created as a dry run tests the whole path, API server to replica and back where there are webhooks, and leaves
nothing behind.
"""

from typing import TYPE_CHECKING, Final

from deviceshare.doctor import canary
from deviceshare.doctor.findings import PROBLEM, UNTESTED, Check, Finding, check
from deviceshare.domain import contract
from deviceshare.domain.objects.pods import Pod
from deviceshare.loops.kinds import PODS, POLICIES
from deviceshare.loops.ports import ApiError

if TYPE_CHECKING:
    from deviceshare.kube.api import Api


async def examine(api: "Api", namespace: str, release: str) -> Check:
    """Creates a pod of a group, as a dry run."""
    body = canary.pod("deviceshare-canary-dry-run", "deviceshare-canary-dry-run")
    # With the label, validation happens even where injection did not; its answer says why.
    body["metadata"]["labels"][contract.GROUP] = "deviceshare-canary-dry-run"
    try:
        answer: Pod | ApiError = await api.create(PODS, body, namespace, dry_run=True)
    except ApiError as error:
        answer = error
    said = f"a pod sent to {namespace} as a dry run came back with the group's variables"
    return check("injection", said, judge(answer, namespace, release))


def judge(answer: Pod | ApiError, namespace: str, release: str) -> list[Finding]:
    """What the dry run's answer says about the path to the webhooks."""
    if isinstance(answer, Pod):
        if answer.injected:
            return []
        what = f"a pod of a group in {namespace} is not injected: webhooks or policies are missing or leave it out"
        cure = "name another with --namespace, or take it out of webhooks.excludedNamespaces in the chart's values"
        return [Finding(PROBLEM, what, cure)]
    said = str(answer)
    if "failed calling webhook" in said:
        cure = next(cure for sign, cure in _SIGNS.items() if sign in said).format(release=release)
        return [Finding(PROBLEM, f"the API server can't call the webhooks: {said}", cure)]
    if "deviceshare.io" in said and "denied the request" in said:
        what = f"the mutating webhook is not called, the validating one is: {said}"
        return [Finding(PROBLEM, what, f"kubectl get mutatingwebhookconfiguration {contract.NAME} -o yaml")]
    if any(f"olicy '{name}'" in said for name in POLICIES):  # "ValidatingAdmissionPolicy '…'", "policy '…'"
        what = f"a pod of a group is refused, though it is one that should be injected: {said}"
        return [Finding(PROBLEM, what, "kubectl get mutatingadmissionpolicies,mutatingadmissionpolicybindings -o yaml")]
    if "cannot create resource" in said:
        return [Finding(UNTESTED, f"you may not create pods in {namespace}", "name a namespace with --namespace NAME")]
    what = f"the pod was refused, but not by deviceshare: {said}"
    return [Finding(UNTESTED, what, "name a namespace whose policies allow a plain pod: --namespace NAME")]


_SIGNS: Final = {  # parts of Go's connection errors; the first that fits counts
    "x509": "the caBundle isn't the signer's: deviceshare repairs its own in seconds; else see cert-manager",
    "no endpoints": "no replica is ready: kubectl -n {release} get pods",
    "not found": "the webhooks' Service is missing: helm upgrade the release",
    "connection refused": "no replica answers there: kubectl -n {release} get pods,endpoints",
    "": "kubectl -n {release} get pods; if they are ready, let the API server reach their port 9443: firewall, network "
    "plugin, networkPolicy.enabled",
}
