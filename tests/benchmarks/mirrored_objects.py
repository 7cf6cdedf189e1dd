"""What the decoded objects of a large cluster cost: memory, tracked objects, and a look of the garbage collector.

python -m tests.benchmarks.mirrored_objects [--nodes 5000] [--groups 2000] [--waiting 1000] [--pods 10000]
"""

import gc
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, NODES, PODS
from deviceshare.loops.ports import Kind
from tests.benchmarks import large_cluster
from tests.benchmarks.large_cluster import Raw, Size, uid_of

PAGE_BYTES = 4096


@click.command(help=__doc__)
@click.option("--nodes", type=click.IntRange(1), default=5000, show_default=True)
@click.option("--groups", type=click.IntRange(1), default=2000, show_default=True)
@click.option("--waiting", type=click.IntRange(1), default=1000, show_default=True)
@click.option("--pods", type=click.IntRange(1), default=10_000, show_default=True)
def main(nodes: int, groups: int, waiting: int, pods: int) -> None:
    size = Size(nodes, groups, waiting, pods)
    uids = [uid_of(str(number)) for number in range(groups)]
    bodies: dict[Kind[Any], Iterator[Raw]] = {
        PODS: large_cluster.pods(size, uids),
        NODES: large_cluster.nodes(size),
        NODE_DEVICES: large_cluster.ledgers(size, uids),
        GROUPS: large_cluster.groups(size),
    }
    raw = [(msgspec.json.Decoder(kind.type), list(map(msgspec.json.encode, each))) for kind, each in bodies.items()]
    gc.collect()
    gc.freeze()
    gc.disable()
    resident, began = _resident_mib(), time.process_time()
    kept = [[decoder.decode(body) for body in each] for decoder, each in raw]
    decoded, grown = time.process_time() - began, _resident_mib() - resident
    tracked, began = len(gc.get_objects()), time.process_time()
    gc.collect()
    looked = time.process_time() - began
    click.echo(f"{size}: {sum(map(len, kept)):,} objects, {grown:.0f} MiB, {tracked:,} tracked")
    click.echo(f"decoded in {decoded * 1000:.0f} ms of processor time, looked through in {looked * 1000:.0f} ms")


def _resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES / 2**20


if __name__ == "__main__":
    main()
