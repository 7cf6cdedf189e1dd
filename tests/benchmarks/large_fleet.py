"""deviceshare's extender over a fleet held in memory, without a cluster behind it: what deciding costs by itself.

`python -m tests.benchmarks.large_fleet NODES [shared]` prints the port it listens on. Devices are held here and there,
so that nodes are in different situations, and every tenth node has a label of its own. Of a `shared` fleet pods have
parts of the devices instead, so that hardly two nodes are in the same situation.
"""

import asyncio
import random
import sys
from collections.abc import Iterable
from typing import Any

import uvloop

from deviceshare.domain import contract
from deviceshare.domain.objects.devices import Device, devices_of
from deviceshare.domain.objects.groups import Group, GroupMeta, GroupSpec, GroupStatus
from deviceshare.domain.objects.ledger import Claim, LedgerSpec, LedgerStatus, NodeDevices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.object_decoder import ObjectMeta
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import Share
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.logs import configure
from deviceshare.loops.ports import Watcher
from deviceshare.loops.replica.binder import Binder
from deviceshare.metrics import Metrics
from deviceshare.web import extender
from deviceshare.web.extender import Extender
from deviceshare.web.server import Server

RESOURCE = "nvidia.com/gpu"
DEVICES = 8
MIB = 16384
HOME = "node-7"
SPECS = {
    "unbound": GroupSpec({RESOURCE: 2}),
    "bound": GroupSpec({RESOURCE: 1}),
    "selecting": GroupSpec({RESOURCE: 2}, node_selector={"rack": "r0"}),
}
"""The groups; `bound` lives on `HOME`."""
SHARES = {"a share": {"deviceshare.io/gpu-mem": "3"}, "three shares": {"cnvrg.io/metagpu": "250"}, "unbound, mixed": {}}
"""What pods ask for on nodes that are shared already; the last is of the group `unbound`."""


def fleet(nodes: int) -> Fleet:
    """`nodes` shared nodes named node-0 and so on; node-N has N modulo 9 of its eight devices held."""
    filled = Fleet()
    for number in range(nodes):
        name = f"node-{number}"
        labels = {contract.MODE_LABEL: contract.MODE_SHARED} | ({"rack": "r0"} if number % 10 == 0 else {})
        held = [Device(RESOURCE, index) for index in range(number % (DEVICES + 1))]
        claims = {f"uid-of-holder-{number}": Claim("holder", held)} if held else {}
        if name == HOME:
            claims = {"uid-of-bound": Claim("bound", [Device(RESOURCE, 0)])}
        filled.set_node(name, Node(ObjectMeta(name=name, labels=labels)))
        devices = LedgerStatus(list(devices_of({RESOURCE: DEVICES})))
        filled.set_ledger(name, NodeDevices(ObjectMeta(name=name), LedgerSpec(claims), devices))
    return filled


def shared_fleet(nodes: int) -> Fleet:
    """`nodes` nodes of eight devices with 16 GiB, up to five pods on each with 1 to 8 GiB or 5 to 35 percent."""
    filled, chance = Fleet(), random.Random(7)
    for number in range(nodes):
        name = f"node-{number}"
        claims = {f"uid-{number}-{pod}": Claim(pod=f"default/{pod}", shares=[share]) for pod, share in _shares(chance)}
        filled.set_node(name, Node(ObjectMeta(name=name, labels={contract.MODE_LABEL: contract.MODE_SHARED})))
        status = LedgerStatus(list(devices_of({RESOURCE: DEVICES})), memory_mib={RESOURCE: MIB})
        filled.set_ledger(name, NodeDevices(ObjectMeta(name=name), LedgerSpec(claims), status))
    return filled


def _shares(chance: random.Random) -> Iterable[tuple[str, Share]]:
    for index in range(DEVICES):
        left = 100
        for number in range(chance.randrange(6)):
            gib, percent = chance.randint(1, 8), chance.randint(5, 35)
            by_memory = chance.random() < 0.5
            left -= -(-gib * 102_400 // MIB) if by_memory else percent
            if left < 0:
                break
            share = Share("main", RESOURCE, index, memory_mib=gib * 1024 * by_memory, percent=percent * (not by_memory))
            yield f"pod-{index}-{number}", share


class Groups:
    """A mirror that never changes."""

    synced = True

    def __init__(self) -> None:
        self._groups = {
            name: Group(
                GroupMeta(name=name, uid=f"uid-of-{name}"), spec, GroupStatus(node_name=HOME if name == "bound" else "")
            )
            for name, spec in SPECS.items()
        }

    def get(self, key: str) -> Group | None:
        return self._groups.get(key)

    def values(self) -> Iterable[Group]:
        return self._groups.values()

    def put(self, obj: Any) -> None:
        raise NotImplementedError

    def subscribe(self, watcher: Watcher) -> None:
        raise NotImplementedError

    def unsubscribe(self, watcher: Watcher) -> None:
        raise NotImplementedError


class NoBinds(Binder):
    """Filter and prioritize are measured, bind is not."""

    def __init__(self) -> None:
        """Nothing is bound."""

    def remember(self, pod: Pod) -> None:
        """Nothing is bound later."""

    def deviceless(self, uid: str) -> bool:
        return False

    async def bind(self, namespace: str, name: str, uid: str, node: str) -> None:
        raise NotImplementedError


async def serve(known: Fleet) -> None:
    """Serves until killed."""
    routes = Extender(known, Groups(), NoBinds(), lambda: "", since_1_21=lambda: True).routes()
    bounds = {"max_body": extender.MAX_BODY, "timeout": extender.TIMEOUT}
    server = Server("extender", "127.0.0.1", 0, routes, Metrics(), **bounds)  # type: ignore[arg-type]
    await server.start()
    print(server.port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    configure("json", "warning")
    uvloop.run(serve((shared_fleet if "shared" in sys.argv else fleet)(int(sys.argv[1]))))
