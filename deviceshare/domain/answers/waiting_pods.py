"""The waiting pods, each with its reason. Of a hundred of them most wait for the same, which is reasoned once."""

from collections.abc import Iterable, Mapping

from deviceshare.domain import contract
from deviceshare.domain.answers.picture import WaitingPod
from deviceshare.domain.answers.waiting import behind_our_gate, scheduler_said, why_unhindered_pods_wait
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import Reason
from deviceshare.domain.objects.requests import Request
from deviceshare.domain.objects.shares import ShareRequest
from deviceshare.domain.placement.barred_pods import ruled_out
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.join_obstacles import missing, pod_obstacle, request_of

_Alike = tuple[str, ShareRequest, str]
"""Group, share and strategy."""


def waiting_pods(
    fleet: Fleet, groups: Mapping[str, Group], bound: Mapping[str, Reason], pods: Iterable[Pod]
) -> Iterable[list[WaitingPod]]:
    """The waiting ones of the pods, those that want the same together; `bound` is the condition Bound of each group."""
    alike: dict[_Alike, list[Pod]] = {}
    for pod in pods:
        if pod.pending:
            strategy = pod.metadata.annotations.get(contract.STRATEGY, "")
            alike.setdefault((pod.group, pod.share, strategy), []).append(pod)
    for (name, share, _), mine in alike.items():
        yield list(_waiting(fleet, groups.get(name), bound.get(name), share, mine))


def _waiting(
    fleet: Fleet, group: Group | None, bound: Reason | None, share: ShareRequest, pods: list[Pod]
) -> Iterable[WaitingPod]:
    request = request_of(pods[0], group)
    vain = {each.pod.metadata.key: each.reason for each in ruled_out(fleet, request, pods)} if request else {}
    known: dict[tuple[Reason | None, str], Reason] = {}

    def unhindered(pod: Pod, request: Request) -> Reason:
        home, said = fleet.home(request), scheduler_said(pod)
        if (said, home) not in known:
            known[said, home] = why_unhindered_pods_wait(fleet, request, said, bound)
        return known[said, home]

    wanted = share.wanted
    for pod in pods:
        request = request_of(pod, group)
        obstacle = pod_obstacle(pod, group, fleet.namespaces) or vain.get(pod.metadata.key)
        reason = obstacle or (behind_our_gate(pod, unhindered(pod, request)) if request else missing(pod))
        yield WaitingPod(
            pod=pod.metadata.key,
            group=pod.group or _named(pod),
            since=pod.metadata.creation_timestamp or "",
            reason=str(reason),
            why=reason,
            share=wanted,
        )


def _named(pod: Pod) -> str:
    """The group that a pod names which can't be trusted; where it asks for a share only, it is the pod itself."""
    return "" if "/" in pod.left_out else pod.left_out
