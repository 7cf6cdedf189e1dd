"""A group's life: after how long without pods it is released, and what becomes of its deletion while pods use it.

The group's spec says so, or else deviceshare's own settings.
"""

from typing import Final, NamedTuple

from deviceshare.domain.objects.durations import seconds_of
from deviceshare.domain.objects.printable import quoted

NEVER: Final = "never"
REFUSE, AFTER_LAST_POD = "Refuse", "AfterLastPod"
DELETION_POLICIES: Final = (REFUSE, AFTER_LAST_POD)


class GroupLife(NamedTuple):
    """What holds for groups whose spec doesn't say."""

    release_after: str = NEVER
    deletion_policy: str = REFUSE

    def release_seconds(self, release_after: str) -> int | None:
        """After how many seconds without pods a group with this in its spec is released; None for never.

        What can't be read is never.
        """
        return seconds_of(release_after or self.release_after) or None

    def outlives_deletion(self, deletion_policy: str) -> bool:
        """Whether a deletion is accepted while pods use the group, and takes effect after the last of them."""
        return (deletion_policy or self.deletion_policy) == AFTER_LAST_POD


DEFAULT_LIFE: Final = GroupLife()


def release_fault(text: str) -> str:
    """Why this can't be `spec.releaseAfter`, or "". No time at all is refused: elsewhere it often means never."""
    if text == NEVER or seconds_of(text):
        return ""
    return f"{quoted(text)} is neither a duration of at least 1s, such as 30m or 1h30m, nor never"


def life_faults(release_after: str, deletion_policy: str) -> list[str]:
    """What is wrong with these fields of a group's spec, each naming the field; empty ones are unset."""
    faults = []
    if release_after and (fault := release_fault(release_after)):
        faults.append(f"spec.releaseAfter: {fault}")
    if deletion_policy and deletion_policy not in DELETION_POLICIES:
        faults.append(f"spec.deletionPolicy: {quoted(deletion_policy)} is neither Refuse nor AfterLastPod")
    return faults
