"""The canary: a group of one free device and a pod of it, and what their state says of deviceshare.

The pod runs nothing: its image is never pulled.
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
    """A group of one device, on any node."""
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
    """A resource with a device free for a group now, only `wanted` if that is given; or ""."""
    able = {node.metadata.name for node in nodes if node.shared and node.ready and not node.spec.unschedulable}
    states = (state for ledger in ledgers if ledger.node in able for state in device_states(ledger))
    free = {state.device.resource for state in states if state.free}
    return min(free & {wanted} if wanted else free, default="")


def judge_pod(seen: Pod, release: str) -> list[Finding]:
    """Why the canary's pod isn't bound with devices; no finding when it is."""
    if seen.placed_on:
        why = f": {seen.refusal.message}" if seen.refusal else ", nor said why"
        what = (
            f"deviceshare placed the canary on {seen.placed_on}, but {seen.spec.scheduler_name} has not bound it{why}"
        )
        return [Finding(PROBLEM, what, "see the logs of the cluster's kube-scheduler")]
    if seen.awaits_placement:
        what = "the canary is behind deviceshare's scheduling gate: the leader found no node for it, or none leads"
        return [Finding(PROBLEM, what, logs(release, contract.NAME))]
    if seen.node:
        if seen.devices:
            return []
        what = f"the canary was bound to {seen.node} without devices, not by deviceshare's extender"
        cure = f"give the profile {contract.SCHEDULER_NAME} of kube-scheduler the extender: docs/installation.md"
        return [Finding(PROBLEM, what, cure)]
    if seen.gates:
        what = f"something in {seen.metadata.namespace} holds pods back: the canary {behind_gates([seen])}"
        return [Finding(UNTESTED, what, "name another namespace: --namespace NAME")]
    tried = next((each for each in seen.status.conditions if each.type == "PodScheduled"), None)
    scheduler = logs(release, "kube-scheduler")
    if tried is None:
        what = (
            f"no kube-scheduler schedules pods of {contract.SCHEDULER_NAME}: the canary has no condition PodScheduled"
        )
        return [Finding(PROBLEM, what, scheduler)]
    if "nodes are available" not in tried.message:  # kube-scheduler's text when it has tried all of them
        what = f"kube-scheduler could not ask the extender: {tried.message}"
        return [Finding(PROBLEM, what, f"{scheduler}; check that deviceshare in the same pod is ready")]
    return [Finding(PROBLEM, f"the canary was not placed: {tried.message}", "deviceshare inspect")]


def judge_group(seen: Group, bound: Pod, release: str) -> list[Finding]:
    """Whether the leader updated the group's status after the pod was bound."""
    if seen.status.phase == BOUND and seen.node == bound.node:
        return []
    what = (
        f"the canary is bound, but its group's phase is still {seen.status.phase or 'empty'}: no leader writes statuses"
    )
    return [Finding(PROBLEM, what, logs(release, contract.NAME))]


def judge_leftovers(groups: Sequence[Group]) -> list[Finding]:
    """Canaries that a killed doctor left behind."""
    names = [each.name for each in groups]
    if not names:
        return []
    cure = f"kubectl delete pods -A -l {SELECTOR}; kubectl delete sdg -l {SELECTOR}"
    what = f"a canary of another doctor holds a device; if none is running now, delete it: {listed(names)}"
    return [Finding(WARNING, what, cure)]
