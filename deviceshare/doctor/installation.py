"""The installation: CRDs, rights, replicas, leader and agents, and kube-scheduler's configuration.

deviceshare writes no node into a pod (decision 10), so a scheduler that samples nodes may never offer the extender a
group's home, and one that evicts pods without asking it evicts them for nothing.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from typing import Final

import msgspec
from msgspec import Struct, field

from deviceshare import assets
from deviceshare.doctor import kinds
from deviceshare.doctor.canary import polled
from deviceshare.doctor.findings import PROBLEM, UNTESTED, WARNING, Finding, Verdict, listed, logs, seen
from deviceshare.doctor.kinds import Attributes, Installation, Rollout, SchedulerPod, are_granted
from deviceshare.domain import contract, wording
from deviceshare.kube.api import Api
from deviceshare.kube.definitions import CRDS, Crd, shipped_definitions
from deviceshare.loops.kinds import DRA_GROUP, DRA_VERSIONS, LEASES
from deviceshare.loops.leadership import LEASE_NAME
from deviceshare.loops.ports import ApiError, Cluster, Kind, NotFound

POLL_SECONDS: Final = 0.5
NO_DURATION_SECONDS: Final = 15.0
"""How long a lease without a duration is watched."""
_SCHEDULERS: Final = {"namespace": "kube-system", "label_selector": "component=kube-scheduler"}
"""The static pods that kubeadm and similar tools create."""
_SHOULD: Final = "percentageOfNodesToScore: 100, and preemptVerb: preempt for deviceshare's extender"
_GIVE: Final = f"give it {_SHOULD} (docs/installation.md), and restart it"


async def examine_definitions(api: Cluster) -> Verdict:
    """Compares each CRD in the cluster with the one that travels with this program."""
    findings = []
    for shipped in shipped_definitions():
        name = shipped.metadata.name
        found, unseen = await seen(api, CRDS, name, f"the CRD {name}")
        findings += unseen or judge_definition(shipped, found)
    return f"served as {contract.API_GROUP}/{contract.API_VERSION}, with every field of this release", findings


def judge_definition(shipped: Crd, found: Crd | None) -> list[Finding]:
    """What is wrong with the CRD in the cluster."""
    name = shipped.metadata.name
    cure = f"helm upgrade the release with crds.enabled=true, or kubectl apply -f {assets.manifests() / 'crds'}"
    if found is None:
        what = f"the CRD {name} is missing, so the cluster has no {shipped.spec.names['kind']}"
    elif found.ours is None:
        served = listed([each.name for each in found.spec.versions if each.served]) or "none"
        what = f"the CRD {name} doesn't serve {contract.API_VERSION} but {served}"
    elif not found.established:
        reasons = "; ".join(each.message for each in found.status.conditions if each.status == "False")
        what = f"the API server doesn't serve the CRD {name}: {reasons or 'not established'}"
        cure = f"kubectl describe crd {name}"
    elif lacking := found.lacking(shipped):
        what = f"the CRD {name} is of another release, so nothing is written; it lacks {listed(lacking)}"
    else:
        return []
    return [Finding(PROBLEM, what, cure)]


async def installation(api: Cluster, namespace: str) -> Installation:
    """The one in this namespace, as far as it can be seen."""
    ours = Installation(namespace)
    try:
        ours = ours._replace(deployment=await _labelled(api, kinds.DEPLOYMENTS, contract.NAME, namespace))
        return ours._replace(agents=await _labelled(api, kinds.DAEMON_SETS, contract.AGENT, namespace))
    except ApiError as error:
        return ours._replace(unseen=error)


async def _labelled(api: Cluster, kind: Kind[Rollout], label: str, namespace: str) -> Rollout | None:
    """By the label, which stays the same however the chart's `fullnameOverride` calls the object."""
    found = await api.list(kind, namespace=namespace, label_selector=f"app.kubernetes.io/name={label}")
    return min(found, key=lambda each: each.metadata.name, default=None)


async def examine_replicas(api: Cluster, ours: Installation) -> Verdict:
    """Watches each lease until it is renewed: clocks differ, so its renewTime alone proves nothing. Raises ApiError."""
    if ours.unseen:
        raise ours.unseen
    namespace, deployment = ours.namespace, ours.deployment
    findings = judge_deployment(deployment, namespace)
    for name in (LEASE_NAME, *([contract.SCHEDULER_NAME] if ours.container("kube-scheduler") else ())):
        renewed = await _renewed(api, name, namespace)
        findings += judge_lease(name, namespace, renewed=renewed, deployed=deployment is not None)
    ready = f"{deployment.status.ready_replicas} ready, " if deployment else ""
    return f"{ready}a leader renews its lease", findings + judge_agents(ours.agents, namespace)


