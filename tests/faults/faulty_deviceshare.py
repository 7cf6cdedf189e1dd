"""deviceshare with a tester's hand on its writes and its wall clock: `python faulty_deviceshare.py DIR run …`.

No code of the product knows of this. Each write to the API server has two boundaries: *before* it is sent, and *after*
the server has answered and before the answer is seen. Files in DIR:

- `visits`: a line for each boundary that was passed;
- `fault`, written by the tester: `{"point": …, "boundary": …, "signal": …}`. Who comes there first takes the file,
  leaves `taken` with its process id, and sends itself the signal;
- `clock`, written by the tester: seconds by which the wall clock is wrong. Monotonic clocks are right.
"""

import ast
import datetime as real
import json
import os
import signal
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import deviceshare
from deviceshare import timestamps
from deviceshare.certificates import keeper
from deviceshare.cli.main import main
from deviceshare.kube.connection import Connection
from deviceshare_sandbox.syscalls import die_with_parent

_ROOT = str(Path(deviceshare.__file__).parent) + os.sep
PASSED_THROUGH = ("kube/api.py", "kube/connection.py", "loops/replica/guarded_cluster.py", "loops/kinds.py")
"""Ways on which a write goes; who decided it is named instead."""
_HELPERS = frozenset(
    f"loops/{each}"
    for each in (
        "protocol/bind.py write_claims",
        "protocol/holders.py _write",
        "protocol/holders.py fence",
        "leader/releaser.py Releaser._write_finalizers",
        "leader/context.py ControllerContext.delete_unchanged",
    )
)
_WRITING = frozenset(
    {
        *("patch", "create", "delete", "bind", "apply", "evict", "annotate", "fence"),
        *("_write", "write_claims", "_write_finalizers", "delete_unchanged"),
    }
)


class Write(NamedTuple):
    """One write as a tester names it: PATCH nodedevices protocol/release.py _leave 2, the second write there."""

    method: str
    resource: str
    site: str

    def __str__(self) -> str:
        return " ".join(self)


def resource(path: str) -> str:
    """`pods/binding` of a request's path."""
    parts = path.split("?", maxsplit=1)[0].strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    if rest[0] == "namespaces" and len(rest) > 2:
        rest = rest[2:]
    return "/".join([rest[0], *rest[2:3]])


def site() -> str:
    """The innermost function of deviceshare on the stack that decided a write, and which of its writes it is."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        file, code = frame.f_code.co_filename, frame.f_code
        place = f"{file.removeprefix(_ROOT)} {code.co_qualname.partition('.<locals>')[0]}"
        passed = place.startswith(PASSED_THROUGH) or place in _HELPERS
        if file.startswith(_ROOT) and not passed:
            return place.removeprefix("loops/") + _which(file, code.co_name, frame.f_lineno)
        frame = frame.f_back
    return "nowhere"


def _which(file: str, function: str, line: int) -> str:
    """ " 2" for the second write of a function; "" for its only one."""
    writes = writes_in(file).get(function, [])
    found = [number for number, (first, last) in enumerate(writes, 1) if first <= line <= last]
    return f" {found[0]}" if found and len(writes) > 1 else ""


@cache
def writes_in(file: str) -> dict[str, list[tuple[int, int]]]:
    """By function the lines, first and last, of its calls that write to the API server."""
    found: dict[str, list[tuple[int, int]]] = {}
    for function in ast.walk(ast.parse(Path(file).read_text())):
        if isinstance(function, ast.AsyncFunctionDef):
            awaited = (each.value for each in ast.walk(function) if isinstance(each, ast.Await))
            calls = [each for each in awaited if isinstance(each, ast.Call) and _name(each.func) in _WRITING]
            lines = sorted((each.lineno, each.end_lineno or each.lineno) for each in calls)
            if lines:
                found[function.name] = lines
    return found


def _name(called: ast.expr) -> str:
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")


class Boundaries:
    """Notes each boundary of a write, and does there what the tester wants."""

    def __init__(self, directory: Path) -> None:
        self._fault, self._taken = directory / "fault", directory / "taken"
        self._visits = (directory / "visits").open("a", buffering=1)

    def reach(self, boundary: str, write: Write) -> None:
        """Called at each boundary; returns, unless the process ends here."""
        self._visits.write(f"{boundary} {write}\n")
        if not self._fault.exists():
            return
        with suppress(OSError, ValueError):  # another process was faster, or it is being written
            fault = json.loads(self._fault.read_text())
            if (fault["point"], fault["boundary"]) != (str(write), boundary):
                return
            mine = self._fault.with_name(f"taken-{os.getpid()}")
            self._fault.rename(mine)
            mine.write_text(str(os.getpid()))
            mine.rename(self._taken)
            os.kill(os.getpid(), fault["signal"])


def watch_writes(directory: Path) -> None:
    """Has every write from now on pass its two boundaries."""
    boundaries, send = Boundaries(directory), Connection.call

    async def call(self: Connection, method: str, path: str, **options: Any) -> bytes:
        if method == "GET":
            return await send(self, method, path, **options)
        write = Write(method, resource(path), site())
        boundaries.reach("before", write)
        answer = await send(self, method, path, **options)
        boundaries.reach("after", write)
        return answer

    Connection.call = call  # type: ignore[method-assign]


def bend_clock(directory: Path) -> None:
    """Has `time.time` and what deviceshare takes for the wall clock be wrong by what the file says."""
    file, true = directory / "clock", time.time

    def offset() -> float:
        try:
            return float(file.read_text() or 0)
        except (OSError, ValueError):
            return 0.0

    class BentDatetime(real.datetime):
        @classmethod
        def now(cls, tz: real.tzinfo | None = None) -> Any:
            return real.datetime.now(tz) + real.timedelta(seconds=offset())

    time.time = lambda: true() + offset()
    for module in (timestamps, keeper):
        module.datetime = BentDatetime  # type: ignore[attr-defined]


if __name__ == "__main__":
    die_with_parent(signal.SIGKILL)
    files = Path(sys.argv.pop(1))
    watch_writes(files)
    bend_clock(files)
    main()
