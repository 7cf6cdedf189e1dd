"""A command's cluster: its kubeconfig and context, time limits, retries, and the errors that people read.

What speaks to a cluster takes a third of a second to import. It is imported when the cluster is asked, not before:
help, shell completion and `plan --nodes` don't need it. Nor is it needed to read a context's namespace, which commands
take as kubectl does where none is named.
https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/
https://kubernetes.io/docs/reference/access-authn-authz/rbac/
"""

import asyncio
import os
import re
import shlex
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import click

from deviceshare.domain import contract
from deviceshare.kube import kubeconfig
from deviceshare.loops.ports import ApiError, Conflict, Forbidden, Unavailable

if TYPE_CHECKING:
    from deviceshare.kube.api import Api

T = TypeVar("T")

ANSWER_SECONDS = 60.0
"""Limit of a whole command that asks once."""
HELLO_SECONDS = 4.0
"""After this an API server that doesn't answer at all is reported as unreachable."""
PAGE_SECONDS = 30.0
"""Limit of one call, or of one page of a list: people have slow connections, too."""
TRIES = 8
LOOK_SECONDS = 0.3
"""Between two attempts, and between two polls."""
OUTCOME_SECONDS: Final = 30.0
"""For what was requested to be done: a leader that died is replaced within it, and agents look far more often."""

_POD: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
"""Where a pod finds its own: https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/"""


class CannotAsk(click.ClickException):
    """The cluster can't be asked; the text names the next command. Shown as `Error: …`, exit status 1."""


class Target(NamedTuple):
    """Which cluster, as `--kubeconfig` and `--context` said."""

    kubeconfig: str | None
    context: str | None

    @property
    def namespace(self) -> str:
        """That of the context, or `default`."""
        with suppress(CannotAsk, OSError, UnicodeDecodeError):  # who asks a cluster that isn't there is told so
            if files := self.files:
                return kubeconfig.load(files).namespace(self.context)
            return _POD.read_text(encoding="utf-8").strip() or kubeconfig.DEFAULT
        return kubeconfig.DEFAULT

    @property
    def files(self) -> str | None:
        """The kubeconfig file, or several as kubectl separates them; None inside a pod without one. Else CannotAsk."""
        usual = str(Path.home() / ".kube" / "config")
        files = self.kubeconfig or usual
        if any(Path(file).expanduser().exists() for file in files.split(os.pathsep) if file):
            return files
        if not self.kubeconfig and "KUBERNETES_SERVICE_HOST" in os.environ:
            return None
        # It is a package of its own.
        trial = ", or start a cluster to try with deviceshare sandbox up" if find_spec("deviceshare_sandbox") else ""
        raise CannotAsk(f"There is no kubeconfig {files}: name one with --kubeconfig FILE or KUBECONFIG{trial}")

    def ask(self, question: Callable[["Api"], Awaitable[T]], *, seconds: float | None = ANSWER_SECONDS) -> T:
        """What `question` makes of the API server's answers, within `seconds`; None for as long as it takes.

        Raises CannotAsk where there is no such cluster, it doesn't answer, or it refuses.
        """
        return asyncio.run(self._ask(question, seconds))

    async def _ask(self, question: Callable[["Api"], Awaitable[T]], seconds: float | None) -> T:
        from deviceshare import logs  # noqa: PLC0415
        from deviceshare.kube.api import Api  # noqa: PLC0415
        from deviceshare.kube.connection import NotConfigured, Unserved, connect  # noqa: PLC0415

        logs.configure("auto", "error")  # on stderr: stdout may be a pipe
        try:
            async with asyncio.timeout(seconds), connect(self.files, self.context) as connection:
                with suppress(Forbidden):  # without the right to read the version, the rest may still be allowed
                    await Api(connection, timeout=HELLO_SECONDS).server_version()
                return await question(Api(connection, timeout=PAGE_SECONDS))
        except Unserved as error:
            raise CannotAsk(f"deviceshare is not installed in this cluster: {error}") from error
        except Forbidden as error:
            raise CannotAsk(explained(error)) from error
        except Unavailable as error:
            see = "See whether it answers with: kubectl get --raw /readyz"
            raise CannotAsk(f"Can't reach the cluster: {error}\n{see}") from error
        except (NotConfigured, ApiError) as error:
            raise CannotAsk(str(error)) from error
        except TimeoutError as error:
            text = "The cluster did not answer in time; see whether it is ready with: kubectl get --raw /readyz"
            raise CannotAsk(text) from error


