"""Findings of a check: a mark, what is wrong, and the next command."""

from collections.abc import Awaitable, Iterable
from typing import Final, TypeVar

from msgspec import Struct

from deviceshare.domain import contract, wording
from deviceshare.loops.ports import ApiError, Cluster, Forbidden, Kind, NotFound

T = TypeVar("T")

PROBLEM: Final = "problem"
"""Something doesn't work."""
WARNING: Final = "warning"
"""It works, but not for long, not everywhere, or not as intended."""
UNTESTED: Final = "not tested"
"""It can't be known from here; the cure says how to find out."""
OK: Final = "ok"
MARKS: Final = (PROBLEM, WARNING, UNTESTED, OK)
"""The worst first."""

LISTED: Final = 5
"""Names in one finding; the rest is counted."""


class Finding(Struct, frozen=True):
    """One thing that is wrong, or can't be known."""

    mark: str
    what: str
    cure: str
    """The next command, or what to change where; "" where nothing needs to be done."""


class Check(Struct, frozen=True):
    """One thing that was checked. `said` describes the healthy state, shown where there are no findings."""

    name: str
    mark: str
    said: str
    findings: list[Finding]


Verdict = tuple[str, Iterable[Finding]]
"""What a check says of the healthy state, and what it found."""


def check(name: str, said: str, findings: Iterable[Finding]) -> Check:
    """A check with the mark of its worst finding."""
    ranked = sorted(findings, key=lambda finding: MARKS.index(finding.mark))
    return Check(name, ranked[0].mark if ranked else OK, said, ranked)


async def checked(name: str, what: str, examined: Awaitable[Verdict]) -> Check:
    """The check of this name. Where the API server refuses what `examined` reads, `what` is not tested."""
    try:
        return check(name, *await examined)
    except ApiError as error:
        return check(name, "", [unread(what, error)])


async def seen(api: Cluster, kind: Kind[T], name: str, what: str = "") -> tuple[T | None, list[Finding]]:
    """The object, or None; and why `what` is not tested, where it may be there all the same."""
    try:
        return await api.get(kind, name), []
    except NotFound:
        return None, []
    except ApiError as error:
        return None, [unread(what, error)]


def unread(what: str, error: ApiError) -> Finding:
    """What could not be read is not tested, for lack of a right or of an answer."""
    if isinstance(error, Forbidden):
        why = error.said or error  # without the request, which the rest repeats
        return Finding(UNTESTED, f"you may not see {what}: {why}", "run doctor as a user who may: --context NAME")
    return Finding(
        UNTESTED, f"{what} can't be read: {error}", "see whether the API server is ready: kubectl get --raw /readyz"
    )


def listed(names: Iterable[str]) -> str:
    """`a, b, c, d, e and 3 more`"""
    return wording.listed(sorted(names), most=LISTED)


def about(names: Iterable[str], mark: str, what: str, cure: str) -> list[Finding]:
    """One finding that ends with these names; none where there are none."""
    return [Finding(mark, f"{what}: {named}", cure)] if (named := listed(names)) else []


def logs(release: str, container: str) -> str:
    """The command that shows the last log lines of a container of deviceshare's pods."""
    return f"kubectl -n {release} logs -l app.kubernetes.io/name={contract.NAME} -c {container} --tail 50"
