"""Mutants that nobody listed: every condition of the claim protocol, and of what the leader releases by, turned round.

Each `if`, `elif`, `while`, conditional expression and filter of a comprehension is negated, and forced to be true and
to be false, one at a time. The tests that reach its line decide, the module's own first; those of random histories draw
`HISTORIES` examples. A survivor is a gap, or stands in harmless.toml with the reason why it can't matter. Tests
that don't end have noticed, too; they are counted apart, as one may only be slow.

Results are kept in `--results`, so that a run that was stopped goes on where it was; `--only` takes a part of a path.
"""

import argparse
import ast
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import Final, NamedTuple

import msgspec
from coverage import CoverageData

from tests.mutants import ROOT

LEADER: Final = ("releaser", "ledgers", "rebinder")
TESTS: Final = "tests/unit/loops"
HISTORIES: Final = "30"
SECONDS: Final = 400
HARMLESS: Final = Path(__file__).with_name("harmless.toml")
NOTICED, SURVIVED, UNREACHED, NO_END = "noticed", "survived", "no test reaches it", "no end"


class Mutant(NamedTuple):
    """One condition, replaced."""

    file: str
    line: int
    condition: str
    becomes: str
    start: int
    end: int
    """Where the condition stands, in bytes of the source."""

    @property
    def key(self) -> str:
        """The same as long as the file is."""
        digest = hashlib.sha256((ROOT / self.file).read_bytes()).hexdigest()[:8]
        return f"{self.file}@{digest}:{self.start}:{self.becomes}"

    def applied(self, source: bytes) -> bytes:
        new = f"not ({self.condition})" if self.becomes == "not" else self.becomes
        return source[: self.start] + f"({new})".encode() + source[self.end :]


def files() -> list[str]:
    """Those whose conditions are turned around."""
    loops = ROOT / "deviceshare/loops"
    paths = [*sorted((loops / "protocol").glob("*.py")), *(loops / "leader" / f"{name}.py" for name in LEADER)]
    return [str(path.relative_to(ROOT)) for path in paths]


def mutants(file: str) -> Iterator[Mutant]:
    """All of one file."""
    source = (ROOT / file).read_bytes()
    begins = [0]
    for line in source.splitlines(keepends=True):
        begins.append(begins[-1] + len(line))
    for node in ast.walk(ast.parse(source)):
        tests: list[ast.expr] = []
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            tests = [node.test]
        elif isinstance(node, ast.comprehension):
            tests = node.ifs
        for test in tests:
            start = begins[test.lineno - 1] + test.col_offset
            end = begins[(test.end_lineno or test.lineno) - 1] + (test.end_col_offset or 0)
            text = source[start:end].decode()
            named = any(isinstance(part, ast.NamedExpr) for part in ast.walk(test))  # whose names are used behind it
            for becomes in ("not",) if named else ("not", "True", "False"):
                if text != becomes:
                    yield Mutant(file, test.lineno, text, becomes, start, end)


def harmless() -> dict[tuple[str, str, str], str]:
    """By file, condition and what it becomes: why it can't matter."""
    rows = tomllib.loads(HARMLESS.read_text()).get("harmless", []) if HARMLESS.exists() else []
    return {(row["file"], row["condition"], row["becomes"]): row["reason"] for row in rows}


