"""Pods created and bound per second: kube-scheduler alone, with an extender that agrees to everything, and deviceshare.

    python -m tests.benchmarks.scheduling [--nodes 100] [--pods 500] [--rounds 3] [--only NAME]... [--json]
                                          [--profile DIRECTORY] [--gpushare FILE]

deviceshare has three rows: pods of groups that have their nodes, first pods, each of which gives a group its node, and
pods with shares of 1 GiB, which fit best where others are, so that they fill one node after the other. Where the API
server serves MutatingAdmissionPolicy v1, each has another row in which policies admit the pods, in place of webhooks.
Where it serves DRA (1.34 and later), another row has pods that share ResourceClaims by kube-scheduler alone.
`--gpushare` names a built gpushare-scheduler-extender (https://github.com/AliyunContainerService), which then has a row
with shares of the same size.

All are measured in one run, in alternating rounds on one API server with the same nodes, because figures of
different runs, let alone machines, can't be compared; read the ratios. Within a round the processes are new, a first
pod for each group warms them up (and binds the groups of deviceshare), and only the pods after that count.
"""

import asyncio
import contextlib
import statistics
import sys
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path

import click
import msgspec
import uvloop
from msgspec import Struct
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from deviceshare.domain import contract
from deviceshare.domain.admission import settings
from deviceshare.domain.objects.shares import GPU_MEM, MIB_PER_GIB
from deviceshare.kube.api import Api
from deviceshare.kube.connection import Connection
from deviceshare_sandbox.components import Component
from deviceshare_sandbox.state import Options
from tests.benchmarks import agreeable, load, profiling
from tests.benchmarks.control_plane import ControlPlane, control_plane, requests

DEVICES = 8
"""Of a node."""
GROUPS = 50
DEVICES_A_GROUP = 2
_WEBHOOK_SECONDS = 30.0
_NOTED = 0.05
"""Requests a pod that are named in the table; what is rarer counts in the sum alone."""
_SETTLE_SECONDS = 4.0
"""After the last pod is bound: statuses, summaries and events are written by then."""


class Round(Struct):
    """One round."""

    pods_a_second: float
    cpu_ms_a_pod: dict[str, float]
    """By process."""
    requests_a_pod: dict[str, float]
    """By what was asked of the API server, also for a while after the last pod was bound; lists and watches not."""


class Contender:
    """What is measured: the processes that run, and the pods they are given."""

    kind = ""
    admission = ""
    """How deviceshare admits the pods, if it does."""
    scheduler = contract.SCHEDULER_NAME
    grouped = False
    resource = GPU_MEM
    gib = 0
    """The share that each pod asks for, as so much of the resource."""
    devices = 0
    """The devices that each pod's own group asks for."""

    @property
    def name(self) -> str:
        """Of its row."""
        return self.kind

    @property
    def file(self) -> str:
        """Its name, as part of a file's."""
        return self.name.replace(",", "").replace(" ", "-")

    def possible(self, _: ControlPlane) -> bool:
        """Whether the control plane can run it."""
        return True

    async def prepare(self, api: Api, pods: int) -> None:
        """Creates what as many pods need."""

    def components(self, plane: ControlPlane) -> list[Component]:
        raise NotImplementedError

    def processes(self, plane: ControlPlane) -> list[Component]:
        """What it starts: its components, to be profiled where that is asked for."""
        return [profiling.to_be_sampled(each, plane.profiled) for each in self.components(plane)]

    @contextlib.asynccontextmanager
    async def running(self, plane: ControlPlane, connection: Connection) -> AsyncIterator[None]:
        """Runs its processes for the length of the block."""
        async with plane.beside(self.processes(plane)):
            yield

    def pods(self, prefix: str, number: int) -> list[bytes]:
        """As many pods, those of one group after another as a Deployment makes them."""
        return [
            load.pod(
                f"{prefix}-{each}",
                self.group(prefix, each, number),
                self.scheduler,
                grouped=self.grouped,
                limits={self.resource: str(self.gib)} if self.gib else {},
            )
            for each in range(number)
        ]

    def group(self, prefix: str, each: int, number: int) -> str:
        """The group of one of so many pods, which are spread evenly over all."""
        return f"group-{each * GROUPS // number}"


class Alone(Contender):
    kind = "kube-scheduler alone"
    scheduler = contract.DEFAULT_SCHEDULER_NAME

    def components(self, plane: ControlPlane) -> list[Component]:
        return [plane.parts.scheduler]


