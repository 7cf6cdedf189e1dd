"""Users of a group: the pods that its deletion, refused or accepted, is about."""

from collections.abc import Iterable

from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.pods import Pod


def uses(pod: Pod, group: Group) -> bool:
    """A pod with devices names their group by UID; one that runs without may have lost that record, so it counts."""
    return pod.lives and (pod.holder_uid == group.uid if pod.holder_uid else pod.group == group.name)


def users(group: Group, pods: Iterable[Pod]) -> list[str]:
    """The pods that use the group, as `namespace/name`."""
    return sorted(pod.metadata.key for pod in pods if uses(pod, group))
