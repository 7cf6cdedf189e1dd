"""Parameters that commands share: which cluster, which namespace, and names that the cluster knows.

Such names are completed by the shell, and suggested for those that don't exist. Completion is asked at each press of a
key, so it is short of time, and silent where it can't know.
https://click.palletsprojects.com/en/stable/shell-completion/#custom-type-completion
"""

import functools
import io
import os
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, suppress
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from deviceshare.cli.cluster import CannotAsk, Target
from deviceshare.domain import contract
from deviceshare.domain.objects.object_decoder import NamedObject
from deviceshare.domain.wording import listed
from deviceshare.kube import kubeconfig
from deviceshare.loops.ports import ApiError, Cluster, Kind, NotFound

T = TypeVar("T")

SECONDS: Final = 2.0
"""For the cluster's answer, after which nothing is offered."""
MOST: Final = 3
MOST_COMPARED: Final = 5_000
"""Each comparison takes some microseconds."""

Command = Callable[..., Any]
Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def _target(ctx: click.Context) -> Target:
    return Target(ctx.params.get("kubeconfig") or os.environ.get("KUBECONFIG"), ctx.params.get("context"))


def completing(kind: Kind[Any]) -> Complete:
    """Completes names of the kind; if it has namespaces, of the one that the word, the flag or the context names."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        within, slash, _name = incomplete.partition("/") if kind.namespaced else ("", "", incomplete)
        prefix = within + slash if slash else ""
        with redirect_stderr(io.StringIO()):
            try:
                import_module("deviceshare.kube.api")  # a slow import is not the cluster's delay
                target = _target(ctx)
                if kind.namespaced and not slash:
                    within = ctx.params.get("namespace") or target.namespace
                found = target.ask(lambda api: api.list(kind, namespace=within), seconds=SECONDS)
            except Exception:  # noqa: BLE001 - whatever it is, a shell that completes has no place to say it
                return []
        return sorted(name for each in found if (name := prefix + each.metadata.name).startswith(incomplete))

    return complete


_OURS: Final = f"{contract.API_GROUP}/{contract.API_VERSION}"
complete_groups: Final = completing(
    Kind(_OURS, contract.GROUP_KIND, "shareddevicegroups", NamedObject, namespaced=False)
)
complete_nodes: Final = completing(
    Kind(_OURS, contract.NODE_DEVICES_KIND, "nodedevices", NamedObject, namespaced=False)
)
"""Of shared nodes, which have a NodeDevices of their name."""
complete_namespaces: Final = completing(Kind("v1", "Namespace", "namespaces", NamedObject, namespaced=False))
complete_pods: Final = completing(Kind("v1", "Pod", "pods", NamedObject, namespaced=True))


def complete_group_or_pod(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Groups, and after the word `pod` pods."""
    before = ctx.params.get(parameter.name or "") or ()
    if tuple(before) == ("pod",):
        return complete_pods(ctx, parameter, incomplete)
    pod = ["pod"] if "pod".startswith(incomplete) else []
    return [] if before else [*pod, *complete_groups(ctx, parameter, incomplete)]


def complete_contexts(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Names of the kubeconfig's contexts."""
    names: list[str] = []
    with suppress(CannotAsk):
        names = sorted(kubeconfig.load(_target(ctx).files or "").contexts)
    return [name for name in names if name.startswith(incomplete)]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence that names the nearest of the known names, or ""."""
    lower = {each.lower(): each for each in sorted(known)[:MOST_COMPARED]}
    near = [lower[each] for each in get_close_matches(name.lower(), lower, n=MOST)]
    return f". Did you mean {listed(near, link='or')}?" if near else ""


async def no_such(
    api: Cluster, kind: Kind[Any], name: str, namespace: str = "", missing: str = ""
) -> click.ClickException:
    """What is told who names an object that isn't there: `missing`, or how to list those of its namespace.

    The nearest names are told, too, unless they can't be listed.
    """
    noun = "pod" if kind.kind == "Pod" else kind.kind
    text = missing or f"There is no {noun} {namespace}/{name}; see them with kubectl get {kind.plural} -n {namespace}"
    with suppress(ApiError):
        text += did_you_mean(name, [each.metadata.name for each in await api.list(kind, namespace=namespace)])
    return click.ClickException(text)


async def named_object(api: Cluster, kind: Kind[T], name: str, namespace: str = "", missing: str = "") -> T:
    """The object that a person names. Raises ClickException, as `no_such` words it, where there is none."""
    try:
        return await api.get(kind, name, namespace)
    except NotFound:
        raise await no_such(api, kind, name, namespace, missing) from None


def on_cluster(command: Command) -> Command:
    """Gives a click command `--kubeconfig` and `--context`, and passes both to it as `target`."""

    @functools.wraps(command)
    def with_target(*args: Any, kubeconfig: str | None, context: str | None, **kwargs: Any) -> Any:
        return command(*args, target=Target(kubeconfig, context), **kwargs)

    file = click.option(
        "--kubeconfig",
        envvar="KUBECONFIG",
        show_envvar=True,
        metavar="FILE",
        help="Which cluster; ~/.kube/config unless given, and inside a pod its own cluster.",
    )
    chosen = click.option(
        "--context",
        metavar="NAME",
        shell_complete=complete_contexts,
        help="Which of the kubeconfig's contexts; its current one unless given.",
    )
    return file(chosen(with_target))


on_snapshot: Final = click.option(
    "--snapshot",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="What deviceshare snapshot wrote into this file, instead of a cluster.",
)
in_namespace: Final = click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    shell_complete=complete_namespaces,
    help="Whose pods are meant; the namespace of the kubeconfig's context unless given.",
)


def output_as(*formats: str) -> Callable[[Command], Command]:
    """Gives a click command `--output`, for these formats; the first is the default."""
    return click.option(
        "-o", "--output", type=click.Choice(formats), default=formats[0], help="For people or programs."
    )


def pod_named(word: str, namespace: str | None, target: Target) -> tuple[str, str]:
    """Namespace and name of the pod that the word `NAME` or `NAMESPACE/NAME`, and the flag, name; else UsageError."""
    first, slash, second = word.partition("/")
    if slash and namespace not in (None, first):
        raise click.UsageError(f"{word} is not in the namespace {namespace} that --namespace names: leave one out.")
    within, name = (first, second) if slash else (namespace or target.namespace, first)
    if not within or not name or "/" in name:
        raise click.UsageError("Name the pod as NAME or NAMESPACE/NAME.")
    return within, name
