"""Asks processes whether they are well: 200 on their health URL, and nothing else counts."""

import ssl
from pathlib import Path

import aiohttp

_TIMEOUT = aiohttp.ClientTimeout(total=3.0)


class Prober:
    """Probes plain HTTP, and HTTPS signed by the sandbox's own authority. Use as an async context manager."""

    def __init__(self, authority: Path) -> None:
        self._tls = ssl.create_default_context(cafile=str(authority))

    async def __aenter__(self) -> "Prober":
        # A connection per probe: a kept one could outlive the process that it is about.
        connector = aiohttp.TCPConnector(ssl=self._tls, force_close=True)
        self._session = aiohttp.ClientSession(connector=connector, timeout=_TIMEOUT, trust_env=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def healthy(self, url: str) -> bool:
        """Whether `url` answers 200 within three seconds."""
        try:
            async with self._session.get(url) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, OSError):  # TimeoutError is an OSError
            return False