class SharedClaims(Alone):
    """What Kubernetes itself has in place of groups, from 1.34 on: pods that name one ResourceClaim for two devices."""

    kind = "kube-scheduler, shared claims"

    def __init__(self) -> None:
        self._rounds = 0

    def possible(self, plane: ControlPlane) -> bool:
        return plane.serves_claims

    @contextlib.asynccontextmanager
    async def running(self, plane: ControlPlane, connection: Connection) -> AsyncIterator[None]:
        if not self._rounds:
            await load.publish_devices(connection, DEVICES)
        self._rounds += 1  # No controller runs that would take an allocated claim away.
        await load.create_claims(connection, [self.group("", each, GROUPS) for each in range(GROUPS)], DEVICES_A_GROUP)
        async with super().running(plane, connection):
            yield

    def group(self, prefix: str, each: int, number: int) -> str:
        return f"round-{self._rounds}-{super().group(prefix, each, number)}"

    def pods(self, prefix: str, number: int) -> list[bytes]:
        return [
            load.pod(f"{prefix}-{each}", name, self.scheduler, grouped=False, limits={}, claim=name)
            for each in range(number)
            for name in [self.group(prefix, each, number)]
        ]


class Agreeable(Contender):
    kind = "extender that says yes"

    def components(self, plane: ControlPlane) -> list[Component]:
        url = f"http://127.0.0.1:{plane.ports.extender}"
        command = [sys.executable, "-m", agreeable.__name__, str(plane.ports.extender)]
        return [
            Component("extender", command, f"{url}/healthz"),
            plane.scheduler_asking({"urlPrefix": url, **agreeable.CONFIG}),
        ]


class Deviceshare(Contender):
    """With its webhooks, or its policies."""

    def __init__(self, admission: str = settings.WEBHOOKS) -> None:
        self.admission = admission

    @property
    def name(self) -> str:
        return self.kind if self.admission == settings.WEBHOOKS else f"{self.kind}, {self.admission}"

    def components(self, plane: ControlPlane) -> list[Component]:
        parts = plane.parts_with(self.admission)
        return [parts.deviceshare, parts.deviceshare_scheduler]

    def possible(self, plane: ControlPlane) -> bool:
        return self.admission == settings.WEBHOOKS or plane.serves_policies

    @contextlib.asynccontextmanager
    async def running(self, plane: ControlPlane, connection: Connection) -> AsyncIterator[None]:
        probe = self.pods("probe", 1)[0]
        async with plane.beside(self.processes(plane)):
            await load.await_ledgers(Api(connection), plane.nodes)
            async with plane.admission(connection, self.admission):
                await _until(connection, probe, mutated=True)
                yield
                await load.remove_groups(connection)
            await _until(connection, probe, mutated=False)


class Grouped(Deviceshare):
    """Pods that join bound groups."""

    kind = "deviceshare"
    grouped = True

    async def prepare(self, api: Api, pods: int) -> None:
        await load.create_groups(api, [f"group-{number}" for number in range(GROUPS)], DEVICES_A_GROUP)


class FirstPods(Deviceshare):
    """Pods of unbound groups, one each."""

    kind = "deviceshare, first pods"
    grouped = True
    devices = 1

    async def prepare(self, api: Api, pods: int) -> None:
        names = [f"group-warm-{number}" for number in range(GROUPS)] + [f"group-pod-{number}" for number in range(pods)]
        await load.create_groups(api, names, self.devices)

    def group(self, prefix: str, each: int, number: int) -> str:
        return f"group-{prefix}-{each}"


class Shares(Deviceshare):
    kind = "deviceshare, shares"
    gib = 1


class Gpushare(Contender):
    """gpushare-scheduler-extender, which binds as ours does."""

    kind = "gpushare, shares"
    gib = 1
    resource = "aliyun.com/gpu-mem"

    def __init__(self, program: Path) -> None:
        self._program = program.absolute()

    def components(self, plane: ControlPlane) -> list[Component]:
        url = f"http://127.0.0.1:{plane.ports.extender}"
        environment = {"PORT": str(plane.ports.extender), "KUBECONFIG": str(plane.kubeconfig), "LOG_LEVEL": "warning"}
        command = ["env", *(f"{name}={value}" for name, value in environment.items()), str(self._program)]
        config = {
            "urlPrefix": f"{url}/gpushare-scheduler",
            "filterVerb": "filter",
            "bindVerb": "bind",
            "nodeCacheCapable": True,
            "managedResources": [{"name": self.resource}],
            "httpTimeout": "15s",
        }
        return [Component("extender", command, f"{url}/version"), plane.scheduler_asking(config)]

    @contextlib.asynccontextmanager
    async def running(self, plane: ControlPlane, connection: Connection) -> AsyncIterator[None]:
        gib = DEVICES * Options().memory_mib // MIB_PER_GIB  # what its device plugin would publish
        await load.publish_capacity(connection, {self.resource: str(gib), "aliyun.com/gpu-count": str(DEVICES)})
        async with super().running(plane, connection):
            yield


CONTENDERS = (
    Alone(),
    SharedClaims(),
    Agreeable(),
    *(contender(admission) for contender in (Grouped, FirstPods, Shares) for admission in settings.MODES),
)


