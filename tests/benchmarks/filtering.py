"""Filter, end to end over HTTP, asked about 5,000 nodes by name: milliseconds from question to answer.

    python -m tests.benchmarks.filtering [--nodes 5000] [--requests 300] [--json]

The extender is deviceshare's own, in a process of its own, as kube-scheduler meets it: one kept connection, one
question at a time.
"""

import contextlib
import http.client
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import click
import msgspec
from rich.console import Console
from rich.progress import track
from rich.table import Table

from deviceshare.domain import contract, vendors
from tests.benchmarks import large_fleet

_WARM_UP = 20
_SECONDS = 30.0


class Latencies(msgspec.Struct):
    """Milliseconds of all requests for one kind of group, and the sizes of question and answer in bytes."""

    milliseconds: list[float]
    asked: int
    answered: int

    @property
    def median(self) -> float:
        return statistics.median(self.milliseconds)

    @property
    def p99(self) -> float:
        return statistics.quantiles(self.milliseconds, n=100)[98]


def arguments(group: str, nodes: int) -> bytes:
    """What kube-scheduler sends for a pod of this group: the injected pod, and every node's name."""
    env = [
        {"name": vendor.env, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{vendor.annotation}']"}}}
        for vendor in vendors.VENDORS
    ]
    pod = {
        "metadata": {
            "name": "pod-1",
            "namespace": "default",
            "uid": "0d3ee1a4-3f4c-4f5a-9f58-0242ac110002",
            "annotations": {contract.GROUP: group},
            "labels": {contract.GROUP: group},
        },
        "spec": {"schedulerName": contract.SCHEDULER_NAME, "containers": [{"name": "main", "image": "x", "env": env}]},
        "status": {"phase": "Pending"},
    }
    return msgspec.json.encode({"Pod": pod, "Nodes": None, "NodeNames": [f"node-{each}" for each in range(nodes)]})


@contextlib.contextmanager
def serving(nodes: int) -> Iterator[http.client.HTTPConnection]:
    """A connection to an extender that knows this many nodes."""
    command = [sys.executable, "-m", large_fleet.__name__, str(nodes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            connection = http.client.HTTPConnection("127.0.0.1", int(process.stdout.readline()), timeout=_SECONDS)
            with contextlib.closing(connection):
                yield connection
        finally:
            process.terminate()


def measure(connection: http.client.HTTPConnection, group: str, nodes: int, requests: int) -> Latencies:
    """Asks the same question again and again."""
    body = arguments(group, nodes)
    headers = {"Content-Type": "application/json"}
    measured = Latencies([], len(body), 0)
    quiet = not sys.stderr.isatty()
    for number in track(range(_WARM_UP + requests), group, console=Console(stderr=True), disable=quiet):
        begun = time.perf_counter()
        connection.request("POST", "/filter", body, headers)
        response = connection.getresponse()
        answer = response.read()
        elapsed = (time.perf_counter() - begun) * 1000
        if response.status != 200 or not msgspec.json.decode(answer)["NodeNames"]:
            raise SystemExit(f"filter found no node for the group {group}: {answer[:300]!r}")
        measured.answered = len(answer)
        if number >= _WARM_UP:
            measured.milliseconds.append(elapsed)
    return measured


def table(results: dict[str, Latencies], nodes: int) -> Table:
    """Medians and 99th percentiles, by kind of group."""
    result = Table(title=f"filter of {nodes:,} node names", title_justify="left")
    result.add_column("group")
    for heading in ("median ms", "p99 ms", "question kB", "answer kB"):
        result.add_column(heading, justify="right")
    for group, each in results.items():
        sizes = (f"{size / 1000:.0f}" for size in (each.asked, each.answered))
        result.add_row(group, f"{each.median:.2f}", f"{each.p99:.2f}", *sizes)
    return result


@click.command(help=__doc__)
@click.option("--nodes", type=click.IntRange(10), default=5000, show_default=True)
@click.option("--requests", type=click.IntRange(2), default=300, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Every request's time instead of the table.")
def main(nodes: int, requests: int, as_json: bool) -> None:
    with serving(nodes) as connection:
        results = {group: measure(connection, group, nodes, requests) for group in large_fleet.SPECS}
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(results)))
    else:
        Console().print(table(results, nodes))


if __name__ == "__main__":
    main()
