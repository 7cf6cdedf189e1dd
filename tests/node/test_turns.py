"""Turns of real containers, over the node's real network: whatever is killed or cut off, never two have the turn.

The witness is independent: each program writes a line with the kernel's clock ten times a second while it runs, to a
file that all share. Containers have busybox's sh and wget, and nothing of ours.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from deviceshare.domain.contract import PODS_PORT
from deviceshare_sandbox.binaries import PATH
from deviceshare_sandbox.machine import entering
from deviceshare_sandbox.nvml import Script
from tests.node.agents import Agent, release_with_agents
from tests.node.cluster import Cluster, Json, group, pod
from tests.node.release import Parts, Release

BUDGET = float(os.environ.get("TURN_BUDGET", "8"))
"""Seconds within which the queue goes on; a program's own start is part of them. The goal is 2 (TURN_BUDGET=2), on a
machine that does nothing else. Where the end of a program isn't seen, its turn goes on after 43."""
WITNESS = "/run/turns-witness"
STAY = "echo up; sleep 3600 & wait"
VOLUMES: Json = {
    "volumes": [{"name": "witness", "hostPath": {"path": WITNESS, "type": "DirectoryOrCreate"}}],
    "container": {"volumeMounts": [{"name": "witness", "mountPath": "/witness"}]},
}
WORK = (
    'i=0; while [ $i -lt "$1" ]; do read -r up rest </proc/uptime; echo "$0 $up" >>/witness/log; sleep 0.1;'
    " i=$((i + 1)); done"
)
"""A program that writes as many lines as its argument says, under the name before that."""


class Run(NamedTuple):
    """What the witness saw of one program; times by the kernel's clock."""

    name: str
    first: float
    last: float
    lines: int


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Script:
    """One GPU is enough."""
    script = Script(tmp_path_factory.mktemp("script") / "script")
    script.gpus(1)
    return script


@pytest.fixture(scope="module")
def release(
    cluster: Cluster, release_parts: Parts, script: Script, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Release]:
    """The chart with agents, all ready."""
    with release_with_agents(cluster, release_parts, script, tmp_path_factory.mktemp("nvml")) as installed:
        yield installed


@pytest.fixture
def agent(cluster: Cluster, clear: None, script: Script) -> Agent:
    """It has reported the GPU; two pods of a group, `a` and `b`, run, and nobody has the turn."""
    found = Agent(cluster, script)
    cluster.eventually(lambda: len(found.hardware().get("devices", [])) == 1)
    cluster.apply(group("team", 1))
    cluster.apply(*(pod(name, STAY, "team", **VOLUMES) for name in ("a", "b")))
    for name in ("a", "b"):
        cluster.tells(name)
    on_node(cluster, f"rm -f {WITNESS}/*")
    return found


def on_node(cluster: Cluster, command: str) -> str:
    """What a shell command on the machine of the node prints."""
    entered = [*entering(cluster.sandbox.layout), "env", f"PATH={PATH}", "sh", "-c", command]
    return subprocess.run(entered, capture_output=True, text=True, timeout=60, check=False).stdout


def inside(cluster: Cluster, name: str, command: str) -> str:
    """The same in the pod's container."""
    return cluster.kubectl("exec", name, "--", "sh", "-c", command)


def take_turn(cluster: Cluster, name: str, lines: int, flags: str = "") -> None:
    """Starts a program in the pod's container that wants the turn; doesn't wait for it."""
    call = f"wget -qO- $DEVICESHARE_AGENT/turn.sh | sh -s -- {flags} -- sh -c '{WORK}' {name} {lines}"
    inside(cluster, name, f"({call}; echo status $?) >/witness/said-$HOSTNAME 2>&1 </dev/null &")


def said(cluster: Cluster, name: str) -> str:
    """What the pod's last client wrote, and the status with which it ended."""
    return on_node(cluster, f"cat {WITNESS}/said-{name}")


def runs(cluster: Cluster) -> dict[str, Run]:
    """What the witness saw so far. Never were two at once: no program's line stands between two of another's."""
    seen: dict[str, list[float]] = {}
    order: list[str] = []
    for line in on_node(cluster, f"cat {WITNESS}/log").splitlines():
        name, _, up = line.partition(" ")
        seen.setdefault(name, []).append(float(up))
        if not order or order[-1] != name:
            order.append(name)
    assert len(order) == len(set(order)), f"two had the turn at once: {order}"
    return {name: Run(name, min(times), max(times), len(times)) for name, times in seen.items()}


