"""An agent's server for turns as a process of its own, which a test may kill.

`python -m tests.turns.restartable_agent PORT DIRECTORY [blind]`.

All that ask are one pod's, and every process of this machine is taken for one of that pod's; a blind agent sees none.
"""

import asyncio
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any, cast

import msgspec
from aiohttp import web

from deviceshare.agent.metrics import AgentMetrics
from deviceshare.agent.pods_api.caller import Caller, Callers
from deviceshare.agent.pods_api.server import Endpoint, plain, pods_server
from deviceshare.agent.pods_api.streams import Streams
from deviceshare.agent.pods_api.turns import TurnsApi
from deviceshare.agent.turn_processes import TurnProcesses, boot_and_namespace
from deviceshare.agent.turn_records import TurnRecords
from deviceshare.domain.objects.ledger import Claim, NodeDevices
from deviceshare.domain.objects.requests import GROUP, Holder
from deviceshare.domain.turns.standing import Witness
from deviceshare.flags import Address
from deviceshare.loops.agent.ports import NodePod
from deviceshare.loops.agent.referee import Referee

POD = msgspec.convert({"metadata": {"name": "pod", "namespace": "default", "uid": "uid-of-pod"}}, NodePod)
LEDGER = msgspec.convert(
    {"metadata": {"name": "n1"}, "spec": {"claims": {"uid-of-team": {"group": "team"}}}}, NodeDevices
)


class OneCaller:
    """Takes everybody for the same pod."""

    async def caller(self, _: web.Request) -> Caller:
        return Caller(POD, Holder("uid-of-team", GROUP, Claim("team").group), LEDGER)


class AnybodysProcesses(TurnProcesses):
    def _pod_of(self, pid: int) -> str:
        return POD.metadata.uid if (self._proc / str(pid)).exists() else ""


class Blind:
    """Sees no process, as where pods run in sandboxes."""

    async def witness(self, *_: Any) -> None:
        return None

    async def ended(self, _: Collection[Witness]) -> set[Witness]:
        return set()


async def main(port: int, directory: str, *, blind: bool) -> None:
    proc = Path("/proc")
    metrics, records = AgentMetrics(), TurnRecords(Path(directory), *boot_and_namespace(proc))
    referee = Referee(Blind() if blind else AnybodysProcesses(proc), records, metrics)
    api = TurnsApi(referee, cast("Callers", OneCaller()), Streams())

    async def view(_: web.Request) -> web.StreamResponse:
        return plain(msgspec.json.encode(referee.view()).decode())

    server = pods_server(Address("127.0.0.1", port), [*api.endpoints, Endpoint("/view", "", view)], metrics)
    await server.start()
    await referee.run()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], blind="blind" in sys.argv))
