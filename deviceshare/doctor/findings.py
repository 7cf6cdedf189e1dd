"""Findings of checks: a mark, what is so, and the next step."""

from typing import Final

from msgspec import Struct

from deviceshare.domain import contract, wording
from deviceshare.loops.ports import ApiError, Forbidden

PROBLEM: Final = "problem"
"""Something doesn't work."""
WARNING: Final = "warning"
"""It works, but not for long, not everywhere, or not as somebody may think."""
UNTESTED: Final = "not tested"
"""It can't be told from here; the cure is how to tell."""
OK: Final = "ok"
MARKS: Final = (PROBLEM, WARNING, UNTESTED, OK)
"""The worst first."""

LISTED: Final = 5
"""Names in one finding; more tell nobody more."""


class Finding(Struct, frozen=True):
    """One thing that is not as it should be, or can't be told."""

    mark: str
    what: str
    cure: str
    """The next command, or what to change where; "" where nothing needs to be done."""


class Check(Struct, frozen=True):
    """One thing that was looked at. `said` is what is in order, for when there is nothing else to say."""

    name: str
    mark: str
    said: str
    findings: list[Finding]


def check(name: str, said: str, findings: list[Finding]) -> Check:
    """A check is as bad as its worst finding."""
    ranked = sorted(findings, key=lambda finding: MARKS.index(finding.mark))
    return Check(name, ranked[0].mark if ranked else OK, said, ranked)


def unread(what: str, error: ApiError) -> Finding:
    """What could not be asked is not tested, whether for want of a right or of an answer."""
    if isinstance(error, Forbidden):
        why = error.said or error  # without the request, which the rest says again
        return Finding(UNTESTED, f"you may not see {what}: {why}", "ask again as who may: --context NAME")
    return Finding(UNTESTED, f"{what} can't be read: {error}", "see how the API server does: kubectl get --raw /readyz")


def listed(names: list[str]) -> str:
    """`a, b, c, d, e and 3 more`"""
    return wording.listed(sorted(names), most=LISTED)


def logs(release: str, container: str) -> str:
    """The command that shows what one of the pods' containers said last."""
    return f"kubectl -n {release} logs -l app.kubernetes.io/name={contract.NAME} -c {container} --tail 50"
