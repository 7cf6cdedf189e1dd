"""Which processes belong to a turn, by a /proc that the test writes."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from deviceshare.agent import process_table
from deviceshare.agent.process_table import ProcessTable
from deviceshare.domain.turns.program_queue import TurnProcess
from tests.unit.loops.virtual_time import in_virtual_time, now

POD, OTHER = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"
FIRST = TurnProcess(500, 9000, POD)
RELAY = """
import os, time
until = time.monotonic() + 20
while time.monotonic() < until and not os.fork():
    time.sleep(0.01)
"""
"""A program that forks and ends, again and again: its group always has one process that runs."""


class FakeProc:
    """A directory like /proc."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add(
        self,
        pid: int,
        *,
        inside: int = 0,
        group: int = 0,
        session: int = 0,
        started: int = 9000,
        state: str = "S",
        threads: int = 1,
        pod: str = POD,
    ) -> None:
        """A process; its name is as unpleasant as it may be."""
        directory = self.root / str(pid)
        directory.mkdir(exist_ok=True)
        fields = [state, "1", str(group or pid), str(session or pid), *["0"] * 13, str(threads), "0", str(started)]
        (directory / "stat").write_text(f"{pid} (a) b (c) {' '.join(fields)} 0 0\n")
        (directory / "status").write_text(f"Name:\ta\nNSpid:\t{pid}\t{inside or pid}\n")
        (directory / "cgroup").write_text(f"0::/kubepods/burstable/pod{pod}/{'a' * 64}\n")

    def remove(self, pid: int) -> None:
        for file in (self.root / str(pid)).iterdir():
            file.unlink()
        (self.root / str(pid)).rmdir()


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeProc:
    """With the node's first process, and one of another pod. The kernel knows of no other."""
    monkeypatch.setattr(process_table, "_has_members", lambda _: False)
    made = FakeProc(tmp_path)
    made.add(1, started=1, pod="")
    made.add(77, pod=OTHER)
    return made


async def test_a_process_is_found_by_its_number_in_the_container(proc: FakeProc) -> None:
    """Its start tells it from one with the same number in another container; another pod can't name it."""
    proc.add(500, inside=7)
    proc.add(600, inside=7, started=9001)
    proc.add(700, inside=7, pod=OTHER)
    found = ProcessTable(proc.root)

    assert await found.find(POD, 7, 9000) == FIRST
    assert await found.find(POD, 8, 9000) is None
    assert await found.find(POD, 7, 9002) is None
    assert await found.find(OTHER, 500, 9000) is None


async def test_a_process_cannot_choose_its_number_by_its_name(proc: FakeProc) -> None:
    """The kernel escapes line feeds in names, and nothing else that some take for the end of a line."""
    proc.add(500, inside=7)
    proc.add(600, inside=9)
    for end in ("\r", "\x0b", "\x1c"):
        (proc.root / "600/status").write_bytes(f"Name:\t{end}NSpid:\t7\nNSpid:\t600\t9\n".encode())
        assert await ProcessTable(proc.root).find(POD, 7, 9000) == FIRST


async def test_where_processes_are_hidden_none_is_found(proc: FakeProc) -> None:
    """By hidepid or SELinux, which hide the node's first one as well: it would seem to have ended once it is hidden."""
    proc.add(500, inside=7)
    proc.remove(1)
    assert await ProcessTable(proc.root).find(POD, 7, 9000) is None
    assert (ProcessTable(proc.root).boot_id, ProcessTable(proc.root).namespace) == ("", "")


async def test_two_that_cannot_be_told_apart_are_not_found(proc: FakeProc) -> None:
    """In two containers of the pod, started in the same hundredth of a second."""
    proc.add(500, inside=7)
    proc.add(501, inside=7)
    assert await ProcessTable(proc.root).find(POD, 7, 9000) is None


@pytest.mark.parametrize(
    ("left", "ended"),
    [
        ([(500, {})], False),
        ([(500, {"state": "T"})], False),
        ([(500, {"state": "Z"})], True),
        ([(500, {"state": "Z", "threads": 3})], False),
        ([(500, {"started": 9500})], True),
        ([(500, {"started": 9500}), (501, {"group": 500})], True),
        ([(501, {"group": 500})], False),
        ([(501, {"session": 500})], False),
        ([(501, {"group": 500, "state": "Z"})], True),
        ([(501, {"group": 500, "pod": OTHER})], True),
        ([(501, {})], True),
    ],
)
async def test_a_turn_has_ended_with_the_last_of_its_processes(
    proc: FakeProc, left: list[tuple[int, dict[str, str | int]]], ended: bool
) -> None:
    """Its own, or any of its group or session; the dead don't count, nor do those that got its number."""
    for pid, more in left:
        proc.add(pid, **more)  # type: ignore[arg-type]
    assert await ProcessTable(proc.root).ended([FIRST]) == ({FIRST} if ended else set())


@pytest.mark.parametrize(
    ("left", "ended"), [([], False), ([(501, {"group": 500, "state": "Z"})], True), ([(500, {"state": "Z"})], True)]
)
async def test_a_group_that_the_kernel_knows_of_has_ended_if_it_is_seen_to_be_dead(
    proc: FakeProc, monkeypatch: pytest.MonkeyPatch, left: list[tuple[int, dict[str, str | int]]], ended: bool
) -> None:
    """Else its process was started while /proc was read."""
    monkeypatch.setattr(process_table, "_has_members", lambda _: True)
    for pid, more in left:
        proc.add(pid, **more)  # type: ignore[arg-type]
    assert await ProcessTable(proc.root).ended([FIRST]) == ({FIRST} if ended else set())


