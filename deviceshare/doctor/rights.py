"""Rights: what the person who asks may do, and whether deviceshare may do what it needs.

The API server itself is asked, so it doesn't matter which roles grant a right.
https://kubernetes.io/docs/reference/access-authn-authz/authorization/#checking-api-access
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from deviceshare.doctor.findings import PROBLEM, WARNING, Finding, Verdict, listed
from deviceshare.doctor.kinds import Attributes, Installation, are_granted
from deviceshare.domain import contract
from deviceshare.kube.api import Api
from deviceshare.kube.definitions import CRD_GROUP, CRDS, DEFINITIONS
from deviceshare.loops.kinds import DRA_GROUP, DRA_VERSIONS
from deviceshare.loops.ports import ApiError, Cluster

ROLES: Final = ("controller", "extender", "webhook")
_OURS, _ADMISSION = contract.API_GROUP, "admissionregistration.k8s.io"
_CONFIGURATIONS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")


def _each(group: str, resources: Iterable[str], verbs: Iterable[str], **more: str) -> Iterator[Attributes]:
    for resource in resources:
        plain, _, sub = resource.partition("/")
        for verb in verbs:
            yield Attributes(verb, group, plain, sub, **more)


PERSON: Final = (
    *_each(_OURS, ["shareddevicegroups"], ["list", "create", "delete"]),
    *_each(_OURS, ["nodedevices"], ["list"]),
    *_each("", ["nodes", "pods"], ["list"]),
)
"""The rights that a person needs for deviceshare's commands."""


def needed(ours: Installation, *, dra: bool = False) -> list[Attributes]:
    """The rights that deviceshare with these flags needs, as in the chart's templates/rbac/; `dra`: whether served."""
    namespace, roles = ours.namespace, (ours.flag("roles") or ",".join(ROLES)).split(",")
    holds, handover = ours.flag("dra-holds") == "on", ours.flag("dra-handover") == "on"
    rights = [
        *_each(_OURS, ["shareddevicegroups", "nodedevices", "devicequotas"], ["list", "watch"]),
        *_each("", ["nodes", "pods", "namespaces"], ["list", "watch"]),
        *(right for crd in DEFINITIONS for right in _each(CRD_GROUP, [CRDS.plural], ["list", "watch"], name=crd)),
        *_each("", ["pods"], ["delete"]),
        *_each("", ["events"], ["get", "create", "patch"]),
    ]
    if "controller" in roles or "extender" in roles:
        rights += _each(_OURS, ["devicequotas"], ["get"])
        rights += _each(_OURS, ["devicequotas/status"], ["patch"])
    if "controller" in roles:
        rights += _each(_OURS, ["shareddevicegroups"], ["get", "patch"])
        rights += _each(_OURS, ["nodedevices"], ["get", "create", "patch", "delete"])
        rights += _each(_OURS, ["shareddevicegroups/status", "nodedevices/status"], ["patch"])
        rights += _each("", ["nodes", "pods"], ["get"])
        rights += _each("", ["pods", "pods/status"], ["patch"])
        rights += _each("", ["pods/eviction"] if ours.flag("preemption") != "off" else [], ["create"])
        rights += _each("", ["resourcequotas"], ["list"])
        rights += _each("", ["pods"] if ours.flag("scaling-pods") == "on" else [], ["create"], namespace=namespace)
        statuses = ["resourceclaims/status", "resourceclaims/binding"] if holds else []
        if holds:
            rights += _each(DRA_GROUP, ["resourceclaims"], ["create", "patch", "delete"], namespace=namespace)
            rights += _each(DRA_GROUP, statuses, ["patch"], namespace=namespace)
            rights += _each("", ["pods"], ["create", "delete"], namespace=namespace)
        rights += _each(DRA_GROUP, ["resourceclaims"] if handover else [], ["get", "create", "patch", "delete"])
        rights += _each(DRA_GROUP, statuses if handover else [], ["patch"])
        rights += _each("batch", ["jobs"], ["get"])
        rights += _each(DRA_GROUP, ["resourceslices", "resourceclaims"] if dra else [], ["list", "watch"])
        rights += _each("coordination.k8s.io", ["leases"], ["get", "patch"], namespace=namespace, name=contract.NAME)
        rights += _each("coordination.k8s.io", ["leases"], ["create"], namespace=namespace)
    if "controller" in roles and ours.by_gates:
        rights += _each("", ["nodes/status"], ["patch"])
    if "extender" in roles and not ours.by_gates:
        rights += _each(_OURS, ["nodedevices"], ["get"])
        rights += _each(_OURS, ["nodedevices", "shareddevicegroups/status"], ["patch"])
        rights += _each("", ["pods/binding"], ["create"])
        rights += _each("", ["pods"], ["get"])
        rights += _each(DRA_GROUP, ["resourceclaims"] if holds else [], ["list"], namespace=namespace)
    if "webhook" in roles and (ours.deployment is None or ours.flag("ca-secret") is not None):  # the CA is its own
        rights += _each(_ADMISSION, _CONFIGURATIONS, ["get", "patch"], name=contract.NAME)
        rights += _each("", ["secrets"], ["get", "patch"], namespace=namespace, name=f"{contract.NAME}-ca")
        rights += _each("", ["secrets"], ["create"], namespace=namespace)
    return list(dict.fromkeys(rights))


async def examine_person(api: Cluster) -> Verdict:
    """Reviews the rights of the person who asks. Raises ApiError."""
    return "you may see nodes, devices and pods, and create groups", judge("", await _denied(api, PERSON, ""))


async def examine_own(api: Api, ours: Installation) -> Verdict:
    """Reviews the rights of deviceshare's service account. Raises ApiError."""
    try:
        dra = any(version in DRA_VERSIONS for version in await api.versions_of(DRA_GROUP))
    except ApiError:
        dra = False  # other checks report that the API server doesn't answer
    rights = needed(ours, dra=dra)
    return f"{ours.user} may do all that it needs to", judge(ours.user, await _denied(api, rights, ours.user))


def judge(user: str, denied: Sequence[Attributes]) -> list[Finding]:
    """A problem where it is deviceshare's user, which needs each of these rights at some time.

    A warning where it is the person who asks, "": that a person may not create groups may be intended.
    """
    cure = "helm upgrade the release with rbac.create=true, or kubectl apply the rules in docs/reference/rbac.md"
    if not user:
        cure = (
            "ask an administrator for the ClusterRoles deviceshare-view (groups and devices) and deviceshare-edit (to"
        )
        cure = f"{cure} write groups); without nodes and other namespaces' pods, commands say what they leave out"
    mark = PROBLEM if user else WARNING
    return [Finding(mark, f"{user or 'you'} may not {listed(map(str, denied))}", cure)] if denied else []


async def _denied(api: Cluster, rights: Sequence[Attributes], user: str) -> list[Attributes]:
    return [right for right, granted in zip(rights, await are_granted(api, rights, user), strict=True) if not granted]
