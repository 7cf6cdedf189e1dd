"""The demo, as the README's first command runs it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deviceshare_sandbox import demo


@contextmanager
def demonstration(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """The demo in a process of its own, which makes its sandbox in `directory`."""
    command = [sys.executable, "-m", "deviceshare", "sandbox", "demo"]
    environment = {**os.environ, "TMPDIR": str(directory)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def left_behind(directory: Path) -> list[str]:
    """Files in the directory, and processes that know it."""
    files = [str(path) for path in directory.iterdir()]
    return files + [str(each) for each in Path("/proc").glob("[0-9]*/cmdline") if str(directory) in _read(each)]


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:  # It has ended meanwhile.
        return ""


def test_every_step_of_the_demo_holds(tmp_path: Path) -> None:
    """It exits 0 and leaves nothing behind."""
    with demonstration(tmp_path) as process:
        shown, _ = process.communicate(timeout=280)
    assert process.returncode == 0, shown
    assert shown.count("   ✓ ") == len(demo.STEPS)
    assert "Every step held." in shown
    assert left_behind(tmp_path) == []


def test_ctrl_c_ends_the_demo_and_everything_of_it(tmp_path: Path) -> None:
    """In the middle of the story."""
    with demonstration(tmp_path) as process:
        assert process.stdout is not None
        while "$ kubectl apply" not in (line := process.stdout.readline()):
            assert line, "the demo ended before it began"
        assert left_behind(tmp_path) != []
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
    assert process.returncode == 1
    assert left_behind(tmp_path) == []
