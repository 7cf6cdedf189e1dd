"""The status of a NodeDevices, what the node has for groups, and its summary, which `kubectl get ndev` prints."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import to_builtins

from deviceshare.domain.objects.devices import Device, as_json
from deviceshare.domain.objects.ledger import Claim, LedgerStatus, NodeDevices, Patch, Summary, patched
from deviceshare.domain.objects.shares import WHOLE, in_gib
from deviceshare.domain.placement.device_states import (
    KEPT,
    DeviceState,
    Health,
    Use,
    by_resource,
    device_states,
    doubted,
    numbers,
)
from deviceshare.domain.placement.rooms import mib
from deviceshare.domain.wording import counted

_NOT_SOUND: Final = (Health.UNHEALTHY, Health.LOST)


def devices_patch(ledger: NodeDevices, devices: Iterable[Device], decided: LedgerStatus) -> Patch:
    """Writes what the node has, and what else was decided about the devices; for the status subresource."""
    before, have = ledger.status, sorted(devices)
    return {
        "metadata": {"resourceVersion": ledger.metadata.resource_version},
        "status": {
            "devices": as_json(have),
            "withheld": [{**to_builtins(each), "devices": as_json(each.devices)} for each in decided.withheld],
            "handover": _merged(before.handover, decided.handover),
            "memoryMib": _merged(before.memory_mib, decided.memory_mib),
            "forShares": as_json(decided.for_shares),
            "forGroups": as_json(decided.for_groups),
            # Most nodes have none, and before its CRD is upgraded a cluster stores none.
            **({"published": to_builtins(decided.published)} if decided.published != before.published else {}),
            **dict.fromkeys(before.former_summary),
        },
    }


def with_summary(ledger: NodeDevices, patch: Patch) -> Patch:
    """A patch of the ledger's claims with the summary that follows from them, so that both are one write."""
    return {**patch, "spec": {**patch["spec"], "summary": to_builtins(summary(patched(ledger, patch)))}}


def summary_patch(ledger: NodeDevices) -> Patch:
    """Corrects the summary, if nobody wrote the ledger meanwhile."""
    version = {"resourceVersion": ledger.metadata.resource_version}
    return {"metadata": version, "spec": {"summary": to_builtins(summary(ledger))}}


def _merged(before: Mapping[str, Any], after: Mapping[str, Any]) -> Patch:
    """The map as a merge patch: what is gone has to be named."""
    return {**dict.fromkeys(before), **after}


def summary(ledger: NodeDevices) -> Summary:
    """What the node has, what of it is free, who holds the rest, and why some can't be had.

    A bind computes it for its write, and the leader to compare it with what was written: for equal states it is equal.
    """
    states = device_states(ledger)
    if not states:  # Python has one empty tuple, whatever the ledger withholds.
        return _summary(states, ledger)
    if (known := _known.get(ledger.node)) is None or known[0] is not states:
        known = _known[ledger.node] = states, _summary(states, ledger)
        if len(_known) > KEPT:
            del _known[next(iter(_known))]
    return known[1]


_known: Final[dict[str, tuple[tuple[DeviceState, ...], Summary]]] = {}
"""By node, of the last states."""


def _summary(states: tuple[DeviceState, ...], ledger: NodeDevices) -> Summary:
    there = {resource: mine for resource, mine in by_resource(states).items() if any(each.offered for each in mine)}
    groups = sorted((claim.group, uid) for uid, claim in ledger.claims.items() if claim.group)
    holding = (_group(states, ledger.claims[uid], uid) for _, uid in groups)
    return Summary(
        total=", ".join(f"{resource}={_total(mine)}" for resource, mine in there.items()),
        free=", ".join(f"{resource}={_free(mine)}" for resource, mine in there.items()),
        held="; ".join(filter(None, (*holding, _shared(states)))),
        reasons="; ".join(map(str, (*ledger.status.withheld, *doubted(states).values()))),
    )


def _group(states: Iterable[DeviceState], claim: Claim, uid: str) -> str:
    """`team-a: nvidia.com/gpu=0,1`, with how many of its pods have parts of these."""
    states = list(states)
    pods = {each.uid for state in states if uid in state.holders for each in state.sharers}
    parts = f" ({counted(len(pods), 'pod')} with parts)" if pods else ""
    mine = (state for state in states if uid in state.holders or state.uid == uid)
    claimed = " ".join(f"{resource}{_indices(each)}" for resource, each in by_resource(mine).items())
    return f"{claim.group}{' (releasing)' * bool(claim.releasing)}: {claimed}{parts}"


def _shared(states: Iterable[DeviceState]) -> str:
    """`12 pods share nvidia.com/gpu=2,3`: counted, since a device may have a hundred."""
    mine = [state for state in states if state.use is Use.SHARED]
    pods = {each.uid for state in mine for each in state.sharers}
    devices = " ".join(f"{resource}{_indices(each)}" for resource, each in by_resource(mine).items())
    return f"{counted(len(pods), 'pod')} {'shares' if len(pods) == 1 else 'share'} {devices}" if mine else ""


def _free(states: list[DeviceState]) -> str:
    """Whole devices for groups, and what else is left for shares: `2`, `2 (+11 GiB for shares)`."""
    free = str(sum(each.free for each in states))
    rooms = [each.room for each in states if not each.free and each.room.free > 0]
    if not rooms:
        return free
    if all(room.size for room in rooms):
        return f"{free} (+{in_gib(sum(mib(room.free, room.size) for room in rooms))} for shares)"
    return f"{free} (+{int(sum(WHOLE * room.free / room.capacity for room in rooms))}% for shares)"


def _total(states: list[DeviceState]) -> str:
    found = Counter(each.health for each in states)
    unsound = ", ".join(f"{found[health]} {health}" for health in _NOT_SOUND if found[health])
    return f"{sum(each.offered for each in states)}{f' ({unsound})' if unsound else ''}"


def _indices(states: list[DeviceState]) -> str:
    """The devices of one claim: `=0,1 (unhealthy 0; former 3)`."""
    held = [each for each in states if each.use is not Use.FORMER]
    marked = {str(health): [each for each in held if each.health is health] for health in _NOT_SOUND}
    marked[Use.FORMER] = [each for each in states if each.use is Use.FORMER]
    marks = "; ".join(f"{word} {numbers(mine)}" for word, mine in marked.items() if mine)
    return f"{f'={numbers(held)}' if held else ''}{f' ({marks})' if marks else ''}"
