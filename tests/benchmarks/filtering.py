"""Filter, end to end over HTTP, asked about 5,000 nodes by name: milliseconds from question to answer.

    python -m tests.benchmarks.filtering [--nodes 5000] [--requests 300] [--only NAME]... [--json]

The extender is deviceshare's own, in a process of its own, as kube-scheduler meets it: one kept connection, one
question at a time. Shares are asked for where pods have parts of most devices, so that hardly two nodes are in the same
situation; what the first pod with a share found out of each node helps the next, hence a column for the first answer.
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
from deviceshare.domain.objects import shares
from deviceshare.domain.objects.shares import DIALECTS
from tests.benchmarks import large_fleet

KINDS = (*large_fleet.SPECS, *large_fleet.SHARES)
_WARM_UP = 20
_SECONDS = 30.0


class Latencies(msgspec.Struct):
    """Milliseconds of all requests of one kind, and the sizes of question and answer in bytes."""

    milliseconds: list[float]
    asked: int
    answered: int
    first: float
    """Milliseconds of the first answer; the others here come after twenty."""

    @property
    def median(self) -> float:
        return statistics.median(self.milliseconds)

    @property
    def p99(self) -> float:
        return statistics.quantiles(self.milliseconds, n=100)[98]


def arguments(kind: str, nodes: int) -> bytes:
    """What kube-scheduler sends for a pod of this kind: the injected pod, and every node's name."""
    limits = large_fleet.SHARES.get(kind, {})
    named = {} if limits else {contract.GROUP: kind.partition(",")[0]}
    served = vendors.vendors_of({each for resource in limits for each in DIALECTS[resource].devices})
    paths = {
        vendor.env: shares.field_path(shares.devices_of_container(vendor, "main"))
        if vendor in served
        else vendor.field_path
        for vendor in vendors.VENDORS
    }
    env = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in paths.items()]
    pod = {
        "metadata": {
            "name": "pod-1",
            "namespace": "default",
            "uid": "0d3ee1a4-3f4c-4f5a-9f58-0242ac110002",
            "annotations": named,
            "labels": named or {contract.GROUP: ""},
        },
        "spec": {
            "schedulerName": contract.SCHEDULER_NAME,
            "containers": [{"name": "main", "image": "x", "env": env, "resources": {"limits": limits}}],
        },
        "status": {"phase": "Pending"},
    }
    return msgspec.json.encode({"Pod": pod, "Nodes": None, "NodeNames": [f"node-{each}" for each in range(nodes)]})


@contextlib.contextmanager
def serving(nodes: int, *, shared: bool) -> Iterator[http.client.HTTPConnection]:
    """A connection to an extender that knows this many nodes; `shared` ones have pods with shares."""
    command = [sys.executable, "-m", large_fleet.__name__, str(nodes), *["shared"] * shared]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            connection = http.client.HTTPConnection("127.0.0.1", int(process.stdout.readline()), timeout=_SECONDS)
            with contextlib.closing(connection):
                yield connection
        finally:
            process.terminate()


def measure(connection: http.client.HTTPConnection, kind: str, nodes: int, requests: int) -> Latencies:
    """Asks the same question again and again."""
    body = arguments(kind, nodes)
    headers = {"Content-Type": "application/json"}
    measured = Latencies([], len(body), 0, 0.0)
    quiet = not sys.stderr.isatty()
    for number in track(range(_WARM_UP + requests), kind, console=Console(stderr=True), disable=quiet):
        begun = time.perf_counter()
        connection.request("POST", "/filter", body, headers)
        response = connection.getresponse()
        answer = response.read()
        elapsed = (time.perf_counter() - begun) * 1000
        if response.status != 200 or not msgspec.json.decode(answer)["NodeNames"]:
            raise SystemExit(f"filter found no node for {kind}: {answer[:300]!r}")
        measured.answered = len(answer)
        measured.first = measured.first or elapsed
        if number >= _WARM_UP:
            measured.milliseconds.append(elapsed)
    return measured


def table(results: dict[str, Latencies], nodes: int) -> Table:
    """Medians and 99th percentiles, by what the pod asks for."""
    result = Table(title=f"filter of {nodes:,} node names", title_justify="left")
    result.add_column("pod of, or with")
    for heading in ("median ms", "p99 ms", "first ms", "question kB", "answer kB"):
        result.add_column(heading, justify="right")
    for kind, each in results.items():
        sizes = (f"{size / 1000:.0f}" for size in (each.asked, each.answered))
        result.add_row(kind, f"{each.median:.2f}", f"{each.p99:.2f}", f"{each.first:.2f}", *sizes)
    return result


@click.command(help=__doc__)
@click.option("--nodes", type=click.IntRange(10), default=5000, show_default=True)
@click.option("--requests", type=click.IntRange(2), default=300, show_default=True)
@click.option("--only", multiple=True, type=click.Choice(KINDS), help="Leave others out.")
@click.option("--json", "as_json", is_flag=True, help="Every request's time instead of the table.")
def main(nodes: int, requests: int, only: tuple[str, ...], as_json: bool) -> None:
    results: dict[str, Latencies] = {}
    for shared, kinds in ((False, large_fleet.SPECS), (True, large_fleet.SHARES)):
        if chosen := [kind for kind in kinds if not only or kind in only]:
            with serving(nodes, shared=shared) as connection:
                results |= {kind: measure(connection, kind, nodes, requests) for kind in chosen}
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(results)))
    else:
        Console().print(table(results, nodes))


if __name__ == "__main__":
    main()
