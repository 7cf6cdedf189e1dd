"""What a person types, where it needs no control plane."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from deviceshare.cli.main import main
from deviceshare_sandbox import Options, SandboxError, start
from deviceshare_sandbox.binaries import Binaries
from deviceshare_sandbox.reports import Progress


def test_status_of_no_sandbox_fails_and_says_how_to_start_one(tmp_path: Path) -> None:
    """Scripts look at the exit status, people at the text."""
    result = CliRunner().invoke(main, ["sandbox", "status", "--dir", str(tmp_path)])
    assert result.exit_code == 1
    assert "sandbox up --dir" in result.output


def test_status_as_json_has_the_same_shape_without_a_sandbox(tmp_path: Path) -> None:
    """A program needn't handle two shapes."""
    result = CliRunner().invoke(main, ["sandbox", "status", "-o", "json", "--dir", str(tmp_path)])
    assert result.exit_code == 1
    answer = json.loads(result.stdout)
    assert (answer["ready"], answer["processes"]) == (False, [])


def test_ending_no_sandbox_succeeds(tmp_path: Path) -> None:
    """`down` is what a clean-up script runs first and last."""
    result = CliRunner().invoke(main, ["sandbox", "down", "--dir", str(tmp_path)])
    assert result.exit_code == 0
    assert "No sandbox runs" in result.output


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--nodes", "-1"], "--nodes"),
        (["--devices", "many"], "--devices"),
        (["--resource", "gpu"], "--resource"),
        (["--resource", "nvidia.com/gpu=4"], "--resource"),
    ],
)
def test_a_wrong_option_is_named_before_anything_starts(tmp_path: Path, arguments: list[str], named: str) -> None:
    """Exit status 2, click's own for usage."""
    result = CliRunner().invoke(main, ["sandbox", "up", "--dir", str(tmp_path), *arguments])
    assert result.exit_code == 2
    assert f"Invalid value for '{named}'" in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_real_node_without_root_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is fetched or built first."""
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    result = CliRunner().invoke(main, ["sandbox", "up", "--real-node", "--dir", str(tmp_path)])
    assert result.exit_code == 1
    assert "needs Linux and root" in result.output
    assert list(tmp_path.iterdir()) == []


def test_real_and_simulated_nodes_do_not_mix() -> None:
    """Rather than that one of the two options is silently ignored."""
    result = CliRunner().invoke(main, ["sandbox", "up", "--real-node", "--nodes", "3"])
    assert result.exit_code == 2
    assert "leave --nodes out" in result.output


def test_an_image_needs_a_sandbox_to_be_loaded_into(tmp_path: Path) -> None:
    """With a text instead of a traceback."""
    archive = tmp_path / "image.tar"
    archive.touch()
    result = CliRunner().invoke(main, ["sandbox", "load", str(archive), "--dir", str(tmp_path / "none")])
    assert result.exit_code == 1
    assert "No sandbox has run" in result.output


def test_policies_that_the_release_lacks_are_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With both ways out."""
    old = Binaries("apiserver", "controller-manager", "scheduler", "kubectl", "etcd", "v1.35.1")
    monkeypatch.setattr("deviceshare_sandbox.binaries.find", lambda *_, **__: old)
    with pytest.raises(SandboxError, match=r"v1\.35\.1 has no policies that inject pods.*\n*.*KUBEBUILDER_ASSETS"):
        start(Options(admission="policies"), tmp_path, Progress())
