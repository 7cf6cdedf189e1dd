"""Unreadable objects: what they hide counts as in use, so pods wait until they are corrected."""

from collections.abc import Iterable
from typing import Any, Final

from deviceshare.doctor.findings import PROBLEM, Check, Finding, check, unread
from deviceshare.domain.placement.blind_spots import UnreadableObject, unreadable
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, NODES, PODS, SHARED_NODES
from deviceshare.loops.ports import ApiError, Cluster, Kind

_UNFINISHED: Final = {"field_selector": "status.phase!=Succeeded,status.phase!=Failed"}
_LOOKED_AT: Final[tuple[tuple[Kind[Any], dict[str, str]], ...]] = (
    (GROUPS, {}),
    (NODE_DEVICES, {}),
    (NODES, {"label_selector": SHARED_NODES}),
    (PODS, _UNFINISHED),
)


async def examine(api: Cluster) -> Check:
    """Lists groups, ledgers, shared nodes, and the pods that haven't ended."""
    findings: list[Finding] = []
    for kind, selectors in _LOOKED_AT:
        try:
            objects = await api.list(kind, **selectors)
        except ApiError as error:
            findings.append(unread(kind.plural, error))
            continue
        findings += judge(unreadable(kind.kind, (each.metadata for each in objects)))
    return check("objects", "groups, ledgers, shared nodes and pods can all be read", findings)


def judge(found: Iterable[UnreadableObject]) -> list[Finding]:
    """One finding for each unreadable object."""
    return [Finding(PROBLEM, f"{each.kind} {each.name} can't be read: {each.fault}", each.cure) for each in found]
