"""Namespaces left out: whether admission leaves out just those whose pods deviceshare ignores (pod_guard.py)."""

from collections.abc import Set as AbstractSet

from deviceshare.doctor.findings import PROBLEM, WARNING, Finding, listed
from deviceshare.doctor.kinds import Rollout


def setting(deployment: Rollout | None, release: str) -> set[str] | None:
    """Those that deviceshare ignores; None where that isn't known."""
    flag = deployment.flag("excluded-namespaces") if deployment else None
    return None if flag is None else {*filter(None, flag.split(",")), release}


def judge(name: str, names: AbstractSet[str], setting: AbstractSet[str]) -> list[Finding]:
    """The webhook or policy of this name leaves out `names`, deviceshare ignores `setting`."""
    findings = []
    flag = f"--excluded-namespaces={','.join(sorted(names))}"
    cure = f"helm upgrade the release: webhooks.excludedNamespaces sets both; or give deviceshare run {flag}"
    if loose := sorted(names - setting):
        what = f"{name} leaves out {listed(loose)}, but deviceshare trusts the annotations of pods there"
        findings.append(Finding(PROBLEM, f"{what}: they can claim devices by them", cure))
    if vain := sorted(setting - names):
        what = f"deviceshare takes no pod of {listed(vain)} into a group, but {name} doesn't leave it out"
        findings.append(Finding(WARNING, what, cure))
    return findings