class OfOnePod(ProcessTable):
    def _pod_of(self, pid: int | str) -> str:
        return POD if (self._proc / str(pid)).exists() else ""


@pytest.fixture
def relay() -> Iterator[int]:
    """The first process of a RELAY, which has ended."""
    started = subprocess.Popen([sys.executable, "-S", "-c", RELAY], start_new_session=True)
    started.wait(20)
    yield started.pid
    with suppress(ProcessLookupError):
        os.killpg(started.pid, signal.SIGKILL)


async def test_a_turn_goes_on_from_process_to_process(relay: int) -> None:
    """However fast: each look lists the processes, and reads of each that is still there."""
    found = OfOnePod(Path("/proc"))
    for _ in range(25):
        assert await found.ended([TurnProcess(relay, 1, POD)]) == set()


async def test_where_nothing_is_seen_nothing_has_ended(tmp_path: Path) -> None:
    """As if /proc were not there."""
    found = ProcessTable(tmp_path / "none")
    assert await found.ended([FIRST]) == set()
    assert await found.find(POD, 7, 9000) is None


async def test_a_file_that_is_no_stat_is_passed_over(proc: FakeProc) -> None:
    """A process may end while it is read."""
    proc.add(500)
    proc.add(501, group=500)
    proc.add(88)
    (proc.root / "501" / "stat").write_text("")
    (proc.root / "77" / "stat").unlink()
    proc.remove(500)
    assert await ProcessTable(proc.root).ended([FIRST]) == {FIRST}


def test_a_namespace_is_named_by_its_first_process(proc: FakeProc) -> None:
    """And by the node's boot."""
    proc.add(1, started=12)
    boot = proc.root / "sys/kernel/random"
    boot.mkdir(parents=True)
    (boot / "boot_id").write_text("b1\n")
    assert (ProcessTable(proc.root).boot_id, ProcessTable(proc.root).namespace) == ("b1", "12")


def test_the_kernel_names_its_run() -> None:
    """The same for every reader until the node reboots."""
    boot_id = ProcessTable(Path("/proc")).boot_id
    assert re.fullmatch(r"[0-9a-f-]{36}", boot_id)
    assert boot_id == ProcessTable(Path("/proc")).boot_id


async def test_all_that_connect_at_once_are_served_together(proc: FakeProc) -> None:
    """As after an agent's restart; one that has gone meanwhile disturbs nobody."""
    for number in range(50):
        proc.add(1000 + number, inside=number + 2, started=number)
    found = ProcessTable(proc.root)
    asked = [asyncio.create_task(found.find(POD, number + 2, number)) for number in range(50)]
    await asyncio.sleep(0)
    asked[7].cancel()
    results = await asyncio.gather(*asked, return_exceptions=True)

    assert isinstance(results.pop(7), asyncio.CancelledError)
    assert {each.pid for each in results if isinstance(each, TurnProcess)} == {1000 + n for n in range(50) if n != 7}


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, int]]:
    """When each walk began, and how many processes it looks for, all of which it finds after a second."""
    begun: list[tuple[float, int]] = []

    async def walk(_: Callable[..., object], sought: Collection[tuple[str, int, int]] = ()) -> dict[object, object]:
        begun.append((now(), len(sought)))
        await asyncio.sleep(1)
        return {each: TurnProcess(each[1], each[2], each[0]) for each in sought}

    monkeypatch.setattr(asyncio, "to_thread", walk)
    return begun


@in_virtual_time
async def test_a_walk_serves_all_who_ask_before_it_begins(tmp_path: Path, walks: list[tuple[float, int]]) -> None:
    """Also in the pause before it, of three walks; who asks during a walk is served by the next."""
    found = ProcessTable(tmp_path, now)

    async def served(pid: int, asks: float) -> float:
        await asyncio.sleep(asks)
        assert await found.find(POD, pid, 9000) == TurnProcess(pid, 9000, POD)
        return now()

    asked = [0.0, 0.5, 2.0, 3.75, 4.5, 9.0, 30.0]
    assert await asyncio.gather(*map(served, range(2, 9), asked)) == [1.0, 5.0, 5.0, 5.0, 9.0, 13.0, 31.0]
    assert walks == [(0.0, 1), (4.0, 3), (8.0, 1), (12.0, 1), (30.0, 1)]


@in_virtual_time
async def test_a_table_that_is_closed_reads_no_more(tmp_path: Path, walks: list[tuple[float, int]]) -> None:
    """Neither what is being read, nor what would be next."""
    found = ProcessTable(tmp_path, now)
    asking = [asyncio.create_task(found.find(POD, 7, 9000)), asyncio.create_task(found.may_run(POD))]
    await asyncio.sleep(0.5)
    asking += [asyncio.create_task(found.find(POD, 8, 9000)), asyncio.create_task(found.may_run(OTHER))]
    await asyncio.sleep(0.25)
    await found.close()
    results = await asyncio.gather(*asking, return_exceptions=True)
    assert [type(each) for each in results] == [asyncio.CancelledError] * 4
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert len(walks) == 2
