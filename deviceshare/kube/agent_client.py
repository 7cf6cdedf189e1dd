"""The client of the agents' `/use`: plain HTTP to a pod's own address, without credentials.

The API server is not asked to pass it on, as `deviceshare top` has it: that takes the right to reach every pod of a
namespace, and a replica has no other need of it. What answers is believed only in what the page shows.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import Final

import aiohttp
import msgspec

from deviceshare.domain import contract
from deviceshare.domain.objects.usage import NodeUse
from deviceshare.loops.replica.use_rounds import AgentPod, AskAgent

ANSWER_SECONDS: Final = 2.0
MAX_ANSWER: Final = 256 << 10
"""Bytes; a device takes less than 400."""


_NO_ANSWER: Final = (aiohttp.ClientError, OSError, ValueError, RecursionError, msgspec.DecodeError)
"""TimeoutError is an OSError."""


@asynccontextmanager
async def agent_client() -> AsyncIterator[AskAgent]:
    """Gives a function that asks one agent and answers None where it gets no sensible answer in time."""
    timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
    # Neither cookies nor proxies of the environment; nor compressed answers, of which kilobytes hold many megabytes.
    async with aiohttp.ClientSession(
        timeout=timeout,
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
        auto_decompress=False,
        headers={"Accept-Encoding": "identity"},
    ) as session:

        async def ask(agent: AgentPod) -> NodeUse | None:
            try:
                return msgspec.json.decode(await _read(session, _url(agent.status.pod_ip)), type=NodeUse)
            except _NO_ANSWER:
                return None

        yield ask


def _url(address: str) -> str:
    """Raises ValueError for what is no address: nothing else may be asked."""
    ip = ip_address(address)
    host = f"[{ip}]" if ip.version == 6 else str(ip)
    return f"http://{host}:{contract.AGENT_PORT}/use"


async def _read(session: aiohttp.ClientSession, url: str) -> bytes:
    async with session.get(url, allow_redirects=False) as response:
        if response.status != 200:
            raise ValueError(f"{url} answered {response.status}")
        body = bytearray()
        async for chunk in response.content.iter_chunked(65536):
            body += chunk
            if len(body) > MAX_ANSWER:
                raise ValueError(f"{url} answered more than {MAX_ANSWER} bytes")
        return bytes(body)