def judge_deployment(found: Rollout | None, namespace: str) -> list[Finding]:
    """A missing Deployment is no finding: where deviceshare runs by other means, its lease shows whether it runs."""
    if found is None or found.status.ready_replicas >= found.spec.replicas > 0:
        return []
    name = found.metadata.name or contract.NAME
    what = f"{found.status.ready_replicas} of {found.spec.replicas} replicas of {namespace}/{name} are ready"
    cure = f"kubectl -n {namespace} describe pods -l app.kubernetes.io/name={contract.NAME}"
    if found.spec.replicas == 0:
        cure = f"kubectl -n {namespace} scale deployment {name} --replicas 2"
    return [Finding(WARNING if found.status.ready_replicas else PROBLEM, what, cure)]


def judge_lease(name: str, namespace: str, *, renewed: bool | None, deployed: bool) -> list[Finding]:
    """`renewed` is None where there is no such lease or nobody holds it."""
    if renewed:
        return []
    if renewed is None and not deployed:
        what = f"deviceshare doesn't run in {namespace}: there is neither a Deployment nor a leader"
        return [Finding(PROBLEM, what, "helm install it, or name its namespace with --release-namespace NAME")]
    what = f"nobody {'holds' if renewed is None else 'renews'} the Lease {namespace}/{name}"
    if name == contract.SCHEDULER_NAME:
        return [Finding(PROBLEM, f"{what}: no pod of a group is placed", logs(namespace, "kube-scheduler"))]
    return [Finding(PROBLEM, f"{what}: statuses and ledgers stand still", logs(namespace, contract.NAME))]


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
        look = partial(api.get, LEASES, name, namespace)
        first = await look()
        if not first.spec.holder_identity:
            return None
        seconds = first.spec.lease_duration_seconds or NO_DURATION_SECONDS
        last = await polled(look, lambda lease: lease.spec != first.spec, seconds, pause=POLL_SECONDS)
        return last.spec != first.spec
    except NotFound:
        return None


# Rights: what the person who asks may do, and whether deviceshare may do what it needs.
# The API server itself is asked, so it doesn't matter which roles grant a right.
# https://kubernetes.io/docs/reference/access-authn-authz/authorization/#checking-api-access

ROLES: Final = ("controller", "extender", "webhook")
PERSON: Final = (
    *(Attributes(verb, contract.API_GROUP, "shareddevicegroups") for verb in ("list", "create", "delete")),
    Attributes("list", contract.API_GROUP, "nodedevices"),
    *(Attributes("list", "", resource) for resource in ("nodes", "pods")),
)
"""The rights that a person needs for deviceshare's commands."""


class Rule(Struct, frozen=True, rename="camel"):
    """https://kubernetes.io/docs/reference/access-authn-authz/rbac/#role-and-clusterrole"""

    api_groups: list[str]
    resources: list[str]
    verbs: list[str]
    resource_names: list[str] = field(default_factory=lambda: [""])
    namespaced: bool = False


def needed(ours: Installation, *, dra: bool = False) -> list[Attributes]:
    """The rights that deviceshare with these flags needs, which the chart grants; `dra`: whether served."""
    roles = {"replica", *(ours.flag("roles") or ",".join(ROLES)).split(",")}
    if ours.by_gates:
        roles.discard("extender")
    if ours.deployment and ours.flag("ca-secret") is None:
        roles.discard("webhook")  # the CA isn't its own
    settings = {name: ours.flag(name) == "on" for name in ("scaling-pods", "dra-holds", "dra-handover")}
    settings |= {"always": True, "preemption": ours.flag("preemption") != "off", "gates": ours.by_gates, "dra": dra}
    text = (assets.manifests() / "rights.yaml").read_bytes()
    granted = msgspec.yaml.decode(text, type=dict[str, dict[str, list[Rule]]])
    rules = [
        r for role, each in granted.items() if role in roles for s, its in each.items() if settings[s] for r in its
    ]
    rights = (
        Attributes(verb, group, *resource.partition("/")[::2], ours.namespace if rule.namespaced else "", name)
        for rule in rules
        for group, resource, verb, name in product(rule.api_groups, rule.resources, rule.verbs, rule.resource_names)
    )
    return list(dict.fromkeys(rights))


async def examine_person(api: Cluster) -> Verdict:
    """Reviews the rights of the person who asks. Raises ApiError."""
    return "you may see nodes, devices and pods, and create groups", judge_rights(
        "", PERSON, await are_granted(api, PERSON)
    )


async def examine_own(api: Api, ours: Installation) -> Verdict:
    """Reviews the rights of deviceshare's service account. Raises ApiError."""
    try:
        dra = any(version in DRA_VERSIONS for version in await api.versions_of(DRA_GROUP))
    except ApiError:
        dra = False  # other checks report that the API server doesn't answer
    rights = needed(ours, dra=dra)
    return f"{ours.user} may do all that it needs to", judge_rights(
        ours.user, rights, await are_granted(api, rights, ours.user)
    )


