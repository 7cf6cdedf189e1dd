"""kubectl's completion of its plugins: `kubectl deviceshare ex<TAB>` runs the program kubectl_complete-deviceshare.

Its arguments are the words so far, the last of them incomplete or empty. It prints a candidate a line, with its
description behind a tab, and last a directive after a colon, as cobra's programs do.
https://github.com/kubernetes/kubernetes/pull/105867
https://github.com/spf13/cobra/blob/main/completions.go (ShellCompDirective)
"""

from collections.abc import Iterator, Sequence
from typing import Final

import click
from click.shell_completion import CompletionItem, ShellComplete

FILES: Final = 0
NO_FILES: Final = 4
DIRECTORIES: Final = 16


def candidates(command: click.Command, words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The lines to print for these words, each in its fields."""
    *before, incomplete = words or [""]
    found = ShellComplete(command, {}, "kubectl deviceshare", "").get_completions(before, incomplete)
    for each in found:
        if each.type == "plain":
            yield (str(each.value), each.help) if each.help else (str(each.value),)
    yield (f":{_directive(found)}",)


def _directive(found: Sequence[CompletionItem]) -> int:
    types = {each.type for each in found}
    return FILES if "file" in types else DIRECTORIES if "dir" in types else NO_FILES
