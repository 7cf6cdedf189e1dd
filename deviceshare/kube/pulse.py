"""The pulse of the API server: asked every few seconds, since nothing else shows in time that it doesn't answer.

A watch on which nothing happens is silent for a minute by rights, and one whose server hangs is silent too.
"""

import asyncio
import time
from collections.abc import Callable

import structlog

from deviceshare.kube.api import Api
from deviceshare.loops.ports import ApiError, Unavailable

log = structlog.get_logger(__name__)

PERIOD_SECONDS = 5.0
"""Between two questions, and the bound on one."""
LOST_SECONDS = 20.0
"""Silence of this length is no hiccup: an API server that restarts is back sooner."""


class Pulse:
    """Asks while `run` runs."""

    def __init__(self, api: Api, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._clock = clock
        self._answered = clock()
        self.version: tuple[int, int] | None = None
        """Kubernetes' (major, minor) as the API server says it; None where it hasn't yet."""

    async def run(self) -> None:
        """Asks until cancelled."""
        while True:
            if await self._answers():
                if self.fault():
                    log.info("API server answers again")
                self._answered = self._clock()
            await asyncio.sleep(PERIOD_SECONDS)

    def fault(self) -> str:
        """Why nothing that is asked of us can be trusted to be done, or ""."""
        silent = self._clock() - self._answered
        return f"the API server has not answered for {silent:.0f} s" if silent > LOST_SECONDS else ""

    async def _answers(self) -> bool:
        try:
            async with asyncio.timeout(PERIOD_SECONDS):
                self.version = await self._api.server_version()
            return True
        except (TimeoutError, Unavailable):
            return False
        except (ApiError, ValueError):  # It answers, if only to refuse.
            return True
