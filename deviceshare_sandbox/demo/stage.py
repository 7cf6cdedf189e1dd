"""The demo's console: runs kubectl commands, shows their output, and stops at the first surprise.

Every command that is shown is the command that is run, and what is shown below it is its own output.
"""

import shlex
import subprocess
import textwrap
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from rich.console import Console
from rich.text import Text

T = TypeVar("T")

WIDTH = 96
PATIENCE = 30.0
"""Seconds for anything to become true; a healthy sandbox needs two or three."""
_POLL_SECONDS = 0.1


class Surprise(Exception):
    """Something that a step relies on isn't so."""

    def __init__(self, expected: str, seen: str) -> None:
        super().__init__(f"expected {expected}, saw {seen}")
        self.expected = expected
        self.seen = seen


class StageCluster(Protocol):
    """What the stage needs of a Sandbox."""

    def kubectl(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]: ...


class Stage:
    """One cluster, and the console on which people watch it."""

    def __init__(self, cluster: StageCluster, console: Console) -> None:
        self._cluster = cluster
        self._console = console

    def kubectl(
        self, *arguments: str, manifest: str | None = None, file: str = "", fails: bool = False, grep: str = ""
    ) -> str:
        """Runs a command as a person would type it and shows both it and its answer; returns the answer.

        A `manifest` is shown as the `file` it would be kept in. Of the answer only the last line with `grep` counts.
        Raises Surprise when the command fails, or, if it `fails` by intent, when it succeeds.
        """
        shown = ["kubectl", *arguments, *(["-f", file] if manifest else [])]
        self.say(f"$ {shlex.join(shown)}{f' | grep {grep} | tail -1' if grep else ''}", "bold cyan")
        answer = self._run(*arguments, *(["-f", "-"] if manifest else []), manifest=manifest, fails=fails)
        if grep:
            answer = [line.strip() for line in answer.splitlines() if grep in line][-1]
        self.say(answer.rstrip())
        return answer

    def ask(self, *arguments: str) -> str:
        """Runs a command behind the scenes; returns its answer or raises Surprise."""
        return self._run(*arguments, manifest=None, fails=False)

    def eventually(self, expected: str, look: Callable[[], T], fault: Callable[[T], str]) -> T:
        """Looks until there is no fault, and returns what was seen last; raises Surprise after `PATIENCE` seconds."""
        deadline = time.monotonic() + PATIENCE
        while True:
            seen = look()
            wrong = fault(seen)
            if not wrong:
                return seen
            if time.monotonic() > deadline:
                raise Surprise(expected, f"{wrong} (still so after {PATIENCE:.0f} s)")
            time.sleep(_POLL_SECONDS)

    def expect(self, truth: object, expected: str, seen: str) -> None:
        """Raises Surprise unless it is true."""
        if not truth:
            raise Surprise(expected, seen)

    def title(self, number: int, text: str) -> None:
        """Begins a step."""
        self._console.print()
        self._console.print(Text(f"{number}. {text}", "bold"), soft_wrap=True)

    def held(self, conclusion: str) -> None:
        """Ends a step that went as it should."""
        self._print(f"✓ {conclusion}", "green", hang=2)

    def say(self, text: str, style: str = "") -> None:
        """Prints something in the course of a step; long lines are broken at words."""
        for line in text.splitlines():
            self._print(line, style, hang=4)

    def _print(self, line: str, style: str, *, hang: int) -> None:
        # A table's spaces are its columns, so only what is too long is touched.
        fits = len(line) <= WIDTH
        lines = [line] if fits else textwrap.wrap(line, WIDTH, subsequent_indent=" " * hang, break_on_hyphens=False)
        for part in lines:
            self._console.print(Text(f"   {part}".rstrip(), style), soft_wrap=True)

    def _run(self, *arguments: str, manifest: str | None, fails: bool) -> str:
        command = shlex.join(["kubectl", *arguments])
        try:
            done = self._cluster.kubectl(*arguments, stdin=manifest)
        except subprocess.TimeoutExpired as error:
            raise Surprise(f"{command} to end", f"nothing for {error.timeout:.0f} s") from error
        said = done.stdout + done.stderr
        if (done.returncode != 0) != fails:
            raise Surprise(f"{command} to {'be refused' if fails else 'succeed'}", said.strip())
        return said
