"""Long answers to pods: how many may be open at once, in all, for one namespace and for one pod.

A namespace may have as many open as are still free: one takes half of all, a second half of the rest, and there is a
place for the next one's first. Who holds a turn has a place in any case, or it would lose the turn with a connection.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from aiohttp import web

from deviceshare.agent.pods_api.caller import Caller
from deviceshare.web.server import BOUND

MAX_STREAMS: Final = 256
"""Half of the server's connections: the others are left for short answers."""
MAX_STREAMS_OF_POD: Final = 24


class Streams:
    """The streams of one server."""

    def __init__(self) -> None:
        self._open = Counter[str]()
        """By the UID of the pod, without those that have a place in any case."""
        self._namespaces = Counter[str]()
        """Likewise, by namespace."""

    @contextmanager
    def opened(self, request: web.Request, caller: Caller, *, holds: bool = False) -> Iterator[None]:
        """Inside this block the request isn't bounded in time; who streams ends it. `holds`: it has a turn.

        Raises:
            web.HTTPTooManyRequests: the pod has too many streams open, or its namespace has its part of all.
        """
        if holds:  # One at a time: another one of the holder ends it.
            request[BOUND].reschedule(None)
            yield
            return
        if self._open[caller.uid] >= MAX_STREAMS_OF_POD:
            text = f"pod {caller.key} has {MAX_STREAMS_OF_POD} requests open already: end one of them\n"
            raise web.HTTPTooManyRequests(text=text, headers={"Retry-After": "5"})
        if self._namespaces[caller.namespace] >= MAX_STREAMS - self._open.total():
            text = f"the pods of namespace {caller.namespace} have their part of this node's requests open: ask again\n"
            raise web.HTTPTooManyRequests(text=text, headers={"Retry-After": "5"})
        request[BOUND].reschedule(None)
        self._open[caller.uid] += 1
        self._namespaces[caller.namespace] += 1
        try:
            yield
        finally:
            self._open[caller.uid] -= 1
            self._namespaces[caller.namespace] -= 1
            self._open += Counter()  # drops the pods that have none open any more
            self._namespaces += Counter()
