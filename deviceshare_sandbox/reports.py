"""What a sandbox tells people: the progress of a long step, and the error that ends it.

A build takes minutes. Someone who sees nothing for minutes presses Ctrl-C, and a CI system that sees nothing kills the
job.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import Progress as RichProgress
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

_TAIL_LINES = 15


class SandboxError(Exception):
    """The sandbox can't do what was asked; `str()` is meant to be shown to a person as it is."""

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(f"{problem}\n{remedy}" if remedy else problem)


def tail(log: Path) -> str:
    """The last lines of a log, indented, for an error's text; "" where there is none."""
    lines = log.read_text(errors="replace").splitlines()[-_TAIL_LINES:] if log.exists() else []
    return "\n".join(f"    {line}" for line in lines)


_STILL_ALIVE_SECONDS = 30.0


class Progress:
    """Reports stages to a console, by default the terminal's standard error, so that stdout stays for results."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)

    def note(self, text: str) -> None:
        """Prints one line that stays."""
        self._console.print(text, markup=False, soft_wrap=True)

    @contextmanager
    def stage(self, title: str) -> Iterator[None]:
        """Shows `title` and the elapsed time while the block runs, and how long it took once it succeeded."""
        started = time.monotonic()
        with self._spinner(title) if self._console.is_terminal else self._lines(title):
            yield
        self.note(f"{title}: {time.monotonic() - started:.1f} s")

    @contextmanager
    def _spinner(self, title: str) -> Iterator[None]:
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        with RichProgress(*columns, console=self._console, transient=True) as bar:
            bar.add_task(title, total=None)
            yield

    @contextmanager
    def _lines(self, title: str) -> Iterator[None]:
        self.note(f"{title} …")
        finished = threading.Event()

        def say_still_alive() -> None:
            elapsed = 0.0
            while not finished.wait(_STILL_ALIVE_SECONDS):
                elapsed += _STILL_ALIVE_SECONDS
                self.note(f"{title} … {elapsed:.0f} s so far")

        reporter = threading.Thread(target=say_still_alive, name="progress", daemon=True)
        reporter.start()
        try:
            yield
        finally:
            finished.set()
            reporter.join()
