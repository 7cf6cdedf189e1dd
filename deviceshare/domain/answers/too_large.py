"""Requests that no node could ever meet; condition, Event, `inspect` and `explain` say so with one function."""

from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.objects.requests import Request
from deviceshare.domain.objects.shares import in_gib
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.wording import listed


def too_large(fleet: Fleet, request: Request) -> Reason | None:
    """Why waiting is in vain: no shared node that may be used has as many devices, or one with as much memory.

    None also where that is unknown, such as while the devices of a node are not known yet.
    """
    return _too_many(fleet, request) if request.resources else _too_much_memory(fleet, request)


def _too_many(fleet: Fleet, request: Request) -> Reason | None:
    wanted, most = request.resources, fleet.situations.most(request)
    if most is None:
        return None
    node = "no shared node that matches its nodeSelector" if request.node_selector else "no shared node"
    lacking = sorted(resource for resource, count in wanted.items() if count > most[resource])
    if not lacking:
        together = listed(f"{count} {resource}" for resource, count in sorted(wanted.items()))
        return _reason(f"{node} has {together} together", "ask for fewer, or add a larger node")
    has = listed(f"more than {most[each]} {each}" if most[each] else f"any {each}" for each in lacking)
    return _reason(f"{node} has {has}", "ask for fewer, or add a larger node")


def _too_much_memory(fleet: Fleet, request: Request) -> Reason | None:
    share, most = request.share, fleet.largest(request.share.of)
    if not most or max((need.memory_mib for need in share.needs), default=0) <= most:
        return None
    text = f"no device of a shared node has more than {in_gib(most)}"
    return _reason(text, "ask for less, or add a node with larger ones")


def _reason(text: str, cure: str) -> Reason:
    return Reason(ReasonKind.NO_NODE_LARGE_ENOUGH, text, cure)