def judge_rights(user: str, rights: Sequence[Attributes], granted: Sequence[bool]) -> list[Finding]:
    """A problem where it is deviceshare's user, which needs each of these rights at some time.

    A warning where it is the person who asks, "": that a person may not create groups may be intended.
    """
    cure = "helm upgrade the release with rbac.create=true, or kubectl apply the rules in docs/reference/rbac.md"
    if not user:
        cure = (
            "ask an administrator for the ClusterRoles deviceshare-view (groups and devices) and deviceshare-edit (to"
        )
        cure = f"{cure} write groups); without nodes and other namespaces' pods, commands say what they leave out"
    mark, denied = PROBLEM if user else WARNING, [right for right, may in zip(rights, granted, strict=True) if not may]
    return [Finding(mark, f"{user or 'you'} may not {listed(map(str, denied))}", cure)] if denied else []


# kube-scheduler's configuration.


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


async def examine_scheduler(api: Cluster, ours: Installation) -> Verdict:
    """Reads the ConfigMap of our own kube-scheduler, or what can be seen of the cluster's. Raises ApiError."""
    if ours.by_gates:
        return f"is the cluster's own: deviceshare places pods behind the gate {contract.PLACEMENT_GATE}", []
    said = "shows the extender every node, and asks it before it evicts pods"
    if ours.container("kube-scheduler"):
        return said, await _read_configuration(api, contract.SCHEDULER_NAME, ours.namespace, "config.yaml")
    # The cluster's, whose file is mostly on a host, out of reach of the API server.
    findings, pods = [], await api.list(kinds.SCHEDULER_PODS, **_SCHEDULERS)
    for pod in pods:
        if pod.config_map:
            name, file = pod.config_map
            findings += await _read_configuration(api, name, pod.metadata.namespace, file)
        else:
            findings += judge_unseen_configuration([pod])
    return said, findings if pods else judge_unseen_configuration([])


async def _read_configuration(api: Cluster, name: str, namespace: str, file: str) -> list[Finding]:
    where = f"{file} of the ConfigMap {namespace}/{name}"
    try:
        found = await api.get(kinds.CONFIG_MAPS, name, namespace)
    except NotFound:
        return [Finding(PROBLEM, f"kube-scheduler's configuration, {where}, is missing", "helm upgrade the release")]
    return [*judge_configuration(where, found.data.get(file, ""))]


def judge_configuration(where: str, text: str) -> Iterator[Finding]:
    """What is wrong with a configuration that can be read."""
    try:
        config = msgspec.yaml.decode(text, type=SchedulerConfig)
    except msgspec.DecodeError as error:
        what = f"kube-scheduler's configuration ({where}) can't be read: {error}"
        yield Finding(UNTESTED, what, f"see that it has {_SHOULD}")
        return
    verbs = ("filter", "filter-best")
    asks = [each for each in config.extenders or () if each.filter_verb in verbs and each.bind_verb == "bind"]
    if any(each.filter_verb == "filter-best" for each in asks) and len(config.extenders or ()) > 1:
        what = f"another extender may refuse the few nodes that filterVerb filter-best leaves a pod ({where})"
        yield Finding(WARNING, what, "set filterVerb: filter and prioritizeVerb: prioritize, weight: 100")
    if not asks:
        what = f"kube-scheduler's configuration ({where}) names no extender (filterVerb: filter-best, bindVerb: bind)"
        yield Finding(PROBLEM, what, "add it: docs/installation.md")
    if config.percentage < 100:
        said = f"only {config.percentage}% of the nodes" if config.percentage else "a sample of the nodes"
        what = f"above 100 nodes kube-scheduler shows the extender {said}, maybe not a group's node ({where})"
        yield Finding(WARNING, what, _GIVE)
    if asks and not any(each.preempt_verb for each in asks):
        what = f"kube-scheduler evicts other pods for pods of groups without asking the extender ({where})"
        yield Finding(WARNING, what, _GIVE)
    if any(each.ignorable for each in asks):
        what = f"while deviceshare is down, kube-scheduler binds pods of groups without devices ({where}: ignorable)"
        yield Finding(PROBLEM, what, "set ignorable: false, and restart it")


def judge_unseen_configuration(pods: Sequence[SchedulerPod]) -> list[Finding]:
    """Which files to check by hand; of the pods only those that name one."""
    files = sorted({f"{pod.config} on {pod.spec.node_name or 'its host'}" for pod in pods if pod.config})
    where = wording.listed(files) or "wherever it runs"
    what = f"kube-scheduler's configuration can't be seen from here: {where}"
    return [Finding(UNTESTED, what, f"see that it has {_SHOULD}: docs/installation.md")]
