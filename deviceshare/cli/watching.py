"""`inspect --watch`: draws the cluster again at each change, from the same mirrors that deviceshare decides with."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from deviceshare.cli.cluster import ANSWER_SECONDS
from deviceshare.cli.output import Part, on_terminal, screen, styled
from deviceshare.cli.snapshot import ClusterSnapshot, guard_of, look
from deviceshare.domain.admission.pod_guard import PodGuard
from deviceshare.domain.answers.picture import Picture
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.kube.api import Api
from deviceshare.kube.mirrors import Mirrors

PAUSE_SECONDS = 0.5
"""Between two pictures: changes come in bursts, and people don't read faster."""
TICK_SECONDS = 10.0
"""A terminal is redrawn after this long without a change, since it shows for how long pods wait."""
LOST = "The cluster does not answer; this is its last known state. Retrying."

Render = Callable[[Picture], list[Part]]


async def follow(api: Api, draw: Callable[[ClusterSnapshot], Picture], render: Render) -> None:
    """Draws until cancelled: on a terminal over what was there, elsewhere below it.

    Raises:
        ApiError: the cluster can't be read at all. Once it could, it is retried, and the drawing says so.
    """
    guard = await guard_of(api)
    draw(await look(api))  # a wrong name or missing right raises here; mirrors retry for ever
    changed = asyncio.Event()
    async with _mirrored(api, changed, guard) as (seen, synced):
        looked_at, last = on_terminal(), None
        with screen() as put:
            while True:
                picture = draw(seen())
                if looked_at or picture != last:
                    put([*render(picture), *([styled(LOST, "red")] if looked_at and not synced() else [])])
                last = picture
                await _next(changed, TICK_SECONDS if looked_at else None)


async def _next(changed: asyncio.Event, longest: float | None) -> None:
    await asyncio.sleep(PAUSE_SECONDS)
    with suppress(TimeoutError):
        async with asyncio.timeout(longest):
            await changed.wait()
    changed.clear()


@asynccontextmanager
async def _mirrored(
    api: Api, changed: asyncio.Event, guard: PodGuard
) -> AsyncIterator[tuple[Callable[[], ClusterSnapshot], Callable[[], bool]]]:
    """Keeps mirrors; yields what they show, and whether they are up to date. Sets `changed` at each change."""
    fleet = Fleet()
    mirrors = Mirrors(api, guard)
    mirrors.feed(fleet)
    for mirror in mirrors.by_name.values():
        mirror.subscribe(lambda *_: changed.set())
    tasks = [asyncio.create_task(mirror.run(), name="mirror") for mirror in mirrors.by_name.values()]
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            for mirror in mirrors.by_name.values():
                await mirror.wait_listed()
        yield (
            lambda: ClusterSnapshot(
                fleet,
                {group.name: group for group in mirrors.groups.values()},
                {pod.metadata.key: pod for pod in mirrors.pods.values()},
            ),
            lambda: mirrors.synced,
        )
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
