"""What an event of a running pod costs by which nothing is decided: decoding, the Feed, and the leader's watchers.

python -m tests.benchmarks.idle_events [--events 3000]

Its kubelet writes a condition and a restart of a container each time; the goal is 0.05 ms.
"""

import asyncio
import logging
import time
from typing import Any

import click
import msgspec
import structlog

from deviceshare.domain.objects.object_decoder import decoder_of
from deviceshare.loops.kinds import PODS
from deviceshare.loops.ports import ObjectChange
from tests.unit.loops.live import a_bound_group, led_world
from tests.unit.loops.virtual_time import in_virtual_time

KEY = "ns/a"


def events(pod: dict[str, Any], number: int) -> list[bytes]:
    """As many states of the pod, as the API server sends them."""
    fields: dict[str, dict[str, Any]] = {f"f:field-{each}": {} for each in range(60)}
    return [
        msgspec.json.encode(
            {
                **pod,
                "metadata": {
                    **pod["metadata"],
                    "resourceVersion": str(1_000_000 + each),
                    "managedFields": [{"manager": "kubelet", "operation": "Update", "fieldsV1": fields}],
                },
                "status": {
                    "phase": "Running",
                    "podIP": "10.0.0.1",
                    "conditions": [{"type": "Ready", "status": ("True", "False")[each % 2]}],
                    "containerStatuses": [{"name": "main", "restartCount": each, "state": {"running": {}}}],
                },
            }
        )
        for each in range(number)
    ]


@in_virtual_time
async def measure(number: int) -> None:
    async with led_world() as world:
        await a_bound_group(world)
        await asyncio.sleep(30)
        bodies = events(world.cluster.objects[PODS.plural][KEY], number + 1)
        decoder, watchers = decoder_of(PODS.type), tuple(world.cluster.mirrors[PODS.plural].watchers)
        old, began = decoder.salvage(bodies[0]), time.process_time()
        for body in bodies[1:]:
            new = decoder.salvage(body)
            for watcher in watchers:
                watcher(ObjectChange(KEY, old, new))
            old = new
        spent = (time.process_time() - began) * 1000 / number
        click.echo(f"{spent:.3f} ms an event of {len(bodies[0]):,} bytes, with {len(watchers)} watchers")


@click.command(help=__doc__)
@click.option("--events", type=click.IntRange(1), default=3000, show_default=True)
def main(events: int) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    measure(events)


if __name__ == "__main__":
    main()
