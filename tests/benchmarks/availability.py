"""Each attack on a deviceshare's availability, on two versions of it, beside an API server that asks all the while.

    python -m tests.benchmarks.availability [--before 4d1d20e] [--attack NAME] [--json]

A real `deviceshare run` in a process of its own, 300 nodes, attacked by one stranger. "Longest answer" is what a review
of an ordinary pod took at worst, over TLS on a kept connection, as an API server sends them; "unanswered" counts those
that took longer than the webhooks' 2 s or failed. Memory is the most that was resident during the attack.
"""

import http.client
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import click
import msgspec
from rich.console import Console
from rich.table import Table

from tests.benchmarks import strangers
from tests.fuzz import target
from tests.fuzz.target import ROOT, TRUSTING, Victim

_PATIENCE = 2.0
"""Seconds that an API server gives a webhook of ours."""
_SETTLE = 3.0
_REVIEW = strangers.review({"metadata": {"name": "plain"}, "spec": {"containers": [{"name": "main"}]}})


class Suffered(NamedTuple):
    """What an attack did."""

    peak_mib: float
    longest_s: float
    unanswered: int
    asked: int
    log_kb: float
    held: int
    """Connections of the stranger that were still open in the end."""


class ApiServer:
    """Asks for a review 20 times a second."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._ended = threading.Event()
        self.answers: list[float] = []
        self.failures = 0

    @contextmanager
    def asking(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _run(self) -> None:
        connection = http.client.HTTPSConnection("127.0.0.1", self._port, timeout=30, context=TRUSTING)
        while not self._ended.is_set():
            begun = time.perf_counter()
            try:
                connection.request("POST", "/mutate-pods", _REVIEW, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                answered = answer.status == 200
                answer.read()
            except (OSError, http.client.HTTPException):
                answered = False
                connection.close()
            took = time.perf_counter() - begun
            self.answers.append(took)
            self.failures += not answered or took > _PATIENCE
            self._ended.wait(0.05)
        connection.close()


def attack(victim: Victim, by: Callable[[Victim], AbstractContextManager[strangers.Strangers]]) -> Suffered:
    """One attack, and what the victim needs to recover."""
    api_server = ApiServer(victim.ports["webhook"])
    log = victim.log_bytes()
    victim.forget_peak()
    with api_server.asking():
        time.sleep(0.5)
        with by(victim) as crowd:
            held = crowd.still_open()
        time.sleep(_SETTLE)
    return Suffered(
        victim.memory_mib("VmHWM"),
        max(api_server.answers),
        api_server.failures,
        len(api_server.answers),
        (victim.log_bytes() - log) / 1000,
        held,
    )


def attacked(tree: Path, attacks: Collection[str]) -> dict[str, Suffered]:
    """These attacks, each on a process of its own: what one leaves behind is none of the next."""
    results = {}
    for name in attacks:
        by = strangers.ATTACKS[name]
        with tempfile.TemporaryDirectory() as directory, target.deviceshare(Path(directory), tree) as victim:
            time.sleep(2)
            results[name] = attack(victim, by)
            print(f"{tree.name}: {name}: {results[name]}", file=sys.stderr)
    return results


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """The files of that commit."""
    with tempfile.TemporaryDirectory() as name:
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", name], input=archive, check=True)
        yield Path(name)


def table(results: dict[str, dict[str, Suffered]]) -> Table:
    """A line for each attack and version."""
    printed = Table(title="availability under attack", title_justify="left")
    printed.add_column("attack")
    printed.add_column("version")
    for heading in ("peak RSS MiB", "longest answer s", "unanswered", "log kB", "still held"):
        printed.add_column(heading, justify="right")
    for name in next(iter(results.values())):
        for version, suffered in results.items():
            each = suffered[name]
            figures = (f"{each.peak_mib:.0f}", f"{each.longest_s:.2f}", f"{each.unanswered} of {each.asked}")
            printed.add_row(name, version, *figures, f"{each.log_kb:.1f}", str(each.held))
    return printed


@click.command(help=__doc__)
@click.option("--before", default="4d1d20e", show_default=True, help="The commit to compare with.")
@click.option("--attack", "attacks", multiple=True, type=click.Choice(list(strangers.ATTACKS)), help="Instead of all.")
@click.option("--json", "as_json", is_flag=True, help="The figures instead of the table.")
def main(before: str, attacks: tuple[str, ...], as_json: bool) -> None:
    chosen = attacks or tuple(strangers.ATTACKS)
    with checkout(before) as tree:
        results = {before: attacked(tree, chosen), "this": attacked(ROOT, chosen)}
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(results)))
    else:
        Console(width=140).print(table(results))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
