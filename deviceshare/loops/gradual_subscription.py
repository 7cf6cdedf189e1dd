"""A subscription to a mirror whose existing objects are reported a few at a time.

A mirror reports them all at once. Ten thousand would keep the event loop, which answers webhooks, for half a second.
"""

import asyncio
from typing import Any, Final

import structlog

from deviceshare.loops.ports import Mirror, ObjectChange, Watcher

log = structlog.get_logger(__name__)

AT_ONCE: Final = 50
"""Objects between two turns of the event loop: a few milliseconds."""


class GradualSubscription:
    """Reports each object first as an addition, and then every change of it, as `Mirror.subscribe` does."""

    def __init__(self, mirror: Mirror[Any], watcher: Watcher) -> None:
        self._mirror = mirror
        self._watcher = watcher
        self._listing = False
        self._unreported: dict[str, None] = {}
        """The keys of existing objects, in their order."""

    async def begin(self) -> None:
        """Returns when all existing objects have been reported."""
        self._listing = True
        self._mirror.subscribe(self._change)
        self._listing = False
        number = 0
        while self._unreported:
            key = next(iter(self._unreported))
            del self._unreported[key]
            if (obj := self._mirror.get(key)) is not None:
                self._report(ObjectChange(key, None, obj))
            number += 1
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)

    def end(self) -> None:
        """Reports nothing more; may be called before `begin`."""
        self._mirror.unsubscribe(self._change)

    def _change(self, change: ObjectChange[Any]) -> None:
        if self._listing:
            self._unreported[change.key] = None
        elif change.key not in self._unreported:
            self._watcher(change)
        elif change.new is None:
            del self._unreported[change.key]

    def _report(self, change: ObjectChange[Any]) -> None:
        try:
            self._watcher(change)
        except Exception:
            # As a mirror does: one object must not keep the leader from all others.
            log.exception("Watcher failed on an existing object", key=change.key)