async def measure(
    nodes: int, pods: int, rounds: int, contenders: Sequence[Contender], progress: Progress, *, profiles: Path | None
) -> dict[str, list[Round]]:
    """All rounds of all contenders, by name."""
    async with control_plane(nodes, DEVICES) as (plane, connection):
        possible = [contender for contender in contenders if contender.possible(plane)]
        results: dict[str, list[Round]] = {contender.name: [] for contender in possible}
        for number in range(1, rounds + 1):
            for contender in possible:
                bar = progress.add_task(f"round {number}: {contender.name}", total=pods)
                injected = bool(contender.admission)
                plane.profiled = profiles / contender.file if profiles and number == rounds else None
                async with contender.running(plane, connection):
                    await contender.prepare(Api(connection), pods)
                    await load.create_and_await(connection, contender.pods("warm", GROUPS), injected=injected)
                    await asyncio.sleep(_SETTLE_SECONDS)  # what follows on the warm-up isn't measured
                    async with profiling.profile(plane.pids(), connection, plane.profiled):
                        asked, before = await requests(connection), plane.cpu_seconds()
                        seconds = await load.create_and_await(
                            connection, contender.pods("pod", pods), partial(progress.advance, bar), injected=injected
                        )
                        spent = {name: (cpu - before[name]) * 1000 / pods for name, cpu in plane.cpu_seconds().items()}
                    await asyncio.sleep(_SETTLE_SECONDS)
                    more = await requests(connection) - asked
                    results[contender.name].append(
                        Round(pods / seconds, spent, {what: number / pods for what, number in more.most_common()})
                    )
                    await load.remove_all(connection)
    return results


async def _until(connection: Connection, probe: bytes, *, mutated: bool) -> None:
    """The API server reads the registered webhooks and policies anew a moment after they change."""
    async with asyncio.timeout(_WEBHOOK_SECONDS):
        while await load.mutated(connection, probe) is not mutated:  # noqa: ASYNC110 nobody tells us
            await asyncio.sleep(0.1)


def table(results: dict[str, list[Round]], nodes: int, pods: int) -> Table:
    """Medians and ratios to the first contender, with every round beside them."""
    medians = {name: _median(measured) for name, measured in results.items()}
    base = next(iter(medians.values()))
    result = Table(title=f"{nodes} nodes, {pods} pods", title_justify="left")
    result.add_column("created and bound")
    for heading in ("pods/s, median", "ratio", "pods/s by round"):
        result.add_column(heading, justify="right")
    result.add_column("CPU ms a pod, median")
    result.add_column("requests a pod, last round")
    for name, measured in results.items():
        rounds = "  ".join(f"{each.pods_a_second:.0f}" for each in measured)
        cpu = {
            process: statistics.median(each.cpu_ms_a_pod[process] for each in measured)
            for process in measured[0].cpu_ms_a_pod
        }
        spent = ", ".join(f"{process} {ms:.1f}" for process, ms in cpu.items()) + f"; all {sum(cpu.values()):.1f}"
        asked = measured[-1].requests_a_pod
        often = ", ".join(f"{what} {number:.2f}" for what, number in asked.items() if number >= _NOTED)
        every = f"{sum(asked.values()):.2f}: {often}"
        result.add_row(name, f"{medians[name]:.0f}", f"{medians[name] / base:.2f}", rounds, spent, every)
    return result


def _median(measured: Sequence[Round]) -> float:
    return statistics.median(each.pods_a_second for each in measured)


@click.command(help=__doc__)
@click.option("--nodes", type=click.IntRange(1), default=100, show_default=True)
@click.option("--pods", type=click.IntRange(1), default=500, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--only", multiple=True, type=click.Choice([each.name for each in CONTENDERS]), help="Leave others out.")
@click.option("--json", "as_json", is_flag=True, help="Every round's figures instead of the table.")
@click.option("--profile", type=click.Path(file_okay=False, path_type=Path), help="Write profiles to this directory.")
@click.option("--gpushare", type=click.Path(dir_okay=False, exists=True, path_type=Path), help="A rival's program.")
def main(
    nodes: int,
    pods: int,
    rounds: int,
    *,
    only: tuple[str, ...],
    as_json: bool,
    profile: Path | None,
    gpushare: Path | None,
) -> None:
    contenders: list[Contender] = [each for each in CONTENDERS if not only or each.name in only]
    if gpushare:
        contenders.append(Gpushare(gpushare))
    room = nodes * DEVICES * Options().memory_mib // MIB_PER_GIB
    if any((pods + GROUPS) * each.gib > room for each in contenders):
        raise click.UsageError(f"{nodes} nodes have {room} GiB for shares; give --nodes more, or --pods fewer")
    if any((pods + GROUPS) * each.devices > nodes * DEVICES for each in contenders):
        raise click.UsageError(f"{nodes} nodes have {nodes * DEVICES} devices; give --nodes more, or --pods fewer")
    terminal = Console(stderr=True)
    with Progress(console=terminal, disable=not terminal.is_terminal) as progress:
        results = uvloop.run(measure(nodes, pods, rounds, contenders, progress, profiles=profile))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(results)))
    else:
        Console(width=None if sys.stdout.isatty() else 200).print(table(results, nodes, pods))


if __name__ == "__main__":
    main()
