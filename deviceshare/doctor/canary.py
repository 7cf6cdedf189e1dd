"""A canary: a group of one free device and a pod of it, which are bound, looked at and deleted again.

Its pod runs nothing: its image is never pulled.
"""

from collections.abc import Sequence
from typing import Any, Final

from deviceshare.doctor.findings import PROBLEM, UNTESTED, WARNING, Finding, listed, logs
from deviceshare.domain import contract
from deviceshare.domain.objects.groups import BOUND, Group
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement.device_states import device_states
from deviceshare.domain.placement.join_obstacles import behind_gates

LABEL: Final = ("app.kubernetes.io/name", "deviceshare-canary")
SELECTOR: Final = "=".join(LABEL)


def group(name: str, resource: str) -> dict[str, Any]:
    """One device, anywhere."""
    return {"metadata": {"name": name, "labels": dict([LABEL])}, "spec": {"resources": {resource: 1}}}


def pod(name: str, group: str) -> dict[str, Any]:
    """A pod that even a strict namespace admits, and that never runs anything."""
    container = {
        "name": "canary",
        "image": "deviceshare-canary:never-pulled",
        "imagePullPolicy": "Never",
        "resources": {each: {"cpu": "1m", "memory": "8Mi"} for each in ("requests", "limits")},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }
    return {
        "metadata": {"name": name, "labels": dict([LABEL]), "annotations": {contract.GROUP: group}},
        "spec": {
            "schedulerName": contract.SCHEDULER_NAME,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65534,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "tolerations": [{"operator": "Exists"}],
            "containers": [container],
        },
    }


def free_resource(nodes: Sequence[Node], ledgers: Sequence[NodeDevices], wanted: str = "") -> str:
    """A resource of which a group could get one device now, `wanted` where one is; or ""."""
    able = {node.metadata.name for node in nodes if node.shared and node.ready and not node.spec.unschedulable}
    states = (state for ledger in ledgers if ledger.node in able for state in device_states(ledger))
    free = {state.device.resource for state in states if state.free}
    return min(free & {wanted} if wanted else free, default="")


def judge_pod(seen: Pod, release: str) -> list[Finding]:
    """Why a pod of the canary is where it is; none when it was bound with devices."""
    if seen.node:
        if seen.devices:
            return []
        what = f"something other than deviceshare's extender bound the canary to {seen.node}, without devices"
        cure = f"give the profile {contract.SCHEDULER_NAME} of kube-scheduler the extender: docs/installation.md"
        return [Finding(PROBLEM, what, cure)]
    if seen.gates:
        what = f"something in {seen.metadata.namespace} holds pods back: the canary {behind_gates([seen])}"
        return [Finding(UNTESTED, what, "name a namespace where nothing does: --namespace NAME")]
    tried = next((each for each in seen.status.conditions if each.type == "PodScheduled"), None)
    scheduler = logs(release, "kube-scheduler")
    if tried is None:
        what = f"no kube-scheduler looks at pods of {contract.SCHEDULER_NAME}: the canary waits and nobody says why"
        return [Finding(PROBLEM, what, scheduler)]
    # Old releases (1.20) have the reason Unschedulable either way, so it takes kube-scheduler's own words.
    if "nodes are available" not in tried.message:
        what = f"kube-scheduler could not ask the extender: {tried.message}"
        return [Finding(PROBLEM, what, f"{scheduler}; see that deviceshare beside it is ready")]
    return [Finding(PROBLEM, f"the canary was not placed: {tried.message}", "deviceshare inspect")]


def judge_group(seen: Group, bound: Pod, release: str) -> list[Finding]:
    """Whether the leader noticed, once the pod is bound."""
    if seen.status.phase == BOUND and seen.node == bound.node:
        return []
    what = f"the canary is bound, but its group still says {seen.status.phase or 'nothing'}: no leader writes statuses"
    return [Finding(PROBLEM, what, logs(release, contract.NAME))]


def judge_leftovers(groups: Sequence[Group]) -> list[Finding]:
    """What doctors left behind that were killed."""
    names = [each.name for each in groups]
    if not names:
        return []
    cure = f"kubectl delete pods -A -l {SELECTOR}; kubectl delete sdg -l {SELECTOR}"
    what = f"another doctor's canary holds a device, unless it is at work now: {listed(names)}"
    return [Finding(WARNING, what, cure)]
