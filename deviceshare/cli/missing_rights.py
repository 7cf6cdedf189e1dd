"""Refusals by the API server's authorizer, in words: which right is missing, which role grants it, who can bind it.

https://kubernetes.io/docs/reference/access-authn-authz/rbac/
"""

import re
import shlex
from collections.abc import Iterable
from typing import Final, NamedTuple

from deviceshare.domain import contract
from deviceshare.loops.ports import Forbidden

READING: Final = frozenset({"get", "list", "watch"})
VIEW, EDIT, RECOVER, TOP = (f"{contract.NAME}-{each}" for each in ("view", "edit", "recover", "top"))
"""The ClusterRoles for people (charts/deviceshare/templates/rbac/people.yaml)."""

_REFUSAL: Final = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\S+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]*)"| at the cluster scope)'
)
"""k8s.io/apiserver, pkg/endpoints/handlers/responsewriters/errors.go: forbiddenMessage"""
_SERVICE_ACCOUNT: Final = re.compile(r"system:serviceaccount:([^:]+):([^:]+)")


class MissingRight(NamedTuple):
    """One right that a user lacks; an empty namespace means the whole cluster."""

    user: str
    verb: str
    resource: str
    group: str
    namespace: str

    @property
    def what(self) -> str:
        """`list pods in namespace team-a`."""
        resource = f"{self.resource}.{self.group}" if self.group else self.resource
        return (
            f"{self.verb} {resource} {f'in namespace {self.namespace}' if self.namespace else 'in the whole cluster'}"
        )

    @property
    def role(self) -> str:
        """The ClusterRole that grants it, and not much more; "" where there is none."""
        reading = self.verb in READING
        if self.group == contract.API_GROUP:
            if self.resource == "nodedevices/status" and self.verb == "patch":
                return RECOVER
            if reading:
                return VIEW
            return EDIT if self.resource == "shareddevicegroups" else ""
        if self.group or not self.namespace:
            return ""
        if self.resource == "pods/proxy":
            return TOP
        return ("view" if reading else "edit") if self.resource == "pods" else ""

    @property
    def cure(self) -> str:
        """The command with which an administrator grants it; "" where none is known."""
        if not self.role:
            return ""
        name = re.sub(r"[^a-z0-9.-]+", "-", f"{self.role}-{self.user}".lower()).strip("-.")[:200]
        kind = f"rolebinding {name} --namespace={self.namespace}" if self.namespace else f"clusterrolebinding {name}"
        return f"kubectl create {kind} --clusterrole={self.role} {_subject(self.user)}"


def _subject(user: str) -> str:
    if account := _SERVICE_ACCOUNT.fullmatch(user):
        return f"--serviceaccount={shlex.quote(f'{account[1]}:{account[2]}')}"
    return f"--user={shlex.quote(user)}"


def missing_right(error: Forbidden) -> MissingRight | None:
    """The right that the API server names; None where it speaks of something else, as admission does."""
    found = _REFUSAL.search(error.said)
    return MissingRight(**{key: value or "" for key, value in found.groupdict().items()}) if found else None


def explained(error: Forbidden) -> str:
    """What a person reads whose request was refused."""
    right = missing_right(error)
    if right is None and error.said == "Unauthorized":
        return "The cluster does not accept your credentials: they are wrong or have expired; log in to it again"
    if right is None:
        return f"This user may not do that: {error}\nList its rights with: kubectl auth can-i --list"
    if not right.cure:
        return f"{right.user} may not {right.what}.\nList all rights with: kubectl auth can-i --list"
    return (
        f"{right.user} may not {right.what}. The ClusterRole {right.role} grants it; an administrator binds it with\n"
        f"  {right.cure}"
    )


def lacking(resources: Iterable[str]) -> str:
    """`nodes and pods can't be listed by you`."""
    return f"{' and '.join(resources)} can't be listed by you (forbidden)"
