"""The root command, which imports a subcommand when it is named.

Shell completion is click's: `eval "$(_DEVICESHARE_COMPLETE=bash_source deviceshare)"`, likewise for zsh and fish
(https://click.palletsprojects.com/en/stable/shell-completion/).
"""

import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

import click

from deviceshare import __version__
from deviceshare.domain.wording import printable_lines

_OF_PACKAGES: Final = {
    "agent": ("deviceshare.agent", "deviceshare.cli.agent"),
    "run": ("deviceshare.run", "deviceshare.cli.run"),
    "sandbox": ("deviceshare_sandbox", "deviceshare_sandbox.cli"),
}
"""Commands with packages, which may be missing: wheel and image have no sandbox, the single-file CLI none of them."""
_OURS: Final = ("doctor", "explain", "inspect", "plan", "rebind", "recover", "resize", "smi", "snapshot", "top", "turn")
_COMMANDS: Final = {name: f"deviceshare.cli.{name}" for name in _OURS} | {
    name: home for name, (package, home) in _OF_PACKAGES.items() if find_spec(package)
}
"""The module that holds the command, under its name."""

_NO_SANDBOX: Final = (
    "The sandbox is a package of its own, which isn't installed here. In a checkout of deviceshare, run "
    "./bootstrap deviceshare sandbox, or install it into this environment: pip install ./deviceshare_sandbox"
)

_SANDBOX_EXAMPLES: Final = """
  deviceshare sandbox demo     watch pods share GPUs, in half a minute
  deviceshare sandbox up       a local cluster to try it on"""

_RUN_EXAMPLE: Final = """
  deviceshare run --help       how to run it in a cluster"""


class LazyGroup(click.Group):
    """Imports a command's module when the command is named: `run` must not load the sandbox, nor the sandbox `run`.
    https://click.palletsprojects.com/en/stable/complex/#lazily-loading-subcommands
    """

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "sandbox" and cmd_name not in _COMMANDS:
            raise click.UsageError(_NO_SANDBOX, ctx)
        if cmd_name not in _COMMANDS:
            return None
        command = getattr(import_module(_COMMANDS[cmd_name]), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Prints errors as answers are printed: without control characters (cli/output.py)."""
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            vars(error)["message"] = printable_lines(error.message)
            raise


@click.group(
    cls=LazyGroup,
    commands={name: click.Command(name) for name in _COMMANDS},  # stand-ins, by whose names click lists and suggests
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=f"""\b
Examples:{_SANDBOX_EXAMPLES if "sandbox" in _COMMANDS else ""}
  deviceshare inspect          who holds which devices, and which pods wait
  deviceshare explain pod NS/NAME
  deviceshare plan -f FILE     where manifests would land
  deviceshare snapshot -f FILE what explain and plan depend on, for others to look at
  deviceshare top              what devices and processes do now
  deviceshare doctor           what is wrong in a cluster, with its cure{_RUN_EXAMPLE if "run" in _COMMANDS else ""}

\b
Shell completion, likewise with zsh_source and fish_source:
  eval "$(_DEVICESHARE_COMPLETE=bash_source deviceshare)\"""",
)
@click.version_option(__version__, prog_name="deviceshare")
def main() -> None:
    """Several Kubernetes pods share the same GPUs, on purpose and safely."""


def plugin() -> None:
    """Entry point of `kubectl deviceshare …`: https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/"""
    main(prog_name="kubectl deviceshare")


def complete_for_kubectl() -> None:
    """The entry point of `kubectl_complete-deviceshare`, which kubectl runs to complete `kubectl deviceshare …`.

    Its arguments are the words so far, the last of them incomplete or empty. It prints a candidate a line, with its
    description behind a tab, and last a directive after a colon, as cobra's programs do.
    https://github.com/kubernetes/kubernetes/pull/105867
    """
    from deviceshare.cli.output import say_fields  # noqa: PLC0415

    for fields in candidates(main, sys.argv[1:]):
        say_fields(*fields)


def candidates(command: click.Command, words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The lines to print for these words, each in its fields."""
    from click.shell_completion import ShellComplete  # noqa: PLC0415 - only a shell's Tab needs it

    *before, incomplete = words or [""]
    found = ShellComplete(command, {}, "kubectl deviceshare", "").get_completions(before, incomplete)
    for each in found:
        if each.type == "plain":
            yield (str(each.value), each.help) if each.help else (str(each.value),)
    types = {each.type for each in found}
    # https://github.com/spf13/cobra/blob/main/completions.go (ShellCompDirective): files, directories, or neither.
    yield (":0" if "file" in types else ":16" if "dir" in types else ":4",)
