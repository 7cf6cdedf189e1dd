"""Sends at least this many inputs to every endpoint of a running deviceshare and to its decoders.

    python -m tests.fuzz [--inputs 120000] [--seed 1]

Exits with 1 where there was a 5xx but 503, a traceback, an end of the process, or memory that grows.
"""

import sys

import click
from rich.console import Console
from rich.table import Table

from tests.fuzz import campaign


@click.command(help=__doc__)
@click.option("--inputs", type=click.IntRange(100), default=120_000, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True, help="The same seed makes the same inputs.")
def main(inputs: int, seed: int) -> None:
    report = campaign.run(inputs, seed)
    table = Table(title=f"fuzzing, seed {seed}, {report.seconds:.0f} s", title_justify="left")
    table.add_column("what")
    table.add_column("inputs", justify="right")
    table.add_column("answers")
    for name, number in sorted(report.inputs.items()):
        counted = report.statuses.get(name, {})
        table.add_row(name, f"{number:,}", ", ".join(f"{status}: {times:,}" for status, times in counted.items()))
    table.add_row("all", f"{sum(report.inputs.values()):,}", "")
    console = Console()
    console.print(table)
    for name, (warm, end, peak) in report.memory_mib.items():
        log = report.log_bytes[name] / 1000
        console.print(
            f"{name}: RSS {warm:.0f} MiB warm, {end:.0f} at the end, {peak:.0f} at most; log at debug {log:.0f} kB"
        )
    console.print(f"faults: {len(report.faults)}")
    for fault in report.faults[:20]:
        click.echo(f"\n{fault}")
    sys.exit(bool(report.faults))


if __name__ == "__main__":
    main()
