"""Whether a pod's containers have ended, which its phase alone doesn't say.

Kubelets before 1.22.8, 1.23.5 and 1.24 publish `phase: Failed` of a pod that they evict, or whose deadline is over,
before they kill its containers, and leave the containers' statuses as they were, or out (kubernetes#88613, #98742).
What does tell, whatever the kubelet's version, is the runtime's own word: `terminated`, for every container. Where that
never comes, the leader waits out the grace period and writes down that it did (loops/leader/endings.py).
https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#container-states
"""

from collections.abc import Collection, Iterable

from msgspec import Struct

TERMINAL = ("Succeeded", "Failed")
"""The phases that a pod never leaves."""
DEFAULT_GRACE_SECONDS = 30
"""What the API server writes where a pod names no grace period."""
LONGEST_GRACE_SECONDS = 3600
"""Longer ones are waited for no longer: pods may name days, and the kubelet's eviction doesn't grant them."""


class StateDetails(Struct, frozen=True):
    """That a state is so; none of its fields matters."""


class ContainerState(Struct, frozen=True):
    """https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#ContainerState"""

    running: StateDetails | None = None
    terminated: StateDetails | None = None


class SeenContainer(Struct, frozen=True):
    """One container as the kubelet last saw it."""

    name: str = ""
    state: ContainerState | None = None

    @property
    def running(self) -> bool:
        return self.state is not None and self.state.running is not None

    @property
    def terminated(self) -> bool:
        return self.state is not None and self.state.terminated is not None


def have_ended(phase: str, containers: Collection[str], statuses: Iterable[SeenContainer]) -> bool:
    """Whether the kubelet says that all containers have ended; `containers` are the names that must be accounted for.

    It publishes `Succeeded` only when they have; so there only a container that is said to run speaks against it.
    """
    every = list(statuses)
    if phase == "Succeeded":
        return not any(status.running for status in every)
    if phase != "Failed" or not all(status.terminated for status in every):
        return False
    return bool(containers) and {status.name for status in every}.issuperset(containers)


def grace_seconds(named: int | None, deleting: int | None) -> int:
    """How long the kubelet lets containers go on that it was to end: what the pod's spec or its deletion names."""
    longest = max(DEFAULT_GRACE_SECONDS if named is None else named, deleting or 0, 0)
    return min(longest, LONGEST_GRACE_SECONDS)
