"""The root command, which imports a subcommand when it is named.

Shell completion is click's: `eval "$(_DEVICESHARE_COMPLETE=bash_source deviceshare)"`, likewise for zsh and fish
(https://click.palletsprojects.com/en/stable/shell-completion/).
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

import click

from deviceshare import __version__
from deviceshare.domain.objects.printable import printable_lines

_PACKAGES: Final = {"agent": "deviceshare.agent", "run": "deviceshare.run", "sandbox": "deviceshare_sandbox"}
_PARTIAL: Final = {name for name, package in _PACKAGES.items() if find_spec(package) is not None}
"""Commands with a package of their own, where it is: the wheel and the image have no sandbox, the single-file CLI none
of them.
"""

_COMMANDS: Final = _PARTIAL | {
    "doctor",
    "explain",
    "inspect",
    "plan",
    "rebind",
    "recover",
    "smi",
    "top",
    "turn",
}
"""Each `deviceshare.cli.NAME` holds the command NAME, `deviceshare_sandbox.cli` the sandbox."""

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

    After click's own recipe: https://click.palletsprojects.com/en/stable/complex/#lazily-loading-subcommands
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS.union(super().list_commands(ctx)))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "sandbox" and cmd_name not in _COMMANDS:
            raise click.UsageError(_NO_SANDBOX, ctx)
        if cmd_name not in _COMMANDS:
            return super().get_command(ctx, cmd_name)
        home = "deviceshare_sandbox.cli" if cmd_name == "sandbox" else f"deviceshare.cli.{cmd_name}"
        command = getattr(import_module(home), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggests commands that are not imported yet, too."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            raise click.NoSuchCommand(error.command_name, possibilities=self.list_commands(ctx), ctx=ctx) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Prints errors as answers are printed: without control characters (cli/output.py)."""
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            vars(error)["message"] = printable_lines(error.message)
            raise


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=f"""\b
Examples:{_SANDBOX_EXAMPLES if "sandbox" in _PARTIAL else ""}
  deviceshare inspect          who holds which devices, and which pods wait
  deviceshare explain pod NS/NAME
  deviceshare plan -f FILE     where manifests would land
  deviceshare top              what devices and processes do now
  deviceshare doctor           what is wrong in a cluster, with its cure{_RUN_EXAMPLE if "run" in _PARTIAL else ""}
\b
Shell completion, likewise with zsh_source and fish_source:
  eval "$(_DEVICESHARE_COMPLETE=bash_source deviceshare)\"""",
)
@click.version_option(__version__, prog_name="deviceshare")
def main() -> None:
    """Several Kubernetes pods share the same GPUs, on purpose and safely."""


def plugin() -> None:
    """The entry point of `kubectl deviceshare …`: kubectl runs the program kubectl-deviceshare that is on PATH.

    https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/
    """
    main(prog_name="kubectl deviceshare")


def complete_for_kubectl() -> None:
    """The entry point of `kubectl_complete-deviceshare`, which kubectl runs to complete `kubectl deviceshare …`."""
    from deviceshare.cli.kubectl_completion import candidates  # noqa: PLC0415 - only a shell's Tab needs it
    from deviceshare.cli.output import say_fields  # noqa: PLC0415

    for fields in candidates(main, sys.argv[1:]):
        say_fields(*fields)
