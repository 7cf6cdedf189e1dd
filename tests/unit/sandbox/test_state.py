"""The directory of a sandbox."""

from pathlib import Path

import pytest

from deviceshare_sandbox.binaries import Binaries
from deviceshare_sandbox.lifecycle import status, stop
from deviceshare_sandbox.reports import SandboxError
from deviceshare_sandbox.state import Layout, Options, ProcessState, SandboxPlan, SandboxState

BINARIES = Binaries("apiserver", "controller-manager", "scheduler", "kubectl", "etcd", "v1.20.2")
PLAN = SandboxPlan(Options(nodes=3, extender={"urlPrefix": "http://127.0.0.1:1"}), BINARIES)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A directory that doesn't exist yet."""
    return Layout(tmp_path / "sandbox")


def test_a_directory_is_held_by_one_sandbox_at_a_time(layout: Layout) -> None:
    """The second is told how to end the first, and can have it afterwards."""
    with layout.lock():
        assert layout.running()
        with pytest.raises(SandboxError, match="sandbox down --dir"):
            layout.lock()
    assert not layout.running()
    layout.lock().close()


def test_a_directory_that_was_never_used_holds_no_sandbox(layout: Layout) -> None:
    """Asking must not create it either."""
    assert not layout.running()
    assert not layout.directory.exists()


def test_the_plan_reaches_the_supervising_process_whole(layout: Layout) -> None:
    """It is all that the process knows."""
    with layout.lock():
        layout.prepare(PLAN)
    assert layout.plan() == PLAN


def test_a_start_removes_what_the_last_sandbox_left(layout: Layout) -> None:
    """A new etcd on old data would bring back yesterday's pods."""
    with layout.lock():
        layout.prepare(PLAN)
        layout.write_state(SandboxState(pid=1, ready=True))
        (layout.data / "etcd").mkdir()
        layout.prepare(PLAN)
    assert layout.state() is None
    assert list(layout.data.iterdir()) == []


def test_a_directory_of_something_else_is_refused(layout: Layout) -> None:
    """`--dir ~` must not cost anybody their data."""
    layout.directory.mkdir()
    (layout.directory / "data").mkdir()
    with layout.lock(), pytest.raises(SandboxError, match="something else"):
        layout.prepare(PLAN)
    assert (layout.directory / "data").exists()


def test_secrets_are_readable_by_their_owner_only(layout: Layout) -> None:
    """The admin's token lies in there."""
    with layout.lock():
        layout.prepare(PLAN)
    assert {path.stat().st_mode & 0o077 for path in (layout.directory, layout.pki, layout.kubeconfigs)} == {0}


def test_a_dead_sandbox_is_not_reported_as_running(layout: Layout) -> None:
    """After a kill -9 the last written state says ready; the lock knows better."""
    with layout.lock():
        layout.prepare(PLAN)
    process = ProcessState(name="etcd", pid=1, healthy=True)
    layout.write_state(SandboxState(pid=1, ready=True, processes=[process]))
    answer = status(layout.directory)
    assert (answer.ready, answer.processes) == (False, [])
    assert "sandbox up --dir" in answer.message
    assert not stop(layout.directory)
