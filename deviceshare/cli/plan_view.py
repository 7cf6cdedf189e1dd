"""A plan as text: where each group lands, which pods wait and for what, and what is left then."""

from deviceshare.cli.folding import SHOWN, counted, fold, more
from deviceshare.cli.inspect_view import nodes, total
from deviceshare.cli.output import Part, group_name, spaced, styled, table
from deviceshare.domain.answers.plan import Placement, Plan
from deviceshare.domain.wording import listed


def view(plan: Plan, *, details: bool) -> list[Part]:
    """The sections, with an empty line between; `details` adds the nodes and folds nothing."""
    shown = None if details else SHOWN
    sections = [_placed(plan, shown), _waiting(plan, shown), nodes(plan.after, None, wide=False) if details else []]
    return [*spaced(sections), styled("Then", "bold"), *total(plan.after)]


def _placed(plan: Plan, shown: int | None) -> list[Part]:
    lines, rest = fold((placement for placement in plan.groups if placement.node), shown)
    if not lines:
        return []
    made = table("GROUP", "NODE", "DEVICES", "PODS", "WHY")
    for placement in lines:
        held = " ".join(f"{resource} {indices}" for resource, indices in placement.devices.items())
        pods = str(len(placement.pods))
        made.add_row(group_name(placement.group), styled(placement.node, "green"), held, pods, _why(placement))
    return [made, *more(rest, "group")]


def _why(placement: Placement) -> str:
    equals = counted(placement.equals, "other node")
    where = (
        "lives there already" if placement.already else f"as good as {equals}" if placement.equals else "the best node"
    )
    return f"{where}; {placement.why_these}" if placement.why_these else where


def _waiting(plan: Plan, shown: int | None) -> list[Part]:
    alike: dict[tuple[str, str], list[str]] = {}
    for waits in plan.waiting:
        alike.setdefault((waits.group, waits.reason), []).append(waits.pod)
    waiting = {group for group, _ in alike}
    for placement in plan.groups:
        if not placement.node and placement.group not in waiting:
            alike[placement.group, placement.message] = []
    lines, rest = fold(alike.items(), shown)
    if not lines:
        return []
    made = table("WAITING", "PODS", "REASON")
    for (group, reason), pods in lines:
        made.add_row(group_name(group), listed(pods, most=1) or "-", styled(reason, "yellow"))
    return [made, *more(rest, "group")]
