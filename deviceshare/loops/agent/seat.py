"""A seat: one connection of a player, and the lines that are still to be sent on it."""

import asyncio
from collections import deque
from typing import Final

MAX_LINES: Final = 32
"""Heartbeats that a client didn't take: after 16 s of them its connection is as good as lost."""


class Seat:
    """`player` is its pod's UID and its token, `since` when the connection was accepted, by the referee's clock."""

    def __init__(self, number: int, arena: str, player: tuple[str, str], since: float) -> None:
        self.number = number
        self.arena = arena
        self.player = player
        self.since = since
        self._lines: deque[str] = deque()
        self._news = asyncio.Event()
        self._closed = False

    def say(self, line: str) -> None:
        """Queues a line; one that nobody takes closes the seat."""
        if len(self._lines) >= MAX_LINES:
            self.close()
        if not self._closed:
            self._lines.append(line)
            self._news.set()

    def close(self) -> None:
        """Ends the connection, once what was said is sent."""
        self._closed = True
        self._news.set()

    async def line(self) -> str | None:
        """The next line; None when the seat is closed. Heartbeats bound the wait."""
        while not self._lines:
            if self._closed:
                return None
            self._news.clear()
            await self._news.wait()
        return self._lines.popleft()
