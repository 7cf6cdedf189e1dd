"""Turns at the event loop: whoever sends much waits behind themselves, not in front of others.

A request that has arrived whole is answered without a pause, and a large one may take a tenth of a second. Hundreds
that arrive together would be answered in the order in which they came, and one of the API server's behind them all. So
they take turns: one request of each address after the other, and between two of them the loop looks at its sockets.
"""

import asyncio
from collections import OrderedDict, deque


class AddressTurns:
    """Of one server. Costs nothing where nobody else waits."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._taken = False
        """Whether one was given in this round of the event loop, or somebody waits."""

    async def turn(self, address: str) -> None:
        """Returns when it is this address's turn."""
        if not self._taken:
            self._taken = True
            asyncio.get_running_loop().call_soon(self._next)
            return
        future = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(address, deque()).append(future)
        await future  # bounded: whoever waits here is within the time of a request

    def _next(self) -> None:
        while self._waiting:
            address, queue = self._waiting.popitem(last=False)
            future = queue.popleft()
            if queue:
                self._waiting[address] = queue
            if not future.done():
                future.set_result(None)
                # Twice: the first round runs whose turn it is, the second looks at the sockets before the next one.
                loop = asyncio.get_running_loop()
                loop.call_soon(loop.call_soon, self._next)
                return
        self._taken = False
