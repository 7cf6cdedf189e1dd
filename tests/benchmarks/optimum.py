"""Placement on small clusters beside the optimum: how many GPUs each rule allocates of those that could be.

    python -m tests.benchmarks.optimum --trace FOLDER [--instances 200] [--nodes 10] [--gpus 4] [--seed 7]

Needs the extra `optimum`. Each instance draws tasks of the trace (placement.py). A rule places them in turn and knows
none that comes later; the optimum chooses among all that have come until then, by a mixed-integer program (HiGHS): of
each kind of task how many are on which GPU, or on which node as whole ones. The more is asked, the more it can choose,
and the less a rule can reach it: so both are given where tasks ask for 100 % and for 130 % of the GPUs.
"""

import importlib
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import mean
from typing import Any, Final, NamedTuple

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.benchmarks.placement import WHOLE, Task, Trace, draw, read_trace, replay, rules

SECONDS: Final = 5.0
"""For one instance. The optimum is between the best that was found by then and the bound that was proven."""


class Optimum(NamedTuple):
    """The most GPUs that any choice of the tasks can have is between these."""

    found: float
    bound: float


def optimum(trace: Trace, tasks: Sequence[Task]) -> Optimum:
    """By a mixed-integer program; raises ModuleNotFoundError without the extra."""
    highspy: Any = importlib.import_module("highspy")  # `python -m tests.benchmarks` lists this command without it
    kinds = Counter((task.gpus, task.percent) for task in tasks)
    model = highspy.Highs()
    model.setOptionValue("output_flag", False)
    model.setOptionValue("time_limit", SECONDS)
    model.setOptionValue("mip_rel_gap", 0.001)
    placed: dict[tuple[int, int], list[Any]] = {kind: [] for kind in kinds}
    for gpus, _ in trace.nodes.values():
        shared = [model.addBinary() for _ in range(gpus)]
        for first, second in pairwise(shared):
            model.addConstr(first >= second)  # GPUs of a node are alike
        taken = sum(shared)
        for (whole, percent), count in kinds.items():
            if whole:
                number = model.addIntegral(lb=0, ub=min(count, gpus // whole))
                placed[whole, percent].append(number)
                taken = taken + whole * number
        model.addConstr(taken <= gpus)
        for each in shared:
            parts = []
            for (whole, percent), count in kinds.items():
                if not whole:
                    number = model.addIntegral(lb=0, ub=min(count, WHOLE // percent))
                    placed[whole, percent].append(number)
                    parts.append(percent * number)
            if parts:
                model.addConstr(sum(parts) <= WHOLE * each)
    for kind, numbers in placed.items():
        model.addConstr(sum(numbers) <= kinds[kind])
    model.maximize(sum((whole or percent / WHOLE) * sum(numbers) for (whole, percent), numbers in placed.items()))
    info = model.getInfo()
    return Optimum(info.objective_function_value, min(info.mip_dual_bound, float(trace.gpus)))


@click.command(help=__doc__)
@click.option("--trace", "folder", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--instances", default=200, show_default=True)
@click.option("--nodes", default=10, show_default=True)
@click.option("--gpus", default=4, show_default=True, help="Of each node.")
@click.option("--seed", default=7, show_default=True)
def main(folder: Path, instances: int, nodes: int, gpus: int, seed: int) -> None:
    known = read_trace(folder)
    tasks = [task._replace(models=frozenset()) for task in known.tasks if task.gpus <= gpus]
    small = Trace({f"node-{number}": (gpus, "") for number in range(nodes)}, tasks)
    parts: dict[tuple[str, int], list[Optimum]] = {}
    console = Console(stderr=True)
    for number in track(range(instances), "instances", console=console, disable=not console.is_terminal):
        drawn = draw(small, seed + number)
        asked = list(accumulate(task.size for task in drawn))
        first = drawn[: bisect_left(asked, small.gpus) + 1]
        most = {100: optimum(small, first), 130: optimum(small, drawn)}
        for name, rule in rules(small).items():
            figures = replay(name, rule, small, drawn)
            for percent, part in ((100, figures.allocated_at_100), (130, figures.allocated_at_130)):
                allocated, best = part * small.gpus, most[percent]
                parts.setdefault((name, percent), []).append(Optimum(allocated / best.found, allocated / best.bound))
    table = Table(title=f"{instances} instances of {nodes} nodes with {gpus} GPUs", title_justify="left")
    for column in ("rule", "asked", "of the best found", "of the bound", "worst", "within 2 %"):
        table.add_column(column, justify="left" if column == "rule" else "right")
    for (name, percent), found in sorted(parts.items(), key=lambda each: each[0][1]):
        reached, within = [each.found for each in found], sum(each.found >= 0.98 for each in found) / len(found)
        bound = f"{mean(each.bound for each in found):.1%}"
        table.add_row(name, f"{percent} %", f"{mean(reached):.1%}", bound, f"{min(reached):.1%}", f"{within:.0%}")
    Console(width=100).print(table)


if __name__ == "__main__":
    sys.exit(main())
