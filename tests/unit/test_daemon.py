"""The parts of a process."""

import asyncio

import pytest

from deviceshare.daemon import Background


async def forever() -> None:
    await asyncio.Event().wait()


async def fails() -> None:
    raise ValueError("broken")


async def ends() -> None:
    return


class Part:
    """Notes when it is started and stopped."""

    def __init__(self, name: str, log: list[str]) -> None:
        self._name = name
        self._log = log

    async def start(self) -> None:
        self._log.append(f"start {self._name}")

    async def stop(self) -> None:
        self._log.append(f"stop {self._name}")

    async def run(self) -> None:
        self._log.append(f"start {self._name}")
        try:
            await forever()
        finally:
            self._log.append(f"stop {self._name}")


async def test_what_is_stopped_as_meant_is_no_failure() -> None:
    """And has ended when the block has."""
    stopping = asyncio.Event()
    log: list[str] = []
    async with Background(stopping) as background:
        background.run("forever", Part("forever", log).run)
        await asyncio.sleep(0)

    assert log == ["start forever", "stop forever"]
    assert not stopping.is_set()
    assert background.failure is None


async def test_the_first_that_fails_stops_all_and_is_remembered() -> None:
    """An end by itself is a failure, too."""
    stopping = asyncio.Event()
    async with Background(stopping) as background:
        background.run("fails", fails)
        background.run("ends", ends)
        await asyncio.wait_for(stopping.wait(), 5)

    assert isinstance(background.failure, ValueError)


async def start_until_one_fails(log: list[str]) -> None:
    async with Background(asyncio.Event()) as background:
        await background.start(Part("probes", log))
        background.run("mirror", Part("mirror", log).run)
        await asyncio.sleep(0)
        await background.start(Part("server", log))
        await fails()


async def test_parts_are_stopped_in_reverse() -> None:
    """Each may rely on those that were started before it, for as long as it runs; also when a start fails."""
    log: list[str] = []
    with pytest.raises(ValueError, match="broken"):
        await start_until_one_fails(log)

    assert log == ["start probes", "start mirror", "start server", "stop server", "stop mirror", "stop probes"]
