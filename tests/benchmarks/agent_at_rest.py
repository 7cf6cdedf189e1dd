"""What a node's agent costs while nothing happens: a share of a core and memory, with eight GPUs and a process on each.

    python -m tests.benchmarks.agent_at_rest

A real agent in a real control plane, over the library that answers as NVML does. What the library itself burns, a
driver burns in its own way.
"""

import os
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console
from rich.table import Table

from deviceshare_sandbox import Options, running
from deviceshare_sandbox.nvml.library import build
from tests.controlplane.agents import NodeAgent

GPUS = 8
SETTLE_SECONDS = 10.0
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


class Cost(NamedTuple):
    """Of a process over a time."""

    cpu_percent: float
    """Of one core."""
    rss_mib: float
    peak_mib: float
    threads: int


def measure(pid: int, seconds: float) -> Cost:
    """Looks at a process for so long."""
    before = _cpu_seconds(pid)
    time.sleep(seconds)
    spent = _cpu_seconds(pid) - before
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    rss, peak = (int(status[key].split()[0]) / 1024 for key in ("VmRSS", "VmHWM"))
    return Cost(100 * spent / seconds, rss, peak, int(status["Threads"]))


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND


@click.command(help=__doc__)
@click.option("--seconds", type=click.FloatRange(1), default=60.0, show_default=True)
def main(seconds: float) -> None:
    with tempfile.TemporaryDirectory() as name, running(Options(nodes=1, devices=GPUS)) as sandbox:
        directory = Path(name)
        agent = NodeAgent(sandbox, "node-1", build(directory), directory)
        for number, uuid in enumerate(agent.script.gpus(GPUS, nvlink_pairs=True)):
            agent.process(100 + number, "python", "/user.slice")
            agent.script.processes(uuid, {100 + number: 1024})
        agent.start()
        time.sleep(SETTLE_SECONDS)
        cost = measure(agent.pid, seconds)
        reports = len(agent.said("Reported hardware"))
        agent.stop()
    table = Table(title=f"agent at rest, {GPUS} GPUs, {seconds:g} s", title_justify="left")
    for heading in ("CPU, % of a core", "RSS MiB", "peak RSS MiB", "threads", "reports written"):
        table.add_column(heading, justify="right")
    table.add_row(
        f"{cost.cpu_percent:.2f}", f"{cost.rss_mib:.1f}", f"{cost.peak_mib:.1f}", str(cost.threads), str(reports)
    )
    Console().print(table)


if __name__ == "__main__":
    main()
