"""Placement of a trace of GPU tasks: how many GPUs each rule allocates, and how many nodes it leaves whole.

    python -m tests.benchmarks.placement --trace FOLDER [--rule NAME]... [--nodes 100] [--seed 7] [--json]

FOLDER has `openb_gpu_nodes.csv` and `openb_pods.csv` in the format of Alibaba's trace of 2023 (alibaba/clusterdata,
cluster-trace-gpu-v2023); tests/benchmarks/traces has a small made-up one. Tasks are drawn with replacement, the same
for each rule, until they ask for 130 % of the GPUs, as in Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing
Workloads with Fragmentation Gradient Descent" (USENIX ATC'23). None ends; one that doesn't fit is left out.

Which nodes fit, which are best and which devices a task gets is said by the real `Fleet`. Tasks of whole GPUs are
groups, others shares by percent. CPU and memory are left out: they don't depend on the rule. Of equally good nodes the
emptiest is taken, as kube-scheduler's own least-allocated scoring would.
"""

import csv
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import click
import msgspec
from msgspec.structs import replace
from rich.console import Console
from rich.progress import track
from rich.table import Table

from deviceshare.domain import contract, vendors
from deviceshare.domain.objects.devices import Device, devices_of
from deviceshare.domain.objects.ledger import Claim, LedgerStatus, NodeDevices, claim_of, share_claim_of
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.object_decoder import ObjectMeta
from deviceshare.domain.objects.shares import GPU_PERCENT, GROUP, POD, Holder, Need, Request, Share, ShareRequest
from deviceshare.domain.placement import allocation
from deviceshare.domain.placement.fleet import Fleet

RESOURCE: Final = vendors.NVIDIA.resource
WHOLE: Final = 100
"""Percent of a GPU; parts are rounded up to whole percents."""
ASKED: Final = 1.3
"""Of all GPUs, when the drawing ends."""
LARGEST: Final = 8
"""GPUs of the nodes that are to stay whole."""


class Task(NamedTuple):
    """`gpus` whole GPUs, or `percent` of one; of these models, or of any."""

    gpus: int
    percent: int
    models: frozenset[str]

    @property
    def size(self) -> float:
        return self.gpus or self.percent / WHOLE


class Trace(NamedTuple):
    """The GPUs and their model by node, and the tasks that are drawn from."""

    nodes: Mapping[str, tuple[int, str]]
    tasks: Sequence[Task]

    @property
    def gpus(self) -> int:
        return sum(gpus for gpus, _ in self.nodes.values())


def read_trace(folder: Path, most: int = 0) -> Trace:
    """Without nodes and tasks that have no GPU; of the nodes the first `most`, where that is given."""
    with (folder / "openb_gpu_nodes.csv").open() as file:
        nodes = {row["sn"]: (int(row["gpu"]), row["model"]) for row in csv.DictReader(file) if int(row["gpu"])}
    with (folder / "openb_pods.csv").open() as file:
        tasks = [_task(row) for row in csv.DictReader(file) if int(row["num_gpu"])]
    return Trace(dict(list(nodes.items())[: most or None]), tasks)


