"""The agent's server for pods: its endpoints, its limits and the help at `/`.

Every container on the node reaches it, and so does whoever reaches the node. It is another server than the agent's own,
which reports all pods.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from aiohttp import web

from deviceshare.flags import Address
from deviceshare.metrics import ServerMetrics
from deviceshare.web.server import Server

TIMEOUT: Final = 10.0
"""Seconds for a request, `caller.PATIENCE_SECONDS` included. A stream removes it (streams.py)."""
CONNECTIONS: Final = 512
CONNECTIONS_OF_ADDRESS: Final = 32
"""A few more than `streams.MAX_STREAMS_OF_POD`. A node runs 110 pods, unless its kubelet is told otherwise."""
MAX_BODY: Final = 1024
"""Bytes. Questions have their parameters in the query."""
_HELD: Final = CONNECTIONS * 4096
"""Bytes of all requests under way: a stream's stay until it ends."""
_HEADERS: Final = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Endpoint(NamedTuple):
    """One question that pods may ask."""

    path: str
    help: str
    """What it answers, in one line."""
    handler: Handler
    method: str = "GET"


def pods_server(address: Address, endpoints: Sequence[Endpoint], metrics: ServerMetrics) -> Server:
    """The server of these endpoints. Its handlers recognize their caller (caller.py)."""
    text = help_text(endpoints)

    async def tell_help(_: web.Request) -> web.StreamResponse:
        return plain(text)

    async def tell_nothing_here(_: web.Request) -> web.StreamResponse:
        return plain(f"There is nothing here, or not by this method.\n\n{text}", status=404)

    return Server(
        "pods",
        *address,
        [
            web.get("/", tell_help),
            *(web.route(each.method, each.path, each.handler) for each in endpoints),
            web.route("*", "/{path:.*}", tell_nothing_here),
        ],
        metrics,
        max_body=MAX_BODY,
        timeout=TIMEOUT,
        connections=CONNECTIONS,
        per_address=CONNECTIONS_OF_ADDRESS,
        at_once=_HELD,
        flag="--serve-pods",
    )


def plain(text: str, *, status: int = 200) -> web.Response:
    """A text for people. Names in it are `printable` already (domain/objects/printable.py)."""
    return web.Response(status=status, text=text, headers=_HEADERS)


def help_text(endpoints: Sequence[Endpoint]) -> str:
    """What `/` says."""
    width = max((len(each.path) for each in endpoints), default=0)
    lines = [f"  {each.path:{width}}  {each.help}" for each in endpoints]
    return "\n".join(
        [
            "deviceshare's agent on this node answers the pods of the node, each about its own devices:",
            "",
            *lines,
            "",
            "For example: curl -s $DEVICESHARE_AGENT/smi, or wget -qO- $DEVICESHARE_AGENT/smi",
            "",
        ]
    )
