"""What one request to an API server costs: aiohttp's client and deviceshare's own, in turns, on a server beside them.

    python -m tests.benchmarks.request [--requests 3000] [--rounds 3]

Processor time of client and server together, over plain HTTP. The last column is the server's, asked by bare streams.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

import aiohttp
import click
import uvloop
from yarl import URL

from deviceshare.kube.http_client import HttpClient

_BODY = b'{"metadata":{"annotations":{"deviceshare.io/x":"' + b"x" * 2000 + b'"}}}'
_HEADERS = {"Content-Type": "application/merge-patch+json", "Authorization": "Bearer token"}
_PATH, _CHANGE = "/api/v1/namespaces/default/pods/p", b'{"metadata":{"labels":{"a":"b"}}}'
_HEAD = (
    "HTTP/1.1 200 OK\r\nAudit-Id: 8a56a4bc-0000\r\nCache-Control: no-cache\r\nContent-Type: application/json\r\n"
    "X-Kubernetes-Pf-Flowschema-Uid: 8a56a4bc\r\nX-Kubernetes-Pf-Prioritylevel-Uid: 8a56a4bc\r\n"
    f"Date: Sat, 28 Nov 2026 22:00:00 GMT\r\nContent-Length: {len(_BODY)}\r\n\r\n"
).encode()


class _Answering(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment] # it is a stream's

    def data_received(self, data: bytes) -> None:
        if data.endswith(_CHANGE):
            self._transport.write(_HEAD + _BODY)


async def _measured(ask: Callable[[], Awaitable[object]], requests: int) -> float:
    """Milliseconds of processor time for each."""
    begun = time.process_time()
    for _ in range(requests):
        await ask()
    return (time.process_time() - begun) / requests * 1000


async def _compare(requests: int, rounds: int) -> None:
    server = await asyncio.get_running_loop().create_server(_Answering, "127.0.0.1", 0)
    host = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    own = HttpClient(f"http://{host}", None, {"User-Agent": "x", "Accept": "application/json"})
    reader, writer = await asyncio.open_connection(*host.split(":"))

    async def ours() -> None:
        async with asyncio.timeout(10):
            await own.call("PATCH", f"{_PATH}?fieldManager=deviceshare", _HEADERS, _CHANGE)

    async def bare() -> None:
        writer.write(_CHANGE)
        await reader.readexactly(len(_HEAD) + len(_BODY))

    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:

        async def theirs() -> None:
            url = URL(f"http://{host}{_PATH}", encoded=True).update_query({"fieldManager": "deviceshare"})
            timeout = aiohttp.ClientTimeout(total=10, sock_connect=3)
            async with session.request("PATCH", url, data=_CHANGE, headers=_HEADERS, timeout=timeout) as answer:
                await answer.read()

        for _ in range(rounds):
            found = [await _measured(ask, requests) for ask in (theirs, ours, bare)]
            click.echo("aiohttp {:.3f} ms, ours {:.3f} ms, the server alone {:.3f} ms".format(*found))
    own.close()
    writer.close()
    server.close()


@click.command(help=__doc__)
@click.option("--requests", type=click.IntRange(1), default=3000, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
def main(requests: int, rounds: int) -> None:
    uvloop.run(_compare(requests, rounds))


if __name__ == "__main__":
    main(prog_name="python -m tests.benchmarks.request")
