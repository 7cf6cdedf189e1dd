"""How long `deviceshare inspect` takes on a large cluster, from the key press to the last line.

    python -m tests.benchmarks.inspect_300 [--nodes 300] [--runs 5] [--json]

A real API server with that many Nodes, each as large as real ones are, with eight devices and a NodeDevices; a group on
every second node and five pods in each group; and as many pods that have nothing to do with deviceshare, which are read
too, since no agent says what device plugins gave away. Agents' reports would make NodeDevices larger and spare these.
"""

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Iterable
from pathlib import Path
from typing import Any

import click
import msgspec
import uvloop
from msgspec import Struct

from deviceshare.domain import contract
from deviceshare.domain.objects.devices import devices_of, selected, visible
from deviceshare.domain.objects.groups import BOUND
from deviceshare.kube.api import Api
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, NODES, PODS
from tests.benchmarks.control_plane import control_plane

GPU = "nvidia.com/gpu"
DEVICES = 8
HELD = devices_of({GPU: 4})
PODS_A_GROUP = 5
AT_ONCE = 16
IMAGES = [{"names": [f"registry.example/team/image-{n}@sha256:{n:064}"], "sizeBytes": 10**9} for n in range(50)]
"""What kubelets report of the images on their node; most of a Node's size."""


class Look(Struct):
    """Seconds of wall time, of each run of the command."""

    nodes: int
    devices: int
    pods: int
    table: list[float]
    json: list[float]


@click.command()
@click.option("--nodes", type=click.IntRange(1), default=300, show_default=True)
@click.option("--runs", type=click.IntRange(1), default=5, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print all figures as JSON.")
def main(nodes: int, runs: int, *, as_json: bool) -> None:
    """Time `deviceshare inspect`."""
    measured = uvloop.run(_measure(nodes, runs))
    if as_json:
        click.echo(msgspec.json.encode(measured))
        return
    click.echo(f"deviceshare inspect of {nodes} nodes, {measured.devices} devices and {measured.pods} pods:")
    for name, seconds in (("table", measured.table), ("json", measured.json)):
        click.echo(f"  {name:6} {statistics.median(seconds):.2f} s (slowest of {runs}: {max(seconds):.2f} s)")


async def _measure(nodes: int, runs: int) -> Look:
    async with control_plane(nodes, DEVICES) as (plane, connection):
        pods = await _fill(Api(connection, timeout=30.0), nodes)
        table = [await _timed(plane.kubeconfig) for _ in range(runs)]
        as_json = [await _timed(plane.kubeconfig, "-o", "json") for _ in range(runs)]
    return Look(nodes, nodes * DEVICES, pods, table, as_json)


async def _timed(kubeconfig: Path, *arguments: str) -> float:
    command = [sys.executable, "-m", "deviceshare", "inspect", "--kubeconfig", str(kubeconfig), *arguments]
    began = time.monotonic()
    done = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, env={**os.environ, "NO_COLOR": "1"})
    said, _ = await done.communicate()
    took = time.monotonic() - began
    assert done.returncode == 0 and said, "inspect failed"
    return took


async def _fill(api: Api, nodes: int) -> int:
    """Makes everything but the nodes; answers with the number of pods."""
    names = [f"node-{number}" for number in range(1, nodes + 1)]
    await _all(api.patch(NODES, name, {"status": {"images": IMAGES}}, subresource="status") for name in names)
    await _all(_ledger(api, name, f"group-{name}" if number % 2 else "") for number, name in enumerate(names))
    homes = names[1::2]
    await _all(_pod(api, f"{home}-{number}", home, f"group-{home}") for home in homes for number in range(PODS_A_GROUP))
    await _all(_pod(api, f"other-{number}", names[number % nodes]) for number in range(len(homes) * PODS_A_GROUP))
    return 2 * len(homes) * PODS_A_GROUP


async def _all(requests: Iterable[Awaitable[Any]]) -> None:
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(request: Awaitable[Any]) -> None:
        async with slots:
            await request

    await asyncio.gather(*map(one, requests))


async def _ledger(api: Api, node: str, group: str) -> None:
    claims = {}
    if group:
        made = await api.create(GROUPS, {"metadata": {"name": group}, "spec": {"resources": {GPU: len(HELD)}}})
        status = {"phase": BOUND, "nodeName": node, "selectedDevices": selected(HELD)}
        await api.patch(GROUPS, group, {"status": status}, subresource="status")
        claims = {made.metadata.uid: {"group": group, "devices": msgspec.to_builtins(HELD)}}
    await api.create(NODE_DEVICES, {"metadata": {"name": node}, "spec": {"claims": claims}})
    devices = msgspec.to_builtins(devices_of({GPU: DEVICES}))
    await api.patch(NODE_DEVICES, node, {"status": {"devices": devices}}, subresource="status")


async def _pod(api: Api, name: str, node: str, group: str = "") -> None:
    labels = {contract.GROUP: group} if group else {}
    env = [{"name": f"V{number}", "value": "x"} for number in range(30)]
    body = {
        "metadata": {"name": name, "labels": labels, "annotations": labels},
        "spec": {
            "containers": [{"name": "main", "image": "busybox", "env": env}],
            "schedulerName": contract.SCHEDULER_NAME,
        },
    }
    made = await api.create(PODS, body, "default")
    given = {}
    if group:
        uid = (await api.get(GROUPS, group)).metadata.uid
        chosen = msgspec.json.encode(selected(HELD)).decode()
        given = {**visible(HELD, {}), contract.SELECTED_DEVICES: chosen, contract.GROUP_UID: uid}
    await api.bind("default", name, uid=made.metadata.uid, node=node, annotations=given, timeout=10.0)


if __name__ == "__main__":
    main()
