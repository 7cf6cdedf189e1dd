"""Long answers to pods: how many may be open at once, in all and for one pod."""

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
        """By the UID of the pod."""

    @contextmanager
    def opened(self, request: web.Request, caller: Caller) -> Iterator[None]:
        """Inside this block the request isn't bounded in time; who streams ends it.

        Raises:
            web.HTTPTooManyRequests: the pod has too many streams open.
            web.HTTPServiceUnavailable: all pods together have.
        """
        if self._open[caller.uid] >= MAX_STREAMS_OF_POD:
            text = f"pod {caller.key} has {MAX_STREAMS_OF_POD} requests open already: end one of them\n"
            raise web.HTTPTooManyRequests(text=text, headers={"Retry-After": "5"})
        if self._open.total() >= MAX_STREAMS:
            text = "the pods of this node have too many requests open: ask again later\n"
            raise web.HTTPServiceUnavailable(text=text, headers={"Retry-After": "5"})
        request[BOUND].reschedule(None)
        self._open[caller.uid] += 1
        try:
            yield
        finally:
            self._open[caller.uid] -= 1
            self._open += Counter()  # drops the pods that have none open any more
