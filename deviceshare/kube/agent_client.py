"""The client of the agents' `/use`: plain HTTP to a pod's own address, without credentials.

The API server is not asked to pass it on, as `deviceshare top` has it: that takes the right to reach every pod of a
namespace, and a replica has no other need of it. What answers is believed only in what the page shows.
"""

import asyncio
from ipaddress import ip_address
from typing import Final

import msgspec

from deviceshare.domain import contract
from deviceshare.domain.objects.usage import NodeUse
from deviceshare.kube.http_client import HttpClient, TooLong
from deviceshare.loops.replica.use_rounds import AgentPod

ANSWER_SECONDS: Final = 2.0
MAX_ANSWER: Final = 256 << 10
"""Bytes; a device takes less than 400."""


async def ask_agent(agent: AgentPod) -> NodeUse | None:
    """What one agent answers; None where it gives no sensible answer in time."""
    try:
        client = HttpClient(_url(agent.status.pod_ip), None, {"Accept-Encoding": "identity"})
        async with asyncio.timeout(ANSWER_SECONDS):
            answer = await client.call("GET", "/use", {}, most=MAX_ANSWER)
        client.close()
        return msgspec.json.decode(answer.body, type=NodeUse) if answer.status == 200 else None
    except (OSError, ValueError, RecursionError, TooLong):  # TimeoutError is an OSError
        return None


def _url(address: str) -> str:
    """Raises ValueError for what is no address: nothing else may be asked."""
    ip = ip_address(address)
    return f"http://{f'[{ip}]' if ip.version == 6 else ip}:{contract.AGENT_PORT}"
