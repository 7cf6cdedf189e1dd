"""docs/tour.md, command by command: what a newcomer reads is what a newcomer gets."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from deviceshare_sandbox import binaries
from deviceshare_sandbox.reports import Progress
from tests.kubernetes_versions import before

pytestmark = before(21)  # the page shows what kubectl and the API server of 1.20.2 say
CHECKOUT: Final = Path(__file__).parents[2]
FOLDER: Final = "/tmp/tour"
"""The page's; the test's own takes its place."""
LOOKS: Final = re.compile(r"kubectl get |deviceshare (inspect|explain) ")
SECONDS: Final = 30.0
"""In which the cluster becomes what the page shows."""
CHANGING: Final = (
    (re.compile(r"\b\d+(\.\d+)?(ms| ?s|m)\b"), "AGE"),
    (re.compile(r"\bmulti-gpu-(preprocess-)?[a-z0-9-]*[a-z0-9]{5}\b"), "POD"),
    (re.compile(r"127\.0\.0\.1:\d+"), "ADDRESS"),
    (re.compile(r"  +"), "  "),
)


class Step(NamedTuple):
    command: str
    shown: str


def steps(page: str) -> Iterator[Step]:
    """Each command, which may take several lines, with what the page shows of its output."""
    for block in re.findall(r"```console\n(.*?)```", page, re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = part.splitlines(keepends=True)
            end = next(end for end in range(1, len(lines) + 1) if _whole("".join(lines[:end])))
            yield Step("".join(lines[:end]).rstrip("\n"), "".join(lines[end:]))


def _whole(command: str) -> bool:
    """Whether a shell would wait for no further line."""
    done = subprocess.run(["bash", "-n", "-c", command], capture_output=True, text=True, check=False)
    return not done.stderr


NOISE = re.compile(r"…|: AGE$|^Warning: SharedDeviceGroup '\w+' doesn't exist yet")
"""Progress, and what a webhook says on a busy machine of a group that is created a moment before its pod."""


def stable(text: str) -> list[str]:
    """Without what differs each time: ages, random names, ports; and how long columns are. Noise isn't compared."""
    for pattern, name in CHANGING:
        text = pattern.sub(name, text)
    return [line.rstrip() for line in text.splitlines() if not NOISE.search(line)]


class Shell:
    """Runs the page's commands in a folder of the test's own, and says what they said in the page's words."""

    def __init__(self, folder: Path, kubectl: Path) -> None:
        self._own = str(folder / "tour")
        program = folder / "deviceshare"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m deviceshare "$@"\n')
        program.chmod(0o755)
        path = f"{folder}:{kubectl.parent}:{os.environ['PATH']}"
        self._environment = {**os.environ, "PATH": path, "KUBECONFIG": f"{self._own}/kubeconfig"}
        self.swapped = False
        """Whether kube-scheduler's dice put the first group on node-2: then each node has the other's name."""

    def run(self, command: str) -> str:
        done = subprocess.run(
            ["bash", "-c", f"exec 2>&1\n{command.replace(FOLDER, self._own)}"],
            cwd=CHECKOUT,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        said = done.stdout.replace(self._own, FOLDER)
        others = {"node-1": "node-2", "node-2": "node-1"}
        return re.sub(r"\bnode-[12]\b", lambda name: others[name[0]], said) if self.swapped else said


def test_every_command_of_the_tour_shows_what_the_page_shows(tmp_path: Path) -> None:
    """Those that look are repeated until it is so; the others run once."""
    shell = Shell(tmp_path, Path(binaries.find(Progress(), node=False).kubectl))
    found = list(steps((CHECKOUT / "docs" / "tour.md").read_text()))
    assert len(found) > 20
    try:
        for command, shown in found:
            end = time.monotonic() + SECONDS
            said = shell.run(command)
            while stable(said) != stable(shown) and LOOKS.match(command) and time.monotonic() < end:
                time.sleep(0.2)
                shell.swapped |= "multi-gpu" in said and "node-2" in said and "node-1" not in said
                said = shell.run(command)
            order = sorted if shell.swapped else list
            assert order(stable(said)) == order(stable(shown)), command
    finally:
        shell.run(f"deviceshare sandbox down --dir {FOLDER}")


def test_the_tour_in_chinese_shows_the_same() -> None:
    """Only its words are others."""
    pages = [(CHECKOUT / "docs" / name).read_text() for name in ("tour.md", "tour.zh-CN.md")]
    english, chinese = (list(steps(page)) for page in pages)
    assert english == chinese
