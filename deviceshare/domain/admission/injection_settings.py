"""The cluster's settings of the injection: which pods it takes, and which variables containers get besides devices."""

from typing import Final, NamedTuple

from deviceshare.domain.objects.shares import SYSTEMS

GROW, UNCHANGED = "grow", "unchanged"
MEMORY_MODES: Final = (GROW, UNCHANGED)
"""How frameworks take the memory of a group's devices: as they need it, or as they are set by default.

JAX takes three quarters of each device at its start and TensorFlow all of it, so that the second pod of a group fails
in its first minute. Groups exist for the second pod, and where there is just one, growing costs it some fragmentation
and no result; hence GROW, unless a container says otherwise.
"""

OTHER_SCHEDULERS: Final = frozenset({"gpushare-scheduler", "ack-co-scheduler"})
"""The schedulers that manifests written for gpushare name; they would look for devices that no node advertises."""


EXTENDER, GATES = "extender", "gates"
PLACEMENTS: Final = (EXTENDER, GATES)
"""Who chooses pods' nodes: our kube-scheduler, which asks the extender, or the leader, behind a scheduling gate."""


class InjectionSettings(NamedTuple):
    """As the flags of `deviceshare run` have them."""

    runtime_class: str = ""
    """The one that pods get, or ""."""
    dialects: frozenset[str] = frozenset(SYSTEMS)
    """Those of the other systems whose resources are served (shares.SYSTEMS)."""
    framework_limits: bool = True
    """Whether containers with a share get the variables by which frameworks keep to it."""
    replaced_schedulers: frozenset[str] = OTHER_SCHEDULERS
    """The schedulers, besides the default one, from which pods with a share are taken."""
    group_memory: str = GROW
    """One of MEMORY_MODES."""
    agent_url: str = ""
    """The template of the agents' URL (agent_variables.py), which containers are told; "" where agents don't answer."""
    placement: str = EXTENDER
    """One of PLACEMENTS."""
    tolerations: bool = True
    """Whether pods tolerate the taints by which managed clusters keep other pods from nodes with devices."""
