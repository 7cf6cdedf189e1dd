"""Turns over HTTP: the script, the stream by which a turn is awaited and held, and its release.

A stream consists of lines; a client ignores words that it doesn't know:

    wait AGE TEXT     it waits; TEXT says for what
    turn AGE LEASE    it has the turn, for LEASE from when this was sent; repeated, as its heartbeat
    yield             its slice is over, and others wait
    gone TEXT         it has not the turn that it says it has: CMD has to end
    refused TEXT      it gets no turn, and asking again won't help

AGE is for how long the connection has been open (domain/turns/lease.py), both times are in milliseconds. Refusals come
with status 200: not every wget shows the body of an error.
"""

import socket

from aiohttp import web

from deviceshare.agent.pods_api.caller import Caller, Callers
from deviceshare.agent.pods_api.server import Endpoint, plain
from deviceshare.agent.pods_api.streams import Streams
from deviceshare.domain.objects.printable import printable
from deviceshare.domain.turns import lease
from deviceshare.domain.turns.arena_name import ArenaName, arena_of
from deviceshare.domain.turns.bid import BadBid, bid_of
from deviceshare.domain.turns.script import script
from deviceshare.loops.agent.referee import Referee
from deviceshare.loops.agent.seat import Seat


class TurnsApi:
    """What pods ask about turns."""

    def __init__(self, referee: Referee, callers: Callers, streams: Streams) -> None:
        self._referee = referee
        self._callers = callers
        self._streams = streams

    @property
    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint("/turn.sh", "a script that runs a program in its turn: | sh -s -- --help", self._tell_script),
            Endpoint("/turn", "what the script asks: waits for the turn, and holds it", self._take),
            Endpoint("/turn/over", "what the script says when the turn is over", self._end),
        ]

    async def _tell_script(self, _: web.Request) -> web.StreamResponse:
        return plain(script())

    async def _take(self, request: web.Request) -> web.StreamResponse:
        try:
            bid = bid_of(request.query)
            caller = await self._callers.caller(request)
            arena = _arena(caller)
        except BadBid as error:
            return _refused(str(error))
        except web.HTTPForbidden as error:
            return _refused(error.text or "")
        holds = self._referee.has_turn(caller.uid, bid.token)
        with self._streams.opened(request, caller, holds=holds):
            seat = await self._referee.sit(arena, bid, (caller.uid, caller.key))
            try:
                return await _stream(request, seat)
            finally:
                self._referee.leave(seat)

    async def _end(self, request: web.Request) -> web.StreamResponse:
        caller = await self._callers.caller(request)
        self._referee.release(caller.uid, request.query.get("token", ""))
        return plain("over\n")


def _arena(caller: Caller) -> ArenaName:
    arena = arena_of(caller.ledger, caller.holder.uid)
    if arena is None:
        several = "has parts of several devices, and pods with shares take turns on one"
        alone = "shares no devices, so there is nobody to take turns with"
        reason = several if caller.holder.uid in caller.ledger.claims else alone
        raise web.HTTPForbidden(text=f"pod {caller.key} {reason}")
    return arena


def _refused(text: str) -> web.Response:
    return plain(f"refused {printable(text.strip())}\n")


async def _stream(request: web.Request, seat: Seat) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/plain", "Cache-Control": "no-store"})
    _watch_for_silence(request)
    try:
        await response.prepare(request)
        while (line := await seat.line()) is not None:
            if request.transport is None or request.transport.is_closing():
                break
            await response.write(f"{line}\n".encode())
        await response.write_eof()
    except ConnectionError:
        pass  # as clients end
    response.force_close()
    return response


def _watch_for_silence(request: web.Request) -> None:
    """A peer that acknowledges nothing is lost soon, not after the kernel's fifteen minutes."""
    connection = request.transport.get_extra_info("socket") if request.transport else None
    if connection is not None:
        milliseconds = int(lease.UNACKNOWLEDGED * 1000)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
