"""Applies each mutation to a copy of the tree, runs the tests that must notice, and prints a table.

Exits with 1 if one survives, and if the tests fail without any. Arguments choose mutations by a part of their rule.
`--generate` first makes mutations of its own instead (generated.py).
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.mutants import ROOT, Mutation, generated, mutations

SECONDS = 300
PASSED, FAILED = 0, 1
"""pytest's exit codes; every other means that the tests did not run."""


def main(words: Sequence[str]) -> int:
    """Runs those whose rule has one of the words; all without words."""
    chosen = [each for each in mutations() if not words or any(word in each.rule for word in words)]
    if not chosen:
        print(f"No rule has any of these words: {', '.join(words)}")
        return 1
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder)
        for part in ("deviceshare", "deviceshare_sandbox", "tests", "manifests", "examples"):
            shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", tree)
        before = _run(tree, sorted({test for each in chosen for test in each.tests}))
        if before.returncode != PASSED:
            print(before.stdout)
            print("The tests don't pass as the code is; nothing was tried.")
            return 1
        print(f"| {'rule taken away':<90} | noticed by")
        survivors = [each.rule for each in chosen if not _noticed(tree, each)]
    print(
        f"{len(chosen) - len(survivors)} of {len(chosen)} were noticed."
        + "".join(f"\nSurvived: {s}" for s in survivors)
    )
    return 1 if survivors else 0


def _noticed(tree: Path, mutation: Mutation) -> bool:
    """Whether every test named fails with it; prints its row."""
    path = tree / mutation.file
    source = path.read_text()
    path.write_text(mutation.applied(source))
    try:
        results = {test: _run(tree, [test]) for test in mutation.tests}
    finally:
        path.write_text(source)
    for test, result in results.items():
        if result.returncode not in (PASSED, FAILED):
            print(result.stdout)
            raise SystemExit(f"{mutation.rule}: {test} did not run")
    noticed = bool(results) and all(result.returncode == FAILED for result in results.values())
    tests = ", ".join(test.rpartition("::")[2] for test in mutation.tests)
    print(f"| {mutation.rule:<90} | {tests if noticed else 'nobody'}", flush=True)
    return noticed


def _run(tree: Path, tests: Sequence[str]) -> subprocess.CompletedProcess[str]:
    # Before the installed package on sys.path; no bytecode, whose age in seconds can't tell two mutations apart.
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "PROTOCOL_EXAMPLES": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header"]
    paths = [f"tests/unit/{test}" for test in tests]
    return subprocess.run(
        [*command, *paths], cwd=tree, env=environment, text=True, capture_output=True, timeout=SECONDS, check=False
    )


if __name__ == "__main__":
    sys.exit(generated.main(sys.argv[2:]) if sys.argv[1:2] == ["--generate"] else main(sys.argv[1:]))
