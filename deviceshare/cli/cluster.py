"""A command's connection to its cluster: kubeconfig and context, time limits, and the errors that people read.

The Kubernetes client takes a third of a second to import. It is imported when the cluster is asked, not before: help,
shell completion and `plan --nodes` don't need it.
"""

import asyncio
import functools
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from deviceshare.cli.context_namespace import DEFAULT, contexts_of, namespace_of
from deviceshare.cli.missing_rights import explained
from deviceshare.loops.ports import ApiError, Forbidden, Unavailable

if TYPE_CHECKING:
    from deviceshare.kube.api import Api

T = TypeVar("T")

ANSWER_SECONDS = 60.0
"""Limit of a whole command that asks once."""
HELLO_SECONDS = 4.0
"""After this an API server that doesn't answer at all is reported as unreachable."""
PAGE_SECONDS = 30.0
"""Limit of one call, or of one page of a list: people have slow connections, too."""


class CannotAsk(click.ClickException):
    """The cluster can't be asked; the text names the next command. Shown as `Error: …`, exit status 1."""


class Target(NamedTuple):
    """Which cluster, as `--kubeconfig` and `--context` said."""

    kubeconfig: str | None
    context: str | None

    @property
    def namespace(self) -> str:
        """That of the context, or `default`."""
        try:
            return namespace_of(self.files, self.context)
        except CannotAsk:  # who asks that cluster is told so
            return DEFAULT

    def ask(self, question: Callable[["Api"], Awaitable[T]], *, seconds: float | None = ANSWER_SECONDS) -> T:
        """What `question` makes of the API server's answers, within `seconds`; None for as long as it takes.

        Raises:
            CannotAsk: there is no such cluster, it doesn't answer, or it refuses.
        """
        return asyncio.run(self._ask(question, seconds))

    async def _ask(self, question: Callable[["Api"], Awaitable[T]], seconds: float | None) -> T:
        from deviceshare import logs  # noqa: PLC0415
        from deviceshare.kube.access import NotConfigured  # noqa: PLC0415
        from deviceshare.kube.api import Api  # noqa: PLC0415
        from deviceshare.kube.connection import connect  # noqa: PLC0415

        logs.configure("auto", "error")  # on stderr: stdout may be a pipe
        try:
            async with asyncio.timeout(seconds), connect(self.files, self.context) as connection:
                with suppress(Forbidden):  # without the right to read the version, the rest may still be allowed
                    await Api(connection, timeout=HELLO_SECONDS).server_version()
                return await question(Api(connection, timeout=PAGE_SECONDS))
        except NotConfigured as error:
            raise CannotAsk(str(error)) from error
        except ApiError as error:
            raise CannotAsk(_said(error)) from error
        except TimeoutError as error:
            text = "The cluster did not answer in time; see whether it is ready with: kubectl get --raw /readyz"
            raise CannotAsk(text) from error

    @property
    def files(self) -> str | None:
        """The kubeconfig file, or several separated as kubectl expects; None inside a pod without one.

        Raises:
            CannotAsk: there is none.
        """
        usual = str(Path.home() / ".kube" / "config")
        files = self.kubeconfig or usual
        if any(Path(file).expanduser().exists() for file in files.split(os.pathsep) if file):
            return files
        if not self.kubeconfig and "KUBERNETES_SERVICE_HOST" in os.environ:
            return None
        # It is a package of its own.
        trial = ", or start a cluster to try with deviceshare sandbox up" if find_spec("deviceshare_sandbox") else ""
        raise CannotAsk(f"There is no kubeconfig {files}: name one with --kubeconfig FILE or KUBECONFIG{trial}")


def complete_contexts(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Names of the kubeconfig's contexts, for shell completion."""
    try:
        files = Target(ctx.params.get("kubeconfig") or os.environ.get("KUBECONFIG"), None).files
    except CannotAsk:
        return []
    return [name for name in contexts_of(files) if name.startswith(incomplete)]


def options(command: Callable[..., Any]) -> Callable[..., Any]:
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


def _said(error: ApiError) -> str:
    from deviceshare.kube.refusals import Unserved  # noqa: PLC0415

    if isinstance(error, Unserved):
        return f"deviceshare is not installed in this cluster: {error}"
    if isinstance(error, Forbidden):
        return explained(error)
    if isinstance(error, Unavailable):
        return f"Can't reach the cluster: {error}\nSee whether it answers with: kubectl get --raw /readyz"
    return str(error)
