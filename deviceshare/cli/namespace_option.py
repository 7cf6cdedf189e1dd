"""The flag `--namespace` of commands that are about pods, and pods as words of a command name them."""

from collections.abc import Callable
from typing import Any

import click

from deviceshare.cli.cluster import Target
from deviceshare.cli.completion import complete_namespaces


def in_namespace(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a click command the flag, passed to it as `namespace`; None where that of the context is meant."""
    return click.option(
        "-n",
        "--namespace",
        metavar="NAME",
        shell_complete=complete_namespaces,
        help="Whose pods are meant; the namespace of the kubeconfig's context unless given.",
    )(command)


def pod_named(word: str, namespace: str | None, target: Target) -> tuple[str, str]:
    """Namespace and name of the pod that the word `NAME` or `NAMESPACE/NAME`, and the flag, name.

    Raises:
        UsageError: they contradict each other, or one is empty.
    """
    first, slash, second = word.partition("/")
    if slash and namespace not in (None, first):
        raise click.UsageError(f"{word} is not in the namespace {namespace} that --namespace names: leave one out.")
    within, name = (first, second) if slash else (namespace or target.namespace, first)
    if not within or not name or "/" in name:
        raise click.UsageError("Name the pod as NAME or NAMESPACE/NAME.")
    return within, name
