"""An agent's server for turns as a process of its own, which a test may kill.

`python -m tests.turns.restartable_agent PORT DIRECTORY [blind]`.

All that ask are one pod's, and every process of this machine is taken for one of that pod's; a blind agent sees none.
"""

import asyncio
import sys
from pathlib import Path
from typing import cast

import msgspec

from deviceshare.agent.metrics import AgentMetrics
from deviceshare.agent.pods_api import Caller, Callers, Endpoint, TurnsApi, plain, pods_server
from deviceshare.agent.process_table import ProcessTable
from deviceshare.agent.turns import TurnRecords, Turns
from deviceshare.domain.device_health.containers import NodePod
from deviceshare.domain.objects.ledger import Claim, NodeDevices
from deviceshare.domain.objects.shares import GROUP, Holder
from deviceshare.flags import Address
from deviceshare.web.messages import HttpRequest, Response

POD = msgspec.convert({"metadata": {"name": "pod", "namespace": "default", "uid": "uid-of-pod"}}, NodePod)
LEDGER = msgspec.convert(
    {"metadata": {"name": "n1"}, "spec": {"claims": {"uid-of-team": {"group": "team"}}}}, NodeDevices
)


class OneCaller:
    """Takes everybody for the same pod."""

    async def caller(self, _: HttpRequest) -> Caller:
        return Caller(POD, Holder("uid-of-team", GROUP, Claim("team").group), LEDGER)


class AnybodysProcesses(ProcessTable):
    def _pod_of(self, pid: int | str) -> str:
        return POD.metadata.uid if (self._proc / str(pid)).exists() else ""


async def main(port: int, directory: str, *, blind: bool) -> None:
    proc = Path("/proc")
    records = TurnRecords(Path(directory), ProcessTable(proc))
    # A blind one sees no process, as where pods run in sandboxes.
    processes = ProcessTable(Path(directory) / "no proc") if blind else AnybodysProcesses(proc)
    metrics = AgentMetrics()
    turns = Turns(processes, records, metrics)
    api = TurnsApi(turns, cast("Callers", OneCaller()))

    async def view(_: HttpRequest) -> Response:
        return plain(msgspec.json.encode(turns.view()).decode())

    server = pods_server(Address("127.0.0.1", port), [*api.endpoints, Endpoint("/view", "", view)], metrics)
    await server.start()
    await turns.run()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], blind="blind" in sys.argv))
