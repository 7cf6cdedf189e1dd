"""The benchmarks, each by its module's name.

    python -m tests.benchmarks [NAME] [--help]

`tox run -e benchmarks -- NAME …` is the same in an environment of its own.
"""

import importlib
import pkgutil

import click

from tests import benchmarks


class Benchmarks(click.Group):
    """Every module of the package that has a command `main`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        names = sorted(module.name for module in pkgutil.iter_modules(benchmarks.__path__) if module.name[0] != "_")
        return [name for name in names if _command(name)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return _command(cmd_name) if cmd_name in self.list_commands(ctx) else None


def _command(name: str) -> click.Command | None:
    found = getattr(importlib.import_module(f"{benchmarks.__name__}.{name}"), "main", None)
    return found if isinstance(found, click.Command) else None


@click.group(cls=Benchmarks, help=__doc__)
def main() -> None:
    pass


if __name__ == "__main__":
    main(prog_name="python -m tests.benchmarks")
