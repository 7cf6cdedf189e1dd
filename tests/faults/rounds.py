"""A round: several stories at once under one fault, and the judgement of every state that came of it."""

import asyncio
import random
import time
from contextlib import suppress
from typing import NamedTuple

from tests.faults.checker import State, never, unfinished, unproven
from tests.faults.faults import Fault
from tests.faults.raw_api import Answered
from tests.faults.repertoire import EDITING, STORIES
from tests.faults.scene import Scene
from tests.faults.stage import Stage

AGREED_SECONDS = 30.0


class FaultyRun(NamedTuple):
    """One story under one fault."""

    number: int
    story: str
    fault: str
    met: bool
    """Whether the fault met anything."""
    seconds: float
    """From the end of the fault until the story had what it waited for then; 0 where it waited for nothing."""

    def __str__(self) -> str:
        return f"run {self.number}: {self.story} under {self.fault}: {self.seconds:.1f} s"


class Play:
    """A story under way."""

    def __init__(self, stage: Stage, story: str, number: int) -> None:
        self.story, self.number = story, number
        self._stage, self._scene = stage, Scene(stage, story, number)
        self._reached: list[float] = []

    async def run(self) -> None:
        """Plays it to its end."""
        try:
            async for goal in STORIES[self.story](self._scene):
                await self._stage.reach(goal)
                self._reached.append(time.monotonic())
        except (AssertionError, TimeoutError) as error:
            raise AssertionError(f"{self._scene.prefix}: {str(error) or 'timed out'}") from error

    def recovered(self, over: float) -> float:
        """Seconds from then until what was awaited at that time was reached."""
        return next((at - over for at in self._reached if at > over), 0.0)


async def play_round(
    stage: Stage, stories: list[str], fault: Fault, number: int, chance: random.Random
) -> list[FaultyRun]:
    """Fails where anything may never be; otherwise says how long each story took to recover."""
    plays = [Play(stage, story, number + at) for at, story in enumerate(stories)]
    async with asyncio.TaskGroup() as tasks:
        for play in plays:
            tasks.create_task(play.run(), name=play.story)
        if "kill -9 " not in fault.name and "past the lease " not in fault.name:
            await asyncio.sleep(chance.uniform(0, 2.5))
        met = await fault.inject(stage, chance)
        over = time.monotonic()
    await judge(stage, [] if fault.edits else [play.story for play in plays if play.story not in EDITING])
    return [FaultyRun(play.number, play.story, fault.name, met, play.recovered(over)) for play in plays]


async def judge(stage: Stage, proven: list[str]) -> None:
    """Every state since the last judgement, and the last one in particular; `proven` stories' claims in all of them."""
    state = None
    async for revision, each in stage.history.states():
        state = each
        faults = never(state)
        if proven:
            faults += [text for text in unproven(state) if any(f"-{story}-" in text for story in proven)]
        assert faults == [], f"at revision {revision}: {faults}"
    assert state is not None
    deadline = time.monotonic() + AGREED_SECONDS
    while left := _left(state):
        assert time.monotonic() < deadline, left
        await asyncio.sleep(0.2)
        with suppress(Answered):
            state = await stage.history.now()


def _left(state: State) -> list[str]:
    return [*never(state), *unproven(state), *unfinished(state)]
