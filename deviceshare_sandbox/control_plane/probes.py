"""Health probes of processes: 200 on the health URL is healthy, and nothing else.

Each probe has a connection of its own, closed before its answer is given: a kept one could outlive the process that it
is about. That is also why this is no HTTP client, whose connections close when it suits the client.
"""

import asyncio
import contextlib
import ssl
from pathlib import Path
from urllib.parse import urlsplit

_SECONDS = 3.0


class Prober:
    """Probes plain HTTP, and HTTPS with a certificate that the sandbox's own authority signed."""

    def __init__(self, authority: Path) -> None:
        self._tls = ssl.create_default_context(cafile=str(authority))

    async def healthy(self, url: str) -> bool:
        """Whether `url` answers 200 within three seconds."""
        try:
            async with asyncio.timeout(_SECONDS):
                return await self._status(url) == b"200"
        except (OSError, ValueError):  # TimeoutError and ssl.SSLError are OSErrors; ValueError: it speaks no HTTP
            return False

    async def _status(self, url: str) -> bytes:
        parts = urlsplit(url)
        tls = self._tls if parts.scheme == "https" else None
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, ssl=tls)
        try:
            writer.write(f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n".encode())
            _, status, _ = (await reader.readline()).split(b" ", 2)
            return status
        finally:
            # Not close(), which for TLS waits for the other side's close_notify: it may be dead.
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