async def retry_on_conflict(attempt: Callable[[], Awaitable[T]]) -> T:
    """What `attempt` returns, which writes an object with the resourceVersion that it read; tried TRIES times."""
    for _ in range(TRIES):
        try:
            return await attempt()
        except Conflict:
            await asyncio.sleep(LOOK_SECONDS)
    raise click.ClickException("The object was changed by others at each attempt; run the command again")


def deleted(what: str, see: str) -> click.ClickException:
    """The error where the object that was to be asked, or was asked, is gone; another of its name wasn't asked."""
    again = f"see with {see} whether it was recreated, and run the command again"
    return click.ClickException(f"{what} was deleted meanwhile, and the request with it: {again}")


async def poll(look: Callable[[], Awaitable[T | None]], *, doing: str) -> T | None:
    """What `look` returns as soon as it isn't None; None after OUTCOME_SECONDS. A terminal shows `doing`."""
    from deviceshare.cli.output import FilteringConsole, styled  # noqa: PLC0415 - help doesn't need it

    with FilteringConsole(stderr=True).status(styled(doing)), suppress(TimeoutError):
        async with asyncio.timeout(OUTCOME_SECONDS):
            while True:
                if (seen := await look()) is not None:
                    return seen
                await asyncio.sleep(LOOK_SECONDS)
    return None


_REFUSAL: Final = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\S+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]*)"| at the cluster scope)'
)
"""k8s.io/apiserver, pkg/endpoints/handlers/responsewriters/errors.go: forbiddenMessage"""
_SERVICE_ACCOUNT: Final = re.compile(r"system:serviceaccount:([^:]+):([^:]+)")


class MissingRight(NamedTuple):
    """One right that a user lacks; an empty namespace means the whole cluster."""

    user: str
    verb: str
    resource: str
    group: str
    namespace: str

    def __str__(self) -> str:
        """`alice may not list pods in namespace team-a`."""
        resource = f"{self.resource}.{self.group}" if self.group else self.resource
        where = f"in namespace {self.namespace}" if self.namespace else "in the whole cluster"
        return f"{self.user} may not {self.verb} {resource} {where}"

    @property
    def role(self) -> str:
        """The ClusterRole for people that grants it (templates/rbac/people.yaml in the chart), and not much more; ""
        where there is none."""
        reading = self.verb in ("get", "list", "watch")
        if self.group == contract.API_GROUP:
            if self.resource == "nodedevices/status" and self.verb == "patch":
                return f"{contract.NAME}-recover"
            if reading or self.resource == "shareddevicegroups":
                return f"{contract.NAME}-{'view' if reading else 'edit'}"
        elif self.namespace and not self.group:
            if self.resource == "pods/proxy":
                return f"{contract.NAME}-top"
            if self.resource == "pods":
                return "view" if reading else "edit"
        return ""

    @property
    def cure(self) -> str:
        """The command with which an administrator grants it; "" where none is known."""
        if not self.role:
            return ""
        name = re.sub(r"[^a-z0-9.-]+", "-", f"{self.role}-{self.user}".lower()).strip("-.")[:200]
        kind = f"rolebinding {name} --namespace={self.namespace}" if self.namespace else f"clusterrolebinding {name}"
        subject = f"--user={shlex.quote(self.user)}"
        if account := _SERVICE_ACCOUNT.fullmatch(self.user):
            subject = f"--serviceaccount={shlex.quote(f'{account[1]}:{account[2]}')}"
        return f"kubectl create {kind} --clusterrole={self.role} {subject}"


def missing_right(error: Forbidden) -> MissingRight | None:
    """The right that the API server names; None where it speaks of something else, as admission does."""
    found = _REFUSAL.search(error.said)
    return MissingRight(**{key: value or "" for key, value in found.groupdict().items()}) if found else None


def explained(error: Forbidden) -> str:
    """What a person reads whose request was refused: which right is missing, and who can grant it."""
    right = missing_right(error)
    if right is None and error.said == "Unauthorized":
        return "The cluster does not accept your credentials: they are wrong or have expired; log in to it again"
    if right is None:
        return f"This user may not do that: {error}\nList its rights with: kubectl auth can-i --list"
    if not right.cure:
        return f"{right}.\nList all rights with: kubectl auth can-i --list"
    return f"{right}. The ClusterRole {right.role} grants it; an administrator binds it with\n  {right.cure}"