def main(arguments: Sequence[str]) -> int:
    """Runs them; exits with 1 where one survives that isn't known to be harmless."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants --generate", description=__doc__)
    parser.add_argument("--only", action="append", default=[], help="a part of the path of a file")
    parser.add_argument("--results", type=Path, default=Path(tempfile.gettempdir()) / "deviceshare-mutants.jsonl")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutants tried at a time")
    chosen = parser.parse_args(arguments)
    every = [m for f in files() if not chosen.only or any(o in f for o in chosen.only) for m in mutants(f)]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        runner = _Runner([_copy(Path(folder) / str(job)) for job in range(chosen.jobs)], chosen.results)
        with ThreadPoolExecutor(chosen.jobs) as pool:
            outcomes = list(pool.map(runner.outcome, every))
    survivors = [mutant for mutant, outcome in zip(every, outcomes, strict=True) if outcome in {SURVIVED, UNREACHED}]
    reasons = harmless()
    left = [each for each in survivors if (each.file, each.condition, each.becomes) not in reasons]
    noticed, harmless_ones = len(every) - len(survivors), len(survivors) - len(left)
    endless = outcomes.count(NO_END)
    print(f"{noticed} of {len(every)} were noticed, {endless} of them by no end; {harmless_ones} can't matter.")
    return 1 if left else 0


def _copy(tree: Path) -> Path:
    for part in ("deviceshare", "deviceshare_sandbox", "tests", "manifests", "examples"):
        shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tree)
    return tree


class _Reach:
    """Which tests reach which line, as a run of all of them says once for the same code."""

    def __init__(self, tree: Path, results: Path) -> None:
        sources = sorted(path for part in ("deviceshare", TESTS) for path in (ROOT / part).rglob("*.py"))
        digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:8]
        path = results.with_suffix(f".{digest}.coverage").resolve()
        if not path.exists():
            _run(tree, [TESTS], "--cov=deviceshare/loops", "--cov-context=test", "--cov-report=", data=path)
        self._data = CoverageData(str(path))
        self._data.read()

    def tests(self, file: str, line: int) -> list[str]:
        measured = next((path for path in self._data.measured_files() if path.endswith(file)), file)
        contexts = self._data.contexts_by_lineno(measured).get(line, [])
        found = {context.partition("[")[0].partition("|")[0] for context in contexts if "::" in context}
        own = f"test_{Path(file).stem}"
        return sorted(found, key=lambda test: ("_protocol.py" in test, own not in test, test))


class _Runner:
    """Tries mutants in trees of its own, one at a time in each."""

    def __init__(self, trees: Sequence[Path], results: Path) -> None:
        self._trees: SimpleQueue[Path] = SimpleQueue()
        self._results = results
        self._reach = _Reach(trees[0], results)
        self._lock = Lock()
        lines = results.read_text().splitlines() if results.exists() else []
        self._known: dict[str, str] = dict(msgspec.json.decode(line) for line in lines)
        for tree in trees:
            self._trees.put(tree)

    def outcome(self, mutant: Mutant) -> str:
        """What became of it, now or in a run before; prints its row."""
        found = self._known.get(mutant.key) or self._tried(mutant)
        with self._lock:
            if mutant.key not in self._known:
                with self._results.open("ab") as file:
                    file.write(msgspec.json.encode((mutant.key, found)) + b"\n")
            where, text = f"{mutant.file}:{mutant.line}", " ".join(mutant.condition.split())
            print(f"| {found:<18} | {mutant.becomes:<5} | {where:<52} | {text}", flush=True)
        return found

    def _tried(self, mutant: Mutant) -> str:
        with self._lock:
            tests = self._reach.tests(mutant.file, mutant.line)
        if not tests:
            return UNREACHED
        tree = self._trees.get()
        path = tree / mutant.file
        source = path.read_bytes()
        path.write_bytes(mutant.applied(source))
        try:
            result = _run(tree, tests)
        except subprocess.TimeoutExpired:
            return NO_END
        finally:
            path.write_bytes(source)
            self._trees.put(tree)
        if result.returncode not in (0, 1):
            raise RuntimeError(f"{mutant}: the tests did not run\n{result.stdout}{result.stderr}")
        return NOTICED if result.returncode else SURVIVED


def _run(tree: Path, tests: Sequence[str], *options: str, data: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PROTOCOL_EXAMPLES": HISTORIES,
        "COVERAGE_FILE": str(data or tree / ".coverage"),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header", *options, *tests]
    seconds = None if data else SECONDS
    return subprocess.run(
        command, cwd=tree, env=environment, text=True, capture_output=True, timeout=seconds, check=False
    )
