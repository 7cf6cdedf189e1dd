"""The kinds of admission policies and their bindings, with the fields by which commands judge them.

Policies of one name and kind are bound by a binding of any name; deviceshare's have the same.
"""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct, field

from deviceshare.domain.objects.object_decoder import ObjectMeta
from deviceshare.loops.ports import Kind


class AdmissionPolicySpec(Struct, frozen=True, rename="camel"):
    failure_policy: str = "Fail"
    """The API server's default."""
    match_constraints: dict[str, Any] = field(default_factory=dict)


class ExpressionWarning(Struct, frozen=True, rename="camel"):
    field_ref: str = ""
    warning: str = ""


class TypeChecking(Struct, frozen=True, rename="camel"):
    expression_warnings: list[ExpressionWarning] = field(default_factory=list)


class AdmissionPolicyStatus(Struct, frozen=True, rename="camel"):
    type_checking: TypeChecking = TypeChecking()
    """Written by kube-controller-manager, of ValidatingAdmissionPolicies only."""


class AdmissionPolicy(Struct, frozen=True):
    """https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/ and the mutating one's"""

    metadata: ObjectMeta = field(default_factory=ObjectMeta)
    spec: AdmissionPolicySpec = AdmissionPolicySpec()
    status: AdmissionPolicyStatus = AdmissionPolicyStatus()


class PolicyBindingSpec(Struct, frozen=True, rename="camel"):
    policy_name: str = ""
    match_resources: dict[str, Any] = field(default_factory=dict)
    validation_actions: list[str] = field(default_factory=list)


class PolicyBinding(Struct, frozen=True):
    """What puts a policy in force; it may narrow what the policy matches."""

    metadata: ObjectMeta = field(default_factory=ObjectMeta)
    spec: PolicyBindingSpec = PolicyBindingSpec()


class PolicyKinds(Struct, frozen=True):
    """A kind of policies, and the one of their bindings."""

    policies: Kind[AdmissionPolicy]
    bindings: Kind[PolicyBinding]


def _kinds(does: str) -> PolicyKinds:
    api, name = "admissionregistration.k8s.io/v1", f"{does}AdmissionPolicy"
    return PolicyKinds(
        Kind(api, name, f"{does.lower()}admissionpolicies", AdmissionPolicy, namespaced=False),
        Kind(api, f"{name}Binding", f"{does.lower()}admissionpolicybindings", PolicyBinding, namespaced=False),
    )


MUTATING: Final = _kinds("Mutating")
VALIDATING: Final = _kinds("Validating")
POLICIES: Final[Mapping[str, PolicyKinds]] = {
    "deviceshare-mutate-pods": MUTATING,
    "deviceshare-pods": VALIDATING,
    "deviceshare-bypasses": VALIDATING,
    "deviceshare-groups": VALIDATING,
    "deviceshare-ledger-deletions": VALIDATING,
    "deviceshare-node-devices": VALIDATING,
}
"""deviceshare's own; the last is needed only where agents run."""
