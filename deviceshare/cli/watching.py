"""`inspect --watch`: draws the cluster again at each change, from the same mirrors that deviceshare decides with."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from deviceshare.cli.cluster import ANSWER_SECONDS
from deviceshare.cli.output import Part, on_terminal, screen, styled
from deviceshare.cli.snapshot import ClusterSnapshot, mirrored, seen
from deviceshare.cli.visible import note, unseen
from deviceshare.domain.answers.picture import Picture
from deviceshare.kube.api import Api
from deviceshare.kube.mirrors import Mirrors

PAUSE_SECONDS = 0.5
"""Between two pictures: changes come in bursts, and people don't read faster."""
TICK_SECONDS = 10.0
"""A terminal is redrawn after this long without a change, since it shows for how long pods wait."""
LOST = "The cluster does not answer; this is its last known state. Retrying."

Render = Callable[[Picture], list[Part]]


async def follow(api: Api, namespace: str, draw: Callable[[ClusterSnapshot], Picture], render: Render) -> None:
    """Draws until cancelled: on a terminal over what was there, elsewhere below it.

    Pods are those of `namespace` where the whole cluster's can't be listed.

    Raises:
        ApiError: the cluster can't be read at all. Once it could, it is retried, and the drawing says so.
    """
    async with asyncio.timeout(ANSWER_SECONDS):
        mirrors = await mirrored(api, namespace)
    note(unseen(mirrors))
    changed = asyncio.Event()
    for mirror in mirrors.by_name.values():
        mirror.subscribe(lambda _: changed.set())
    looked_at, last = on_terminal(), None
    async with _running(mirrors):
        with screen() as put:
            while True:
                picture = draw(seen(mirrors))
                if looked_at or picture != last:
                    lost = looked_at and not mirrors.synced
                    put([*render(picture), *([styled(LOST, "red")] if lost else [])])
                last = picture
                await _next(changed, TICK_SECONDS if looked_at else None)


@asynccontextmanager
async def _running(mirrors: Mirrors) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(mirror.run(), name=name) for name, mirror in mirrors.by_name.items()]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _next(changed: asyncio.Event, longest: float | None) -> None:
    await asyncio.sleep(PAUSE_SECONDS)
    with suppress(TimeoutError):
        async with asyncio.timeout(longest):
            await changed.wait()
    changed.clear()
