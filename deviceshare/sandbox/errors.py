"""The error of the sandbox: what failed, and the command or setting that helps."""


class SandboxError(Exception):
    """The sandbox can't do what was asked; `str()` is meant to be shown to a person as it is."""

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(f"{problem}\n{remedy}" if remedy else problem)
