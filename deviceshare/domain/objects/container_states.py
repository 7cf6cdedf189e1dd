"""Container states, which prove that a pod's containers have ended; its phase alone doesn't.

Kubelets before 1.22.8, 1.23.5 and 1.24 publish `phase: Failed` of a pod that they evict, or whose deadline has passed,
before they kill its containers, and leave the containers' statuses unchanged, or out (kubernetes#88613, #98742). With
every version of the kubelet, the state `terminated` of every container is proof. Where that is never reported, the
leader waits for the grace period and records that it did (loops/leader/endings.py).
https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#container-states
"""

from collections.abc import Collection, Iterable

from msgspec import Struct, field

from deviceshare.domain.objects.quantities import Quantity

TERMINAL = ("Succeeded", "Failed")
"""The phases that a pod never leaves."""
DEFAULT_GRACE_SECONDS = 30
"""What the API server writes where a pod names no grace period."""
LONGEST_GRACE_SECONDS = 3600
"""Grace periods are capped to this: pods may set days, which the kubelet's eviction doesn't grant."""


class StateDetails(Struct, frozen=True, gc=False):
    """Present where a container is in this state; none of its fields is read."""


class ContainerState(Struct, frozen=True, gc=False):
    """https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#ContainerState"""

    running: StateDetails | None = None
    terminated: StateDetails | None = None


class SeenContainer(Struct, frozen=True, gc=False, rename="camel"):
    """One container as the kubelet last saw it."""

    name: str = ""
    state: ContainerState | None = None
    allocated_resources: dict[str, Quantity] = field(default_factory=dict)
    """What the kubelet set aside for it, while its requests are being changed in place (Kubernetes 1.27 and later)."""

    @property
    def running(self) -> bool:
        return self.state is not None and self.state.running is not None

    @property
    def terminated(self) -> bool:
        return self.state is not None and self.state.terminated is not None


def have_ended(phase: str, containers: Collection[str], statuses: Iterable[SeenContainer]) -> bool:
    """Whether the kubelet reports that all containers have ended; `containers` are the names that must be reported.

    It publishes `Succeeded` only when they have; there only a container reported as running contradicts that.
    """
    every = list(statuses)
    if phase == "Succeeded":
        return not any(status.running for status in every)
    if phase != "Failed" or not all(status.terminated for status in every):
        return False
    return bool(containers) and {status.name for status in every}.issuperset(containers)


def grace_seconds(named: int | None, deleting: int | None) -> int:
    """How long containers may run after the kubelet begins to stop them, by the pod's spec or its deletion."""
    longest = max(DEFAULT_GRACE_SECONDS if named is None else named, deleting or 0, 0)
    return min(longest, LONGEST_GRACE_SECONDS)
