"""kube-scheduler's configuration: whether it asks the extender about every node, and before it evicts pods.

deviceshare writes no node into a pod (decision 10), so a scheduler that samples nodes may never offer the extender a
group's home.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from deviceshare.doctor.findings import PROBLEM, UNTESTED, WARNING, Check, Finding, check, unread
from deviceshare.doctor.kinds import CONFIG_MAPS, SCHEDULER_PODS, Rollout, SchedulerPod, by_gates
from deviceshare.domain import contract
from deviceshare.domain.wording import listed
from deviceshare.loops.ports import ApiError, Cluster, NotFound

_SYSTEM: Final = "kube-system"
_SELECTOR: Final = "component=kube-scheduler"
"""The label of the static pods that kubeadm and similar tools create."""
_FILE: Final = "config.yaml"
_SHOULD: Final = "percentageOfNodesToScore: 100, and preemptVerb: preempt for deviceshare's extender"
_CURE: Final = f"give it {_SHOULD} (docs/installation.md), and restart it"


class Profile(Struct, frozen=True, rename="camel"):
    scheduler_name: str = contract.DEFAULT_SCHEDULER_NAME
    percentage_of_nodes_to_score: int | None = None
    """Newer releases have it here, too, where it overrides the general one."""


class ExtenderConfig(Struct, frozen=True, rename="camel"):
    filter_verb: str = ""
    bind_verb: str = ""
    preempt_verb: str = ""
    ignorable: bool = False


class SchedulerConfig(Struct, frozen=True, rename="camel"):
    """https://kubernetes.io/docs/reference/config-api/kube-scheduler-config.v1/ (and its older versions)"""

    percentage_of_nodes_to_score: int | None = None
    profiles: list[Profile] | None = None
    extenders: list[ExtenderConfig] | None = None

    @property
    def percentage(self) -> int:
        """The share of nodes that deviceshare's profile scores; 0 lets kube-scheduler choose."""
        ours = (each for each in self.profiles or () if each.scheduler_name == contract.SCHEDULER_NAME)
        own = next(ours, Profile()).percentage_of_nodes_to_score
        return (self.percentage_of_nodes_to_score if own is None else own) or 0


async def examine(api: Cluster, release: str, deployment: Rollout | None) -> Check:
    """Reads the ConfigMap of our own kube-scheduler, or what can be seen of the cluster's."""
    if by_gates(deployment):
        said = f"is the cluster's own: deviceshare places pods behind the gate {contract.PLACEMENT_GATE}"
        return check("scheduler", said, [])
    try:
        if deployment and deployment.container("kube-scheduler"):
            findings = await _read(api, contract.SCHEDULER_NAME, release, _FILE)
        else:
            findings = await _examine_foreign(api)
    except ApiError as error:
        return check("scheduler", "", [unread("kube-scheduler's configuration", error)])
    return check("scheduler", "shows the extender every node, and asks it before it evicts pods", findings)


async def _examine_foreign(api: Cluster) -> list[Finding]:
    """The cluster's kube-scheduler: its file is mostly on a host, out of reach of the API server."""
    pods = await api.list(SCHEDULER_PODS, namespace=_SYSTEM, label_selector=_SELECTOR)
    findings = []
    for pod in pods:
        if source := pod.config_map:
            findings += await _read(api, source[0], pod.metadata.namespace, source[1])
        else:
            findings += judge_unseen([pod])
    return findings if pods else judge_unseen([])


async def _read(api: Cluster, name: str, namespace: str, file: str) -> list[Finding]:
    where = f"{file} of the ConfigMap {namespace}/{name}"
    try:
        found = await api.get(CONFIG_MAPS, name, namespace)
    except NotFound:
        return [Finding(PROBLEM, f"kube-scheduler's configuration, {where}, is missing", "helm upgrade the release")]
    return judge(where, found.data.get(file, ""))


def judge(where: str, text: str) -> list[Finding]:
    """What is wrong with a configuration that can be read."""
    try:
        config = msgspec.yaml.decode(text, type=SchedulerConfig)
    except msgspec.DecodeError as error:
        what = f"kube-scheduler's configuration ({where}) can't be read: {error}"
        return [Finding(UNTESTED, what, f"see that it has {_SHOULD}")]
    asks = [each for each in config.extenders or () if each.filter_verb == "filter" and each.bind_verb == "bind"]
    findings = []
    if not asks:
        what = f"kube-scheduler's configuration ({where}) names no extender with filterVerb filter and bindVerb bind"
        findings.append(Finding(PROBLEM, what, "add it: docs/installation.md"))
    if config.percentage < 100:
        said = f"only {config.percentage}% of the nodes" if config.percentage else "a sample of the nodes"
        what = f"above 100 nodes kube-scheduler shows the extender {said}, maybe not a group's node ({where})"
        findings.append(Finding(WARNING, what, _CURE))
    if asks and not any(each.preempt_verb for each in asks):
        what = f"kube-scheduler evicts other pods for pods of groups without asking the extender ({where})"
        findings.append(Finding(WARNING, what, _CURE))
    if any(each.ignorable for each in asks):
        what = f"while deviceshare is down, kube-scheduler binds pods of groups without devices ({where}: ignorable)"
        findings.append(Finding(PROBLEM, what, "set ignorable: false, and restart it"))
    return findings


def judge_unseen(pods: Sequence[SchedulerPod]) -> list[Finding]:
    """Which files to check by hand; of the pods only those that name one."""
    files = sorted({f"{pod.config} on {pod.spec.node_name or 'its host'}" for pod in pods if pod.config})
    what = f"kube-scheduler's configuration can't be seen from here: {listed(files) or 'wherever it runs'}"
    return [Finding(UNTESTED, what, f"see that it has {_SHOULD}: docs/installation.md")]
