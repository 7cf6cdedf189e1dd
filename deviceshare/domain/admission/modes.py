"""The two ways in which pods and groups are injected and validated: by webhooks, or by policies in the API server.

Policies need MutatingAdmissionPolicy in `admissionregistration.k8s.io/v1`, which Kubernetes serves from 1.36 on:
https://kubernetes.io/docs/reference/access-authn-authz/mutating-admission-policy/
"""

from typing import Final

WEBHOOKS, POLICIES = "webhooks", "policies"
MODES: Final = (WEBHOOKS, POLICIES)
AUTO: Final = "auto"
"""As the API server can: see `chosen`."""

_SINCE: Final = 36


def chosen(wanted: str, minor: int) -> str:
    """The mode on Kubernetes 1.`minor`, where `wanted` is AUTO or one of MODES."""
    if wanted != AUTO:
        return wanted
    return POLICIES if serves_policies(minor) else WEBHOOKS


def serves_policies(minor: int) -> bool:
    """Whether Kubernetes 1.`minor` can inject pods by policies, unless its administrator turned that off."""
    return minor >= _SINCE
