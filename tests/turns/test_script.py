"""Clients of turns, with a real agent's server, in the shells and with the tools of containers, and killed for real."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path

import pytest

from deviceshare.domain.turns.program_queue import KILL, LEASE_UNSEEN, MARGIN
from deviceshare.domain.turns.turn_client import script
from tests.turns.rig import BUDGET, KINDS, LINE, PATIENCE, Rig, SeenRun, eventually, rig

LINES = 100


@pytest.fixture(params=KINDS)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    """An agent, and clients of each kind in turn."""
    with rig(request.param, tmp_path) as made:
        yield made


@pytest.fixture
def holding(table: Rig) -> "subprocess.Popen[bytes]":
    """Program `a` works until the test lets it go, and ten seconds more."""
    client = table.work("a", LINES, held=True)
    eventually(lambda: "a" in table.runs())
    return client


@pytest.fixture
def next_one(table: Rig, holding: "subprocess.Popen[bytes]") -> "subprocess.Popen[bytes]":
    """Program `b` waits for it."""
    return waiting(table, holding)


def waiting(table: Rig, holding: "subprocess.Popen[bytes]") -> "subprocess.Popen[bytes]":
    """Starts `b`, which waits when this returns."""
    client = table.work("b", 5)
    eventually(lambda: "has it" in table.errors.read_text())
    assert holding.poll() is None
    return client


def both_ran(table: Rig, client: "subprocess.Popen[bytes]") -> tuple[SeenRun, SeenRun]:
    """The runs of `a`, which is let go, and of `b`, once that has ended."""
    table.let_go("a")
    status = client.wait(PATIENCE)
    seen = table.runs()
    assert (status, seen["b"].lines) == (0, 5), table.errors.read_text()
    return seen["a"], seen["b"]


@contextmanager
def telling_agent(table: Rig, heartbeats: list[tuple[int, int]]) -> Iterator[list[float]]:
    """An agent that tells everybody these ages and leases, four in a second; gives when, by the kernel's clock."""
    told: list[float] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            if self.path.startswith("/turn/over"):
                self.wfile.write(b"over\n")
                return
            with suppress(OSError):
                for age, lease in heartbeats:
                    told.append(time.clock_gettime(time.CLOCK_BOOTTIME))
                    self.wfile.write(f"turn {age} {lease}\n".encode())
                    time.sleep(0.25)

        def log_message(self, *_: object) -> None:
            pass

    table.script.write_text(script())
    with ThreadingHTTPServer(("127.0.0.1", int(table.url.rpartition(":")[2])), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield told
        finally:
            server.shutdown()
            table.end()


def kill(pids: list[int], number: signal.Signals = signal.SIGKILL) -> None:
    """Each of them, of which there are some."""
    assert pids
    for pid in pids:
        with suppress(ProcessLookupError):  # a subshell of a moment
            os.kill(pid, number)


def test_the_exit_status_and_the_arguments_are_the_programs(table: Rig) -> None:
    """And its standard input is not the script."""
    done = table.take_turn("sh", "-c", 'cat; echo "$1|$2"; exit 7', "x", "a b", "*")
    output, _ = done.communicate(timeout=PATIENCE)
    assert (done.returncode, output) == (7, b"a b|*\n")


def test_one_works_at_a_time(table: Rig) -> None:
    """Five at once, and none waits longer than it must."""
    clients = [table.work(str(number), 5) for number in range(5)]
    assert [client.wait(PATIENCE) for client in clients] == [0] * 5
    seen = sorted(table.runs().values(), key=lambda run: run.first)
    gaps = [then.first - before.last for before, then in pairwise(seen)]
    assert max(gaps) < BUDGET, gaps


def test_a_program_whose_connection_is_killed_goes_on(
    table: Rig, holding: "subprocess.Popen[bytes]", next_one: "subprocess.Popen[bytes]"
) -> None:
    """Its client connects again."""
    kill(table.parts(holding)["client"])
    first, last = both_ran(table, next_one)
    assert table.ended("a")
    assert 0 < last.first - first.last < BUDGET


def three(shells: list[int]) -> list[int]:
    """Those that stay; a fourth is a subshell of a moment."""
    return sorted(shells) if len(shells) == 3 else []


@pytest.mark.parametrize("which", [0, 1, 2, slice(None)])
@pytest.mark.parametrize("table", ["dash-curl", "busybox"], indirect=True)
def test_a_watched_program_survives_its_watchers(
    table: Rig, holding: "subprocess.Popen[bytes]", next_one: "subprocess.Popen[bytes]", which: int | slice
) -> None:
    """One of the three shells beside it is killed, or all: it goes on, and nobody else begins."""
    shells = eventually(lambda: three(table.parts(holding)["shells"]))
    kill(shells[which] if isinstance(which, slice) else [shells[which]])
    first, last = both_ran(table, next_one)
    assert table.ended("a")
    assert 0 < last.first - first.last < BUDGET


def test_a_killed_program_passes_the_turn_on(
    table: Rig, holding: "subprocess.Popen[bytes]", next_one: "subprocess.Popen[bytes]"
) -> None:
    """With its status, as a shell tells it."""
    kill(table.parts(holding)["cmd"])
    first, last = both_ran(table, next_one)
    assert not table.ended("a")
    assert 0 < last.first - first.last < BUDGET
    assert holding.wait(PATIENCE) in (-signal.SIGKILL, 128 + signal.SIGKILL)


def test_everything_of_a_turn_is_killed(
    table: Rig, holding: "subprocess.Popen[bytes]", next_one: "subprocess.Popen[bytes]"
) -> None:
    """As when its container is."""
    kill([pid for pids in table.parts(holding).values() for pid in pids])
    first, last = both_ran(table, next_one)
    assert not table.ended("a")
    assert 0 < last.first - first.last < BUDGET


def test_a_stopped_client_keeps_the_turn(
    table: Rig, holding: "subprocess.Popen[bytes]", next_one: "subprocess.Popen[bytes]"
) -> None:
    """It can't watch its lease, but the agent sees that its program runs."""
    parts = table.parts(holding)
    kill([*parts["shells"], *parts["client"]], signal.SIGSTOP)
    first, last = both_ran(table, next_one)
    assert table.ended("a")
    assert 0 < last.first - first.last < BUDGET


def test_a_killed_agents_successor_knows_the_holder(
    table: Rig, holding: "subprocess.Popen[bytes]", next_one: "subprocess.Popen[bytes]"
) -> None:
    """Though the next one may ask it first."""
    table.kill_agent()
    table.start_agent()
    back = time.clock_gettime(time.CLOCK_BOOTTIME)
    first, last = both_ran(table, next_one)
    assert table.ended("a")
    assert 0 < last.first - max(first.last, back) < BUDGET
    assert holding.wait(PATIENCE) == 0


def test_a_turn_that_ends_while_the_agent_is_away_is_over(
    table: Rig, holding: "subprocess.Popen[bytes]", next_one: "subprocess.Popen[bytes]"
) -> None:
    """The next agent gives it to `b` within the budget."""
    table.kill_agent()
    kill(table.parts(holding)["cmd"])
    holding.wait(PATIENCE)
    time.sleep(5)  # its client has given up telling that it ended
    table.start_agent()
    back = time.clock_gettime(time.CLOCK_BOOTTIME)
    _, last = both_ran(table, next_one)
    assert last.first - back < BUDGET


def test_signals_reach_the_program(table: Rig) -> None:
    """Those that a terminal or a kubelet sends."""
    for name in ("TERM", "INT", "USR1"):
        told = f'trap "echo got {name}; exit 3" {name}; echo ready; while :; do sleep 0.1; done'
        client = table.take_turn("sh", "-c", told)
        assert client.stdout is not None
        assert client.stdout.readline() == b"ready\n"
        client.send_signal(signal.Signals["SIG" + name])
        output, _ = client.communicate(timeout=PATIENCE)
        assert (client.returncode, output) == (3, f"got {name}\n".encode())


def test_a_client_that_is_ended_while_it_waits_is_out_of_the_queue(
    table: Rig, holding: "subprocess.Popen[bytes]"
) -> None:
    """Its program never starts."""
    waits = table.work("never", 5)
    eventually(lambda: "has it" in table.errors.read_text())
    waits.send_signal(signal.SIGTERM)
    assert waits.wait(PATIENCE) in (-signal.SIGTERM, 128 + signal.SIGTERM)
    table.let_go("a")
    assert holding.wait(PATIENCE) == 0
    assert table.work("b", 5).wait(PATIENCE) == 0
    assert list(table.runs()) == ["a", "b"]


def test_a_client_gives_up_after_its_timeout(table: Rig, holding: "subprocess.Popen[bytes]") -> None:
    """With status 124 and the reason."""
    assert table.work("b", 5, "--timeout 1s").wait(PATIENCE) == 124
    assert "gave up after waiting 1 s" in table.errors.read_text()
    assert "b" not in table.runs()
    table.let_go("a")
    holding.wait(PATIENCE)


def test_a_slice_ends_with_the_signal_of_ones_choice(table: Rig) -> None:
    """When another one waits."""
    asked = 'trap "echo asked; exit 0" USR1; echo ready; while :; do sleep 0.1; done'
    client = table.take_turn("sh", "-c", asked, flags="--slice 1 --signal USR1")
    assert client.stdout is not None
    assert client.stdout.readline() == b"ready\n"
    time.sleep(2)
    assert client.poll() is None
    assert table.work("b", 5).wait(PATIENCE) == 0
    assert client.communicate(timeout=PATIENCE)[0] == b"asked\n"


def test_the_one_with_the_higher_priority_is_next(table: Rig, holding: "subprocess.Popen[bytes]") -> None:
    """Though it came later."""
    low = table.work("low", 5)
    eventually(lambda: table.errors.read_text().count("has it") >= 1)
    high = table.work("high", 5, "--priority 7")
    eventually(lambda: table.errors.read_text().count("has it") >= 2)
    table.let_go("a")
    assert [each.wait(PATIENCE) for each in (holding, low, high)] == [0, 0, 0]
    assert list(table.runs()) == ["a", "high", "low"]


def test_what_a_program_leaves_behind_ends_with_it(table: Rig) -> None:
    """Else it would run beside the next one."""
    loop = 'trap : TERM; while :; do read -r up rest </proc/uptime; echo "left $up" >>"$WITNESS"; sleep 0.1; done'
    assert table.take_turn("sh", "-c", 'sh -c "$0" & sleep 1', loop).wait(PATIENCE) == 0
    assert table.work("b", 5).wait(PATIENCE) == 0
    assert list(table.runs()) == ["left", "b"]


def test_nothing_is_left_of_a_turn(table: Rig) -> None:
    """Neither a process nor a file. The machine's own /tmp may hold those of a client that somebody killed."""
    client = table.work("a", 2)
    assert client.wait(PATIENCE) == 0
    eventually(lambda: not any(table.parts(client).values()))
    assert not list(table.temporary.iterdir())


@pytest.mark.parametrize(
    ("command", "flags", "status", "text"),
    [
        (("no-such-program",), "", 127, "no-such-program: not found"),
        (("sh",), "--priority high", None, "high"),
        (("sh",), "--timeout soon", None, "soon"),
        (("sh",), "--signal NONE", None, "NONE"),
        (("sh",), "--fast", None, "--fast"),
    ],
)
def test_mistakes_are_named(table: Rig, command: tuple[str, ...], flags: str, status: int | None, text: str) -> None:
    """The script's own failures are 125; a flag that the command hasn't is 2 as everywhere."""
    expected = status or (2 if table.kind == "deviceshare" and flags == "--fast" else 125)
    assert table.take_turn(*command, flags=flags).wait(PATIENCE) == expected
    assert text in table.errors.read_text()


@pytest.mark.parametrize("kind", KINDS)
def test_a_turn_that_is_heard_of_after_its_lease_begins_nothing(kind: str, tmp_path: Path) -> None:
    """As by a client that was stopped for that long: another may have the turn by now. A later heartbeat counts."""
    table = Rig(kind, tmp_path)
    with telling_agent(table, [(0, 0)] * 6 + [(0, 30000)] * 60) as told:
        client = table.take_turn("cat", "/proc/uptime")
        output, _ = client.communicate(timeout=40)
    assert client.returncode == 0, table.errors.read_text()
    assert float(output.split()[0]) > told[5]


def test_without_an_agents_address_nothing_runs(table: Rig) -> None:
    """The text says where it comes from."""
    del table.environment["DEVICESHARE_AGENT"]
    assert table.work("a", 1).wait(PATIENCE) == 125
    assert "DEVICESHARE_AGENT is not set" in table.errors.read_text()


def test_a_program_whose_agent_is_away_and_blind_is_ended_by_its_lease(tmp_path: Path) -> None:
    """Before the grace of the next agent is over: SIGTERM, and SIGKILL for one that ignores it."""
    with ExitStack() as stack:
        tables = []
        for kind in ("dash-curl", "busybox", "deviceshare"):
            (tmp_path / kind).mkdir()
            tables.append(stack.enter_context(rig(kind, tmp_path / kind, blind=True)))
        stubborn = f'trap "echo asked; " TERM; echo ready; while :; do {LINE} done'
        clients = [table.take_turn("sh", "-c", stubborn, "a") for table in tables]
        for client in clients:
            assert client.stdout is not None
            assert client.stdout.readline() == b"ready\n"
        began = time.clock_gettime(time.CLOCK_BOOTTIME)
        for table in tables:
            table.kill_agent()
        for table, client in zip(tables, clients, strict=True):
            output, _ = client.communicate(timeout=PATIENCE)
            lived = table.runs()["a"].last - began
            assert output == b"asked\n", table.kind
            assert client.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
            # From the last heartbeat on, which may have been late.
            assert LEASE_UNSEEN / 2 < lived < LEASE_UNSEEN + KILL + MARGIN
