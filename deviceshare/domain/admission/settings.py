"""The cluster's settings of admission: who decides, webhooks or policies; which pods are taken, and what they are told.

Policies need MutatingAdmissionPolicy in `admissionregistration.k8s.io/v1`, which Kubernetes serves from 1.36 on:
https://kubernetes.io/docs/reference/access-authn-authz/mutating-admission-policy/
"""

import re
from typing import Final, NamedTuple

from deviceshare.domain import contract
from deviceshare.domain.admission.bypasses import WARN
from deviceshare.domain.objects.hardware import NO_LIMITS
from deviceshare.domain.objects.share_wishes import PREFERRED
from deviceshare.domain.objects.shares import SYSTEMS

WEBHOOKS, POLICIES = "webhooks", "policies"
MODES: Final = (WEBHOOKS, POLICIES)
AUTO: Final = "auto"
"""As the API server can: see `chosen`."""
_POLICIES_SINCE: Final = 36

EXTENDER, GATES = "extender", "gates"
PLACEMENTS: Final = (EXTENDER, GATES)
"""Who chooses pods' nodes: our kube-scheduler, which asks the extender, or the leader, behind a scheduling gate."""

GROW, UNCHANGED = "grow", "unchanged"
MEMORY_MODES: Final = (GROW, UNCHANGED)
"""How frameworks take the memory of a group's devices: as they need it, or as they are set by default.

JAX takes three quarters of each device at its start and TensorFlow all of it, so that the second pod of a group fails
in its first minute. Groups exist for the second pod, and where there is just one, growing costs it some fragmentation
and no result; hence GROW, unless a container says otherwise.
"""

OTHER_SCHEDULERS: Final = frozenset({"gpushare-scheduler", "ack-co-scheduler"})
"""The schedulers that manifests written for gpushare name; they would look for devices that no node advertises."""

HOST: Final = "{host}"
"""What stands for the node's address in a template of the agents' URL."""
_URL: Final = re.compile(r"https?://[^\s$/?#{}]+")


class InjectionSettings(NamedTuple):
    """As the flags of `deviceshare run` have them."""

    runtime_class: str = ""
    """The one that pods get, or ""."""
    dialects: frozenset[str] = frozenset(SYSTEMS)
    """The other systems whose resources are served (shares.SYSTEMS)."""
    framework_limits: bool = True
    """Whether containers with a share get the variables by which frameworks keep to it."""
    replaced_schedulers: frozenset[str] = OTHER_SCHEDULERS
    """The schedulers, besides the default one, from which pods with a share are taken."""
    group_memory: str = GROW
    """One of MEMORY_MODES."""
    agent_url: str = ""
    """The template of the agents' URL, which containers are told (docs/inside.md); "" where agents don't answer."""
    placement: str = EXTENDER
    """One of PLACEMENTS."""
    unsupported: str = WARN
    """What becomes of a pod that asks for what deviceshare doesn't have, one of bypasses.MODES: the request is removed,
    or the pod refused."""
    tolerations: bool = True
    """Whether pods tolerate the taints by which managed clusters keep other pods from nodes with devices."""
    isolation: str = PREFERRED
    """Where shares go whose pods don't say; one of share_wishes.ISOLATIONS."""
    memory_limits: str = NO_LIMITS
    """Who limits the memory of containers with a share, by variables that they get; one of hardware.LIMIT_MODES."""


DEFAULTS: Final = InjectionSettings()


def chosen(wanted: str, minor: int) -> str:
    """The mode on Kubernetes 1.`minor`, where `wanted` is AUTO or one of MODES."""
    if wanted != AUTO:
        return wanted
    return POLICIES if serves_policies(minor) else WEBHOOKS


def serves_policies(minor: int) -> bool:
    """Whether Kubernetes 1.`minor` can inject pods by policies, unless its administrator turned that off."""
    return minor >= _POLICIES_SINCE


def template_fault(template: str) -> str:
    """What is wrong with a template of the agents' URL, and what would be right; "" where it is sound, or empty."""
    if not template or _URL.fullmatch(template.replace(HOST, "host", 1)):
        return ""
    return f"it is not a URL such as http://{HOST}:{contract.PODS_PORT}, with {HOST} for the node's address"
