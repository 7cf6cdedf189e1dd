"""The C library of the tests where the machine has no C compiler."""

from pathlib import Path

import pytest

from deviceshare_sandbox.nvml import build
from deviceshare_sandbox.reports import SandboxError


def program(directory: Path, name: str, text: str) -> None:
    """Puts a shell script on the path."""
    (directory / name).write_text(f"#!/bin/sh\n{text}\n")
    (directory / name).chmod(0o755)


def test_who_lacks_a_compiler_learns_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the machine doesn't let the tests install it."""
    program(tmp_path, "apt-get", "exit 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(SandboxError, match=r"Run this .*: sudo apt-get install --no-install-recommends gcc libc6-dev"):
        build(tmp_path)


def test_who_lacks_the_headers_learns_how_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler alone compiles nothing, and says why."""
    program(tmp_path, "gcc", "echo stdio.h: No such file or directory >&2; exit 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxError, match=r"(?s)stdio.h: No such file.*Run this .* libc6-dev"):
        build(tmp_path)
