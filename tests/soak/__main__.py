"""Has groups, pods, shares, nodes and leaders come and go, and looks whether memory, tasks and descriptors come back.

    python -m tests.soak [--minutes 60]

A control plane of its own with simulated nodes, three replicas of deviceshare and an agent. Exits with 1 where an
invariant didn't hold, something got stuck, or a process holds more in the end than after the warm-up.
"""

import csv
import sys
import tempfile
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.soak.campaign import Outcome, soak
from tests.soak.samples import Sample
from tests.soak.verdict import rss_bound, second_half, slope


@click.command(help=__doc__)
@click.option(
    "--minutes", type=click.FloatRange(1), default=60, show_default=True, help="Of churn, the warm-up included."
)
@click.option("--every", type=click.FloatRange(1), default=60, show_default=True, help="Seconds between two samples.")
@click.option("--samples", type=click.Path(dir_okay=False, path_type=Path), help="Write all samples there, as CSV.")
@click.option("--dir", "place", type=click.Path(file_okay=False, path_type=Path), help="Keep the logs here.")
def main(minutes: float, every: float, samples: Path | None, place: Path | None) -> None:
    console = Console(soft_wrap=True)
    seconds, warm_up = minutes * 60, minutes * 10
    every = min(every, warm_up / 4)
    bar = Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console)
    done = bar.add_task("starts", total=seconds)

    def say(phase: str, taken: list[Sample]) -> None:
        first = taken[0]
        bar.update(done, description=phase, advance=every if phase != "at rest" else 0)
        bar.console.print(
            f"{first.hours * 60:5.1f} min, {phase}: {first.pods:,} pods; "
            + "; ".join(
                f"{each.process} {each.rss_mib:.1f} MiB, {each.descriptors} descriptors, {each.tasks} tasks,"
                f" {each.connections} connections, {each.mirrored} objects"
                for each in taken
            )
        )

    with tempfile.TemporaryDirectory(prefix="deviceshare-soak-") as temporary, bar:
        directory = place or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        outcome = soak(directory, warm_up, seconds - warm_up, every, say)
    _print(console, outcome)
    if samples:
        with samples.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(Sample._fields)
            writer.writerows(outcome.series)
    sys.exit(bool(outcome.faults))


def _print(console: Console, outcome: Outcome) -> None:
    title = f"soak, Kubernetes {outcome.kubernetes}, {outcome.seconds / 60:.0f} min: at rest before and after the churn"
    table = Table(title=title, title_justify="left")
    for column in ("process", "RSS, MiB", "slope of the second half, MiB/h", "descriptors", "tasks"):
        table.add_column(column, justify="left" if column == "process" else "right")
    table.add_column("connections", justify="right")
    table.add_column("mirrored objects", justify="right")
    for old, new in zip(outcome.before.samples, outcome.after.samples, strict=True):
        half = second_half([each for each in outcome.series if each.process == old.process])
        table.add_row(
            old.process,
            f"{old.rss_mib:.1f} → {new.rss_mib:.1f}",
            f"{slope([(each.hours, each.rss_mib) for each in half]):+.1f}",
            *(
                f"{getattr(old, key)} → {getattr(new, key)}"
                for key in ("descriptors", "tasks", "connections", "mirrored")
            ),
        )
    console.print(table)
    pods = outcome.after.samples[0].pods - outcome.before.samples[0].pods
    console.print(f"{pods:,} pods came and went between the two; memory may have grown by {rss_bound(pods):.1f} MiB")
    console.print("; ".join(f"{what}: {times:,}" for what, times in sorted(outcome.tally.items()) if what != "rounds"))
    more = (outcome.after.classes - outcome.before.classes).most_common(8)
    console.print("more objects than before: " + ", ".join(f"{name} {number}" for name, number in more))
    console.print(f"invariants held {outcome.checks:,} times; faults: {len(outcome.faults)}")
    for fault in outcome.faults[:40]:
        click.echo(f"\n{fault}")


if __name__ == "__main__":
    main()