def both_ran(cluster: Cluster, lines: int, seconds: float = 120.0) -> tuple[Run, Run]:
    """The runs of `a` and of `b`, once `b` has written as many lines."""
    found = cluster.eventually(lambda: runs(cluster), lambda seen: "b" in seen and seen["b"].lines == lines, seconds)
    return found["a"], found["b"]


def begun(cluster: Cluster) -> None:
    """`a` has the turn, and `b` waits for it."""
    cluster.eventually(lambda: "a" in runs(cluster))
    take_turn(cluster, "b", 5)
    cluster.eventually(lambda: "waiting for the turn" in said(cluster, "b"))


def kill(cluster: Cluster, name: str, pattern: str) -> None:
    """kill -9 of all processes in the pod's container whose command line begins like this."""
    inside(
        cluster,
        name,
        "for each in /proc/[0-9]*; do line=$(tr '\\0' ' ' <$each/cmdline); "
        f"case $line in {pattern}) kill -9 ${{each#/proc/}};; esac; done; echo done",
    )


def test_programs_of_a_group_take_turns(cluster: Cluster, agent: Agent) -> None:
    """Each runs when the one before has ended, the one with the highest priority first."""
    take_turn(cluster, "a", 300)
    begun(cluster)
    call = f"wget -qO- $DEVICESHARE_AGENT/turn.sh | sh -s -- --priority 5 -- sh -c '{WORK}' preferred 5"
    inside(cluster, "a", f"({call}) >/witness/more 2>&1 </dev/null &")

    first, last = both_ran(cluster, 5)

    between = runs(cluster)["preferred"]
    assert first.last < between.first <= between.last < last.first
    assert between.first - first.last < BUDGET and last.first - between.last < BUDGET
    assert (first.lines, between.lines) == (300, 5)
    assert cluster.eventually(lambda: "status 0" in said(cluster, "b"))


CLIENT, SHELLS, CMD = "'wget -qO- http'*", "'sh -s '*", "'sh -c i=0'*"


@pytest.mark.parametrize("parts", [(CLIENT,), (SHELLS,), (SHELLS, CLIENT)])
def test_a_program_whose_watchers_are_killed_keeps_the_turn(
    cluster: Cluster, agent: Agent, parts: tuple[str, ...]
) -> None:
    """Its connection is lost, or all shells that watched it are gone; the kernel still shows that it runs."""
    take_turn(cluster, "a", 250)
    begun(cluster)
    for part in parts:
        kill(cluster, "a", part)

    first, last = both_ran(cluster, 5)

    assert first.lines == 250
    assert 0 < last.first - first.last < BUDGET


@pytest.mark.parametrize("parts", [(CMD,), (SHELLS, CLIENT, CMD)])
def test_a_killed_programs_turn_goes_on(cluster: Cluster, agent: Agent, parts: tuple[str, ...]) -> None:
    """At once, be it alone or with all that watched it."""
    take_turn(cluster, "a", 600)
    begun(cluster)
    for part in parts:
        kill(cluster, "a", part)

    first, last = both_ran(cluster, 5)

    assert first.lines < 600
    assert 0 < last.first - first.last < BUDGET


def test_a_deleted_pods_turn_goes_on(cluster: Cluster, agent: Agent) -> None:
    """Its processes end with it."""
    take_turn(cluster, "a", 600)
    begun(cluster)
    cluster.kubectl("delete", "pod", "a", "--force", "--grace-period=0", "--wait=false")

    first, last = both_ran(cluster, 5)

    assert 0 < last.first - first.last < BUDGET


def kill_agent() -> None:
    """kill -9"""
    [process] = [
        int(each.name)
        for each in Path("/proc").glob("[0-9]*")
        if b"--turns-directory" in read(each / "cmdline") and b"agent" in read(each / "cmdline").split(b"\0")
    ]
    os.kill(process, signal.SIGKILL)


