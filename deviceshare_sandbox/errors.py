"""The error of the sandbox: what failed, and the command or setting that helps."""

from pathlib import Path

_LINES = 15


class SandboxError(Exception):
    """The sandbox can't do what was asked; `str()` is meant to be shown to a person as it is."""

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(f"{problem}\n{remedy}" if remedy else problem)


def tail(log: Path) -> str:
    """The last lines of a log, indented, for an error's text; "" where there is none."""
    lines = log.read_text(errors="replace").splitlines()[-_LINES:] if log.exists() else []
    return "\n".join(f"    {line}" for line in lines)
