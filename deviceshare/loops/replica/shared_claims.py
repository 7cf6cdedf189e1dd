"""Claims written together: binds that arrive for a node while its ledger is written share the next write.

kube-scheduler binds pods side by side and fills one node after the other, so that without this nearly every write of
a ledger would conflict with another of our own.
"""

import asyncio
import copy
from collections.abc import Callable
from typing import NamedTuple

from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.loops.ports import Cluster, Mirror
from deviceshare.loops.protocol.bind import Refused
from deviceshare.loops.protocol.claiming import WantedClaim, claim_all
from deviceshare.loops.shared_read import SharedRead


class _Asked(NamedTuple):
    wanted: WantedClaim
    answer: asyncio.Future[NodeDevices]


class SharedClaims:
    """Claims by node. Its tasks are its own: `close` ends them."""

    def __init__(
        self, cluster: Cluster, ledgers: Mirror[NodeDevices], on_conflict: Callable[[], None] = lambda: None
    ) -> None:
        """`ledgers` get what is read and written here, so that the next write begins with the newest version."""
        self._cluster = cluster
        self._ledgers = ledgers
        self._on_conflict = on_conflict
        self._asked: dict[str, list[_Asked]] = {}
        self._write: SharedRead[None] = SharedRead(self._claim)

    async def __call__(self, wanted: WantedClaim, node: str) -> NodeDevices:
        """The node's ledger with the claim that is wanted, as it was at a moment after this call.

        Raises:
            Refused: there is no room, or the claim is being released.
            Conflict: somebody else wrote the ledger; retry.
            ApiError: the ledger could not be read or written.
        """
        asked = _Asked(wanted, asyncio.get_running_loop().create_future())
        asked.answer.add_done_callback(_retrieve)
        self._asked.setdefault(node, []).append(asked)
        try:
            await self._write(node)
            return await asked.answer  # it is there: whatever wrote before this write has answered, or this one has
        finally:
            asked.answer.cancel()  # who gave up claims nothing, unless the write is under way

    async def close(self) -> None:
        """Ends the writes under way."""
        await self._write.close()
        self._asked.clear()

    async def _claim(self, node: str) -> None:
        """Answers all that have asked until now. Those who gave up meanwhile get no claim."""
        waiting = [each for each in self._asked.pop(node, []) if not each.answer.done()]
        if not waiting:
            return
        try:
            wanted = [each.wanted for each in waiting]
            known = self._ledgers.get(node)
            ledger, refused = await claim_all(self._cluster, wanted, node, known, on_conflict=self._on_conflict)
        except Exception as error:  # noqa: BLE001 - everybody who asked raises it
            # Each gets its own: a traceback grows with everybody who raises it.
            for each in waiting:
                _fail(each.answer, _copy(error))
            return
        self._ledgers.put(ledger)
        for wish, answer in waiting:
            if reason := refused.get(wish.uid):
                _fail(answer, Refused(reason))
            elif not answer.done():
                answer.set_result(ledger)


def _fail(answer: asyncio.Future[NodeDevices], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)


def _copy(error: Exception) -> Exception:
    again = copy.copy(error)
    again.__cause__ = error
    return again


def _retrieve(answer: asyncio.Future[NodeDevices]) -> None:
    """Whoever asked may have given up; asyncio must not call the exception never retrieved."""
    if not answer.cancelled():
        answer.exception()
