"""Runs a Python module, and counts on request where it spends its processor time.

`python -m tests.benchmarks.sampled FILE MODULE ARGUMENT…`; SIGUSR1 begins, SIGUSR2 ends and writes the stacks to FILE,
a line each with its number, as flame graphs are drawn from. A sampler that looks from outside, such as py-spy, counts a
thread as running that waits for a processor, and on two cores each write to a socket lets its reader go first.
https://man7.org/linux/man-pages/man2/setitimer.2.html
"""

import runpy
import signal
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Final

SECONDS: Final = 0.002
"""Of processor time between two samples; the kernel's clock may have it be 4 ms."""


class Samples:
    """The stacks so far."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._stacks: Counter[str] = Counter()
        for number, handler in (
            (signal.SIGPROF, self._take),
            (signal.SIGUSR1, self._begin),
            (signal.SIGUSR2, self._end),
        ):
            signal.signal(number, handler)
            signal.siginterrupt(number, False)

    def _begin(self, _: int, frame: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_PROF, SECONDS, SECONDS)

    def _take(self, _: int, frame: FrameType | None) -> None:
        stack: list[str] = []
        while frame is not None:
            stack.append(f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})")
            frame = frame.f_back
        self._stacks[";".join(reversed(stack))] += 1

    def _end(self, _: int, frame: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        self._file.write_text("".join(f"{stack} {number}\n" for stack, number in self._stacks.items()))


if __name__ == "__main__":
    _, name, module, *arguments = sys.argv
    sys.argv = [module, *arguments]
    Samples(Path(name))
    runpy.run_module(module, run_name="__main__", alter_sys=True)
