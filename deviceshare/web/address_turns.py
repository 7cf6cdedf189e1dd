"""Fair queuing of requests by client address, and of one address by tenant: who sends many delays only its own.

A request that has arrived whole is answered without a pause, and a large one may take a tenth of a second. Hundreds
that arrive together would be answered in the order of arrival, and one of the API server's after all of them. So
addresses take turns, one request each, and between two of them the loop polls its sockets. All that the API server
asks comes from one address: there the tenants take turns for whom it asks.
"""

import asyncio
from collections import OrderedDict, deque

_Tenants = OrderedDict[str, deque[asyncio.Future[None]]]


class AddressTurns:
    """The queues of one server, one for each tenant of each address. While they are empty, a request doesn't wait."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, _Tenants] = OrderedDict()
        self._taken = False
        """Whether this round of the event loop has had its request, or a request is queued."""

    async def turn(self, address: str, tenant: str = "") -> None:
        """Returns when it is this address's turn, and the tenant's within it."""
        if not self._taken:
            self._taken = True
            asyncio.get_running_loop().call_soon(self._next)
            return
        future = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(address, OrderedDict()).setdefault(tenant, deque()).append(future)
        await future  # bounded by the request's timeout

    def _next(self) -> None:
        while self._waiting:
            address, tenants = self._waiting.popitem(last=False)
            tenant, queue = tenants.popitem(last=False)
            future = queue.popleft()
            if queue:
                tenants[tenant] = queue
            if tenants:
                self._waiting[address] = tenants
            if not future.done():
                future.set_result(None)
                # Two rounds: the first runs the request, the second polls the sockets before the next one.
                loop = asyncio.get_running_loop()
                loop.call_soon(loop.call_soon, self._next)
                return
        self._taken = False
