"""When a pod has ended: its phase alone doesn't say, and what it was given goes to nobody else before."""

from typing import Any

import msgspec
import pytest

from deviceshare.domain import contract
from deviceshare.domain.objects.pods import Pod

RUNS: dict[str, Any] = {"name": "main", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
WAITS: dict[str, Any] = {"name": "main", "state": {"waiting": {"reason": "PodInitializing"}}}
ENDED: dict[str, Any] = {"name": "main", "state": {"terminated": {"exitCode": 137}}}


def a_pod(phase: str, *, node: str = "n1", annotations: dict[str, str] | None = None, **status: Any) -> Pod:
    body = {
        "metadata": {"name": "p", "uid": "u1", "annotations": annotations or {}},
        "spec": {"nodeName": node, "containers": [{"name": "main"}]},
        "status": {"phase": phase, **status},
    }
    return msgspec.convert(body, Pod)


def lives_and_ends(pod: Pod) -> tuple[bool, bool]:
    assert pod.lives == (bool(pod.node) and not pod.finished)
    assert not pod.pending or not pod.node
    return pod.lives, pod.ending


@pytest.mark.parametrize(
    "statuses",
    [
        {},
        {"containerStatuses": None},
        {"containerStatuses": []},
        {"containerStatuses": [RUNS]},
        {"containerStatuses": [WAITS]},
        {"containerStatuses": [{"name": "main", "state": None}]},
        {"containerStatuses": [{"name": "main"}]},
        {"containerStatuses": [{**ENDED, "name": "another"}]},
        {"containerStatuses": [ENDED, {**RUNS, "name": "another"}]},
        {"containerStatuses": [ENDED], "initContainerStatuses": [{**RUNS, "name": "sidecar"}]},
        {"containerStatuses": [ENDED], "ephemeralContainerStatuses": [{**RUNS, "name": "debugger"}]},
    ],
)
def test_a_failed_pod_lives_until_every_container_is_said_to_have_ended(statuses: dict[str, Any]) -> None:
    """Evicted pods have no statuses, or those from before; kubelets publish the phase before they kill."""
    assert lives_and_ends(a_pod("Failed", **statuses)) == (True, True)


@pytest.mark.parametrize(
    "pod",
    [
        a_pod("Failed", containerStatuses=[ENDED]),
        a_pod("Failed", containerStatuses=[ENDED], initContainerStatuses=[{**ENDED, "name": "init"}]),
        a_pod("Failed", annotations={contract.ENDED: "u1"}),
        a_pod("Failed", annotations={contract.ENDED: "u1"}, containerStatuses=[RUNS]),
        a_pod("Succeeded"),
        a_pod("Succeeded", containerStatuses=[ENDED]),
    ],
)
def test_a_pod_has_ended_when_the_kubelet_or_the_leader_says_so(pod: Pod) -> None:
    """The runtime's word for every container, or the grace period, or the one phase that comes after both."""
    assert lives_and_ends(pod) == (False, False)
    assert pod.finished


@pytest.mark.parametrize(
    "pod",
    [
        a_pod("Running", containerStatuses=[ENDED]),
        a_pod("Running", annotations={contract.ENDED: "u1"}),
        a_pod("Unknown", containerStatuses=[ENDED]),
        a_pod("", containerStatuses=[ENDED]),
    ],
)
def test_containers_that_ended_may_be_restarted_in_any_other_phase(pod: Pod) -> None:
    """A pod leaves only the terminal phases never."""
    assert lives_and_ends(pod) == (True, False)


def test_another_pods_word_does_not_count() -> None:
    """A template was copied from a pod that had ended."""
    assert lives_and_ends(a_pod("Failed", annotations={contract.ENDED: "u0"})) == (True, True)
    assert lives_and_ends(a_pod("Succeeded", containerStatuses=[RUNS])) == (True, True)


def test_a_pod_that_was_never_on_a_node_has_nothing_to_end() -> None:
    """It can't be bound any more either."""
    pod = a_pod("Failed", node="")
    assert (pod.finished, pod.pending, pod.lives) == (True, False, False)


@pytest.mark.parametrize(
    ("named", "deleting", "seconds"),
    [(None, None, 30), (0, None, 0), (5, None, 5), (5, 60, 60), (60, 1, 60), (-1, None, 0), (86400, None, 3600)],
)
def test_the_grace_period_is_the_longest_that_was_named_within_an_hour(
    named: int | None, deleting: int | None, seconds: int
) -> None:
    """A pod can't keep devices for days by naming days; the spec's default is the API server's."""
    body = {"metadata": {"deletionGracePeriodSeconds": deleting}, "spec": {"terminationGracePeriodSeconds": named}}
    assert msgspec.convert(body, Pod).grace_seconds == seconds