def _task(row: Mapping[str, str]) -> Task:
    gpus, milli = int(row["num_gpu"]), int(row["gpu_milli"])
    models = frozenset(filter(None, row["gpu_spec"].split("|")))
    return Task(gpus, 0, models) if milli >= 1000 else Task(0, -(-milli // 10), models)


def draw(trace: Trace, seed: int) -> list[Task]:
    """Tasks until they ask for `ASKED` of the GPUs. Those that no node could ever take are not among them."""
    chance, drawn, left = random.Random(seed), [], trace.gpus * ASKED
    fits = [task for task in trace.tasks if _fits_empty(task, trace)]
    while left > 0:
        drawn.append(chance.choice(fits))
        left -= drawn[-1].size
    return drawn


def _fits_empty(task: Task, trace: Trace) -> bool:
    return any(gpus >= task.gpus and (not task.models or model in task.models) for gpus, model in trace.nodes.values())


class TracedFleet:
    """The nodes of a trace in a Fleet."""

    def __init__(self, trace: Trace) -> None:
        self.fleet = Fleet()
        self.trace = trace
        self.placed = 0.0
        """GPUs."""
        for name, (gpus, _) in trace.nodes.items():
            self.fleet.set_node(name, Node(ObjectMeta(name=name, labels={contract.MODE_LABEL: contract.MODE_SHARED})))
            status = LedgerStatus(list(devices_of({RESOURCE: gpus})))
            self.fleet.set_ledger(name, NodeDevices(ObjectMeta(name=name), status=status))
        self._of_model: dict[frozenset[str], list[str]] = {}

    def fitting(self, task: Task, request: Request) -> list[str]:
        """The nodes that the extender's filter would leave."""
        if task.models not in self._of_model:
            nodes = self.trace.nodes.items()
            self._of_model[task.models] = [n for n, (_, model) in nodes if not task.models or model in task.models]
        return self.fleet.filter(request, self._of_model[task.models]).fits

    def whole(self, name: str) -> int:
        """How many of the node's GPUs are nobody's."""
        return len(self.fleet.free(name))

    def left(self, name: str) -> int:
        """Percents of all the node's GPUs together, as least-allocated scoring would see them."""
        return sum(self.rooms(name))

    def rooms(self, name: str) -> tuple[int, ...]:
        """What each of the node's GPUs has left, sorted."""
        return tuple(sorted(room.free for _, room in self.fleet.rooms(name)))

    def place(self, task: Task, request: Request, name: str, device: Device | None = None) -> None:
        """Gives the task its devices of the node: those that the product chooses, or part of this one."""
        ledger = self.fleet.ledger(name)
        assert ledger is not None
        claims = {**ledger.claims, request.holder.uid: self._claim(request, name, device)}
        self.fleet.set_ledger(name, replace(ledger, spec=replace(ledger.spec, claims=claims)))
        self.placed += task.size

    def _claim(self, request: Request, name: str, device: Device | None) -> Claim:
        if request.resources:
            devices = allocation.choose(request, self.fleet.available(name))
            assert devices is not None
            return claim_of(request.holder, devices)
        if device is None:
            shares = allocation.choose_shares(request.share, request.strategy, self.fleet.rooms(name))
            assert shares is not None
        else:
            [need] = request.share.needs
            shares = (Share("main", device.resource, device.index, percent=need.percent),)
        return share_claim_of(request.holder, shares)

    def whole_nodes(self) -> float:
        """The part of the largest nodes of which every GPU is nobody's."""
        largest = [name for name, (gpus, _) in self.trace.nodes.items() if gpus == LARGEST]
        return sum(self.whole(name) == LARGEST for name in largest) / len(largest) if largest else 0.0


def request_for(task: Task, number: int) -> Request:
    """What deviceshare would be asked for the task."""
    if task.gpus:
        return Request(Holder(f"uid-{number}", GROUP, f"g{number}"), {RESOURCE: task.gpus}, "binpack", {}, "")
    share = ShareRequest((Need("main", percent=task.percent),), (GPU_PERCENT,))
    return Request(Holder(f"uid-{number}", POD, f"default/p{number}"), {}, "binpack", {}, "", share)


Rule = Callable[[TracedFleet, Task, Request, Sequence[str]], tuple[str, Device | None]]
"""Chooses one of the nodes that fit, and where it chooses the device, too, that."""


def deviceshare(cluster: TracedFleet, task: Task, request: Request, fits: Sequence[str]) -> tuple[str, Device | None]:
    """As `Fleet.prioritize` says."""
    scores = cluster.fleet.prioritize(request, fits)
    best = max(scores.values())
    return max((name for name in fits if scores[name] == best), key=cluster.left), None


def devices_alone(cluster: TracedFleet, task: Task, request: Request, fits: Sequence[str]) -> tuple[str, Device | None]:
    """As until November 2026: by the tightest device alone, whatever else its node has."""
    preferences = {name: first for name, (first, _) in cluster.fleet.situations.preferences(request, fits).items()}
    best = min(preferences.values())
    return max((name for name in fits if preferences[name] == best), key=cluster.left), None


def first_fit(cluster: TracedFleet, task: Task, request: Request, fits: Sequence[str]) -> tuple[str, Device | None]:
    """The first node that fits."""
    return fits[0], None


class FragmentationGradientDescent:
    """Where the GPUs that tasks like those of the trace can't use grow least (section 4 of the paper)."""

    def __init__(self, trace: Trace) -> None:
        kinds = Counter((task.gpus, task.percent) for task in trace.tasks)
        self._kinds = [(gpus, percent, count / len(trace.tasks)) for (gpus, percent), count in kinds.items()]
        self._unusable = cache(self._measure)
        self._best = cache(self._look)

    def __call__(
        self, cluster: TracedFleet, task: Task, request: Request, fits: Sequence[str]
    ) -> tuple[str, Device | None]:
        found = {name: self._best(cluster.rooms(name), task.gpus, task.percent) for name in fits}
        name = min(fits, key=lambda each: found[each][0])
        if task.gpus:
            return name, None
        free = found[name][1]
        return name, next(device for device, room in cluster.fleet.rooms(name) if room.free == free)

    def _look(self, rooms: tuple[int, ...], gpus: int, percent: int) -> tuple[float, int]:
        """By how much what can't be used grows at best, and what the GPU had left of which a part is taken."""
        before = self._unusable(rooms)
        if gpus:
            left = list(rooms)
            for _ in range(gpus):
                left.remove(WHOLE)
            return self._unusable(tuple(left)) - before, 0
        grown = {
            free: self._unusable(tuple(sorted(_without(rooms, free, percent)))) - before
            for free in set(rooms)
            if free >= percent
        }
        return min((growth, free) for free, growth in grown.items())

    def _measure(self, rooms: tuple[int, ...]) -> float:
        """F_n(M) of the paper: of each kind of task the GPUs that it can't use, weighed by how frequent it is.

        Of a GPU that is taken as a whole there is no room among `rooms`, so nothing of it counts.
        """
        total, whole = sum(rooms), rooms.count(WHOLE)
        unusable = 0.0
        for gpus, percent, weight in self._kinds:
            if gpus:
                unusable += weight * (total - WHOLE * whole if whole >= gpus else total)
            else:
                unusable += weight * sum(free for free in rooms if free < percent)
        return unusable


def _without(rooms: Iterable[int], free: int, percent: int) -> list[int]:
    left = list(rooms)
    left.remove(free)
    return [*left, free - percent]


class RuleFigures(msgspec.Struct):
    """Of one rule. Parts of 1, but the time."""

    rule: str
    allocated_at_100: float = 0.0
    """Of all GPUs, when tasks had asked for as many as there are."""
    allocated_at_130: float = 0.0
    whole_nodes_at_50: float = 0.0
    """Nodes of eight GPUs that are all nobody's, when half of the GPUs had been asked for."""
    milliseconds: float = 0.0
    """The median of a decision: filter, choice and taking in what it changed."""


def replay(name: str, rule: Rule, trace: Trace, tasks: Sequence[Task]) -> RuleFigures:
    """Places the tasks in turn by the rule."""
    cluster, asked, times, figures = TracedFleet(trace), 0.0, list[float](), RuleFigures(name)
    console = Console(stderr=True)
    for number, task in enumerate(track(tasks, name, console=console, disable=not console.is_terminal)):
        began, request = time.perf_counter(), request_for(task, number)
        if fits := cluster.fitting(task, request):
            node, device = rule(cluster, task, request, fits)
            cluster.place(task, request, node, device)
        times.append(time.perf_counter() - began)
        before, asked = asked, asked + task.size
        if before < trace.gpus / 2 <= asked:
            figures.whole_nodes_at_50 = cluster.whole_nodes()
        if before < trace.gpus <= asked:
            figures.allocated_at_100 = cluster.placed / trace.gpus
    figures.allocated_at_130 = cluster.placed / trace.gpus
    figures.milliseconds = 1000 * sorted(times)[len(times) // 2]
    return figures


def rules(trace: Trace) -> dict[str, Rule]:
    """By name."""
    return {
        "deviceshare": deviceshare,
        "devices alone": devices_alone,
        "first fit": first_fit,
        "fragmentation gradient descent": FragmentationGradientDescent(trace),
    }


@click.command(help=__doc__)
@click.option("--trace", "folder", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--rule", "names", multiple=True, help="One of them, by a part of its name; all by default.")
@click.option("--nodes", default=0, help="Only so many nodes, the first ones; all by default.")
@click.option("--seed", default=7, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(folder: Path, names: tuple[str, ...], nodes: int, seed: int, as_json: bool) -> None:
    trace = read_trace(folder, nodes)
    tasks = draw(trace, seed)
    chosen = {n: rule for n, rule in rules(trace).items() if not names or any(part in n for part in names)}
    found = [replay(name, rule, trace, tasks) for name, rule in chosen.items()]
    if as_json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
        return
    title = f"{len(trace.nodes)} nodes, {trace.gpus} GPUs, {len(tasks)} tasks"
    table = Table(title=title, title_justify="left")
    for column in ("rule", "allocated at 100 %", "at 130 %", "whole nodes at 50 %", "ms a decision"):
        table.add_column(column, justify="left" if column == "rule" else "right")
    for each in found:
        shares = (each.allocated_at_100, each.allocated_at_130, each.whole_nodes_at_50)
        table.add_row(each.rule, *(f"{share:.1%}" for share in shares), f"{each.milliseconds:.2f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
