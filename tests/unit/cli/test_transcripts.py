"""What pages show of commands is what they say today, of recorded clusters (`deviceshare snapshot`) and of files.

    python -m tests.unit.cli.test_transcripts

writes the pages. Of tour.md everything is run on a real control plane: tests/controlplane/test_tour.py. The other
commands on these pages change a cluster or look at an installation; their own tests do that.
"""

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from deviceshare.cli.main import main

DOCS: Final = Path(__file__).parents[3] / "docs"
SCENES: Final = Path(__file__).parent / "scenes"
SHOWN: Final = re.compile(r"(?<=```console\n)\$ deviceshare ((?:inspect|explain|plan)\b.*)\n([^`]*)(?=```)")
PAGES: Final = {"commands.md": 4, "shares.md": 4}
"""How many transcripts each has."""
_AGE: Final = re.compile(r"\b(for|idle) \d+[smhd]\b")


def today(page: str) -> str:
    """The page with what its commands say today; an age counts as any other."""

    def run(shown: re.Match[str]) -> str:
        command, before = shown.groups()
        now = said(page, command)
        same = _AGE.sub(r"\1 1s", before) == _AGE.sub(r"\1 1s", now)
        return f"$ deviceshare {command}\n{before if same else now}"

    return SHOWN.sub(run, (DOCS / page).read_text())


def said(page: str, command: str) -> str:
    """What a pipe gets."""
    words = shlex.split(command)
    if words[0] != "plan":
        scene = "priority" if words[-1] == "urgent" else page.removesuffix(".md")
        words += ["--snapshot", f"{scene}.json"]
    before = Path.cwd()
    os.chdir(SCENES)
    try:
        answer = CliRunner().invoke(main, words)
    finally:
        os.chdir(before)
    assert answer.exit_code in (0, 3), answer.output
    return "".join(f"{line.rstrip()}\n" for line in answer.stdout.splitlines())


def transcripts(page: str) -> Iterator[str]:
    return (found[0] for found in SHOWN.findall((DOCS / page).read_text()))


@pytest.mark.parametrize(("page", "count"), PAGES.items())
def test_a_pages_transcripts_are_todays(page: str, count: int) -> None:
    """Each command that only looks is run."""
    assert len(list(transcripts(page))) == count
    assert (DOCS / page).read_text() == today(page), "run python -m tests.unit.cli.test_transcripts, and read its diff"


if __name__ == "__main__":
    for each in PAGES:
        (DOCS / each).write_text(today(each))
