"""The pods' network of simulated nodes, as the API server needs it for `kubectl proxy` and `deviceshare top`.

No simulated pod has its address. So the API server reaches pods through an HTTP CONNECT proxy, which knows what really
listens for them, and connects to every other address as it is.
https://kubernetes.io/docs/tasks/extend-kubernetes/setup-konnectivity/
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

Address = tuple[str, int]

_CONNECT_SECONDS = 5.0
_HEAD_SECONDS = 10.0
_CHUNK = 65536


def egress_configuration(socket: Path) -> dict[str, Any]:
    """The API server's, for all that it asks of nodes, pods and webhooks."""
    transport = {"uds": {"udsName": str(socket)}}
    return {
        "apiVersion": "apiserver.k8s.io/v1beta1",
        "kind": "EgressSelectorConfiguration",
        "egressSelections": [
            {"name": "cluster", "connection": {"proxyProtocol": "HTTPConnect", "transport": transport}}
        ],
    }


async def serve_egress(socket: Path, listener_of: Callable[[Address], Address]) -> asyncio.Server:
    """Starts the proxy. `listener_of` gives what listens for an address: itself where nobody else does."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_HEAD_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            host, _, port = head.split(b" ", 2)[1].decode().rpartition(":")
            async with asyncio.timeout(_CONNECT_SECONDS):
                there = await asyncio.open_connection(*listener_of((host.strip("[]"), int(port))))
        except (OSError, ValueError, IndexError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
            writer.close()
            return
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        try:
            await asyncio.gather(_copy(reader, there[1]), _copy(there[0], writer))
        finally:
            writer.close()
            there[1].close()

    return await asyncio.start_unix_server(connected, socket)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
