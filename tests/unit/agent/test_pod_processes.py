"""Which pods have a process, by files such as the kernel's."""

from pathlib import Path

import pytest

from deviceshare.agent.process_table import FRESH_SECONDS, ProcessTable

OWN, ONE, TWO = (f"{digit * 8}-0000-4000-8000-000000000000" for digit in "123")


class Processes:
    """A directory as /proc is, where the agent itself is process 7."""

    def __init__(self, proc: Path) -> None:
        self.proc = proc
        self.time = 0.0
        self.walks = 0
        self.start(1, "0::/init.scope")
        self.start(7, f"0::/kubepods/pod{OWN}/{'a' * 64}")
        (proc / "self").symlink_to("7")
        (proc / "meminfo").touch()
        self.seen = ProcessTable(proc, lambda: self.time)

    def start(self, pid: int, cgroup: str) -> None:
        directory = self.proc / str(pid)
        directory.mkdir(exist_ok=True)
        (directory / "cgroup").write_text(f"{cgroup}\n")

    def end(self, pid: int) -> None:
        (self.proc / str(pid) / "cgroup").unlink()
        (self.proc / str(pid)).rmdir()


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    return Processes(tmp_path)


async def test_a_pod_with_a_process_may_run_and_one_without_may_not(processes: Processes) -> None:
    """Whatever the API server says of them."""
    processes.start(20, f"0::/kubepods/burstable/pod{ONE}/{'b' * 64}")

    assert await processes.seen.may_run(ONE)
    assert not await processes.seen.may_run(TWO)


async def test_a_pod_whose_process_ended_is_looked_for_again(processes: Processes) -> None:
    """It may have another; and a PID that is used again says nothing."""
    processes.start(20, f"0::/kubepods/pod{ONE}/{'b' * 64}")
    processes.start(30, f"0::/kubepods/pod{TWO}/{'c' * 64}")
    assert await processes.seen.may_run(ONE)
    processes.start(21, f"0::/kubepods/pod{ONE}/{'b' * 64}")
    processes.start(20, f"0::/kubepods/pod{TWO}/{'c' * 64}")
    processes.time += FRESH_SECONDS
    assert await processes.seen.may_run(ONE)
    processes.end(21)
    processes.time += FRESH_SECONDS

    assert not await processes.seen.may_run(ONE)
    assert await processes.seen.may_run(TWO)


async def test_a_new_pod_is_found_within_a_second(processes: Processes) -> None:
    """Not at once, so that nobody can have all processes looked at all the time."""
    processes.start(20, f"0::/kubepods/pod{ONE}/{'b' * 64}")
    assert not await processes.seen.may_run(TWO)
    processes.start(30, f"0::/kubepods/pod{TWO}/{'c' * 64}")
    assert not await processes.seen.may_run(TWO)
    processes.time += FRESH_SECONDS

    assert await processes.seen.may_run(TWO)


async def test_where_no_pods_processes_are_seen_nothing_is_concluded(processes: Processes) -> None:
    """As for an agent that sees the processes of its own pod only."""
    assert await processes.seen.may_run(ONE)
