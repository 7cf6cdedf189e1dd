"""Dropped fields: what the API server leaves out of groups' statuses, since their CRD is of an older release.

It says nothing of it. Whoever writes such a field finds it missing, and would write it again with each change.
https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#field-pruning
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import structlog

from deviceshare.domain.objects.groups import GroupStatus

log = structlog.get_logger(__name__)

AGAIN_SECONDS: Final = 60.0
"""Before a dropped field is written again: somebody may have applied the CRD."""


class DroppedFields:
    """Of all groups together, since it is their CRD that lacks them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: dict[str, float] = {}

    def kept(self, status: Mapping[str, Any]) -> dict[str, Any]:
        """What of a patch of the status is worth writing now."""
        now = self._clock()
        return {field: value for field, value in status.items() if self._until.get(field, now) <= now}

    def note(self, status: Mapping[str, Any], written: GroupStatus) -> bool:
        """Compares a patch with what the API server made of it; returns whether it dropped something."""
        got: dict[str, Any] = msgspec.to_builtins(written)
        dropped = sorted(field for field, value in status.items() if value and not got[field])
        self._until |= dict.fromkeys(dropped, self._clock() + AGAIN_SECONDS)
        if dropped:
            cure = "apply the CRDs of this release (deviceshare doctor); idle groups may not be released until then"
            log.error("API server drops fields that the CRD lacks", kind="SharedDeviceGroup", fields=dropped, cure=cure)
        return bool(dropped)
