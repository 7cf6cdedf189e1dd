"""Directories that are made for a node, and only those, go again."""

from pathlib import Path

import pytest

from deviceshare_sandbox import machine
from deviceshare_sandbox.binaries import Binaries
from deviceshare_sandbox.state import Layout, Options, SandboxPlan


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """A prepared sandbox; what a node's programs have built in lies under `tmp_path/machine`."""
    directory = tmp_path / "machine"
    monkeypatch.setattr(machine, "_VOLATILE", (f"{directory}/run/runtime",))
    monkeypatch.setattr(machine, "_KEPT", {f"{directory}/lib/kubelet": "data/kubelet"})
    (directory / "lib").mkdir(parents=True)
    layout = Layout(tmp_path / "sandbox")
    with layout.lock():
        layout.prepare(SandboxPlan(Options(), Binaries("", "", "", "", "", "v1.20.2")))
    return layout


def test_only_what_was_made_is_removed(layout: Layout, tmp_path: Path) -> None:
    """`lib` was there before."""
    machine.create_mount_points(layout)
    assert (tmp_path / "machine/run/runtime").is_dir()
    assert (tmp_path / "machine/lib/kubelet").is_dir()
    machine.remove_mount_points(layout)
    assert list((tmp_path / "machine").rglob("*")) == [tmp_path / "machine/lib"]


def test_what_somebody_put_there_stays(layout: Layout, tmp_path: Path) -> None:
    """Another runtime may have started meanwhile."""
    machine.create_mount_points(layout)
    (tmp_path / "machine/run/runtime/socket").touch()
    machine.remove_mount_points(layout)
    machine.remove_mount_points(layout)
    assert (tmp_path / "machine/run/runtime/socket").exists()
    assert not (tmp_path / "machine/lib/kubelet").exists()
