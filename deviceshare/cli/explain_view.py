"""An explanation as text: the reason first, then facts, then node by node what is in the way."""

from typing import Final

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from deviceshare.cli.folding import fold, more
from deviceshare.cli.output import table
from deviceshare.domain.explanation import Explanation
from deviceshare.domain.fleet import TOO_FULL
from deviceshare.domain.verdicts import NodeVerdict

SHOWN: Final = 5
"""Nodes, each with all its devices, before the rest is counted; as many as a condition names."""


def view(explanation: Explanation, *, details: bool) -> list[RenderableType]:
    """The message, the facts, the nodes; `details` folds nothing."""
    parts: list[RenderableType] = [escape(explanation.message)]
    if explanation.facts:
        facts = table("", "")
        facts.show_header = False
        for name, fact in explanation.facts.items():
            facts.add_row(f"[bold]{escape(name)}[/]", escape(fact))
        parts += ["", facts]
    if explanation.nodes:
        shown, rest = fold(explanation.nodes, None if details else SHOWN)
        made = table("NODE", "DEVICE", "VERDICT", "WHAT WOULD FREE IT")
        for node in shown:
            _add(made, node, details=details)
        parts += ["", made, *more(rest, "node", _summary(rest))]
    return parts


def _add(made: Table, node: NodeVerdict, *, details: bool) -> None:
    made.add_row(escape(node.node), "", _verdict(node), "")
    if not details and not node.reason.startswith(TOO_FULL):
        return  # where something else than devices is in the way, or nothing is, the devices tell nobody more
    alike: dict[tuple[str, str, str], list[int]] = {}
    for device in node.devices:
        alike.setdefault((device.resource, device.reason, device.cure), []).append(device.index)
    for (resource, reason, cure), indices in alike.items():
        made.add_row("", f"{resource} {','.join(map(str, indices))}", escape(reason) or "[green]free[/]", escape(cure))


def _verdict(node: NodeVerdict) -> str:
    if not node.fits:
        return f"[yellow]{escape(node.reason)}[/]"
    held = " and ".join(f"{resource} {indices}" for resource, indices in node.would_get.items())
    why = f", {node.why_these}" if node.why_these else ""
    return f"[green]fits, scores {node.score} of 10[/]" + (f"; would get {escape(held + why)}" if held else "")


def _summary(rest: list[NodeVerdict]) -> str:
    fits = sum(node.fits for node in rest)
    return f"{fits} of them fit" if fits else "none of them fits"