def read(path: Path) -> bytes:
    """What it holds; nothing where the process has ended."""
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return b""


def the_agents_return(cluster: Cluster) -> float:
    """When it answered again, by the kernel's clock."""
    return float(cluster.eventually(lambda: on_node(cluster, f"cat {WITNESS}/back").strip()))


def note_the_agents_return(cluster: Cluster) -> None:
    """Has the witness write when the agent answers again."""
    wait = "until wget -qO- $DEVICESHARE_AGENT/ >/dev/null 2>&1; do sleep 0.1; done; read -r up rest </proc/uptime"
    inside(cluster, "b", f"({wait}; echo $up >/witness/back) >/dev/null 2>&1 </dev/null &")


def test_a_killed_agents_successor_knows_who_has_the_turn(cluster: Cluster, agent: Agent) -> None:
    """The program goes on without it, and the next one starts when that has ended."""
    take_turn(cluster, "a", 300)
    begun(cluster)
    kill_agent()
    note_the_agents_return(cluster)

    first, last = both_ran(cluster, 5, 180)

    assert first.lines == 300
    assert first.last < last.first < max(first.last, the_agents_return(cluster)) + BUDGET


def test_a_turn_that_ended_without_an_agent_goes_on_when_the_next_one_is_there(cluster: Cluster, agent: Agent) -> None:
    """Within the budget of its first answer; it sees that the program has ended."""
    take_turn(cluster, "a", 600)
    begun(cluster)
    kill(cluster, "a", SHELLS)
    kill_agent()
    kill(cluster, "a", CMD)
    note_the_agents_return(cluster)

    _, last = both_ran(cluster, 5, 180)

    assert last.first - the_agents_return(cluster) < BUDGET


@contextlib.contextmanager
def cut_off(cluster: Cluster, name: str) -> Iterator[None]:
    """Inside this block no packet passes between the pod and the agent, either way."""
    address = cluster.get("pod", name)["status"]["podIP"]
    rules = (f"INPUT -s {address} -p tcp --dport {PODS_PORT}", f"OUTPUT -d {address} -p tcp --sport {PODS_PORT}")
    for rule in rules:
        on_node(cluster, f"iptables -w -I {rule} -j DROP")
    try:
        assert str(PODS_PORT) in on_node(cluster, "iptables -w -S INPUT")
        yield
    finally:
        for rule in rules:
            on_node(cluster, f"iptables -w -D {rule} -j DROP")


def test_an_unplugged_program_keeps_the_turn_until_it_ends(cluster: Cluster, agent: Agent) -> None:
    """Also if its end can't be told: the agent sees it, and needs no network for that."""
    take_turn(cluster, "a", 250)
    begun(cluster)
    with cut_off(cluster, "a"):
        first, last = both_ran(cluster, 5)

    assert first.lines == 250
    assert 0 < last.first - first.last < BUDGET


def test_a_program_that_was_unplugged_for_a_while_goes_on(cluster: Cluster, agent: Agent) -> None:
    """It has the turn when the network is back."""
    take_turn(cluster, "a", 250)
    begun(cluster)
    with cut_off(cluster, "a"):
        time.sleep(5)

    first, last = both_ran(cluster, 5)

    assert first.lines == 250
    assert 0 < last.first - first.last < BUDGET


def test_process_one_of_a_container_takes_its_turn(cluster: Cluster, agent: Agent) -> None:
    """As a pod's own command; its program gets the kubelet's SIGTERM, and may ask for the turn again elsewhere."""
    command = 'eval "$(wget -qO- $DEVICESHARE_AGENT/turn.sh)"'
    program = f"trap 'echo asked $0 >>/witness/log.asked; exit 0' TERM; {WORK}"
    own = {**VOLUMES["container"], "command": ["sh", "-c", command, "turn", "--", "sh", "-c", program, "a", "600"]}
    cluster.apply(pod("first", "", "team", volumes=VOLUMES["volumes"], container=own))
    begun(cluster)
    cluster.kubectl("delete", "pod", "first", "--grace-period=20", "--wait=false")

    first, last = both_ran(cluster, 5)

    assert "asked a" in on_node(cluster, f"cat {WITNESS}/log.asked")
    assert 0 < last.first - first.last < BUDGET
