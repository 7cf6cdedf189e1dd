"""An explanation as text: the reason first, then facts, then the obstacles on each node."""

from typing import Final

from deviceshare.cli.folding import fold, more
from deviceshare.cli.output import Cell, Grid, Part, joined, styled, table
from deviceshare.domain.answers.explanation import Explanation
from deviceshare.domain.answers.verdicts import NodeVerdict
from deviceshare.domain.objects.devices import described
from deviceshare.domain.objects.reasons import ReasonKind

SHOWN: Final = 5
"""Nodes, each with all its devices, before the rest is counted; as many as a condition names."""


def view(explanation: Explanation, *, details: bool) -> list[Part]:
    """The message, the facts, the nodes; `details` folds nothing."""
    parts: list[Part] = [explanation.message]
    if explanation.facts:
        facts = table("", "")
        facts.show_header = False
        for name, fact in explanation.facts.items():
            facts.add_row(styled(name, "bold"), fact)
        parts += ["", facts]
    if explanation.nodes:
        shown, rest = fold(explanation.nodes, None if details else SHOWN)
        made = table("NODE", "DEVICE", "VERDICT", "WHAT WOULD FREE IT")
        for node in shown:
            _add(made, node, details=details)
        parts += ["", made, *more(rest, "node", _summary(rest))]
    return parts


def _add(made: Grid, node: NodeVerdict, *, details: bool) -> None:
    made.add_row(node.node, "", _verdict(node), "")
    if not details and not (node.why and node.why.kind is ReasonKind.TOO_FULL):
        return  # devices are listed only where a lack of them is the obstacle
    alike: dict[tuple[str, str, str], list[int]] = {}
    for device in node.devices:
        alike.setdefault((device.resource, device.reason, device.cure), []).append(device.index)
    for (resource, reason, cure), indices in alike.items():
        made.add_row("", f"{resource} {','.join(map(str, indices))}", reason or styled("free", "green"), cure)


def _verdict(node: NodeVerdict) -> Cell:
    if not node.fits:
        return styled(node.reason, "yellow")
    held = described(node.would_get)
    why = f", {node.why_these}" if node.why_these else ""
    fits = styled(f"fits, scores {node.score} of 10", "green")
    return joined(fits, f"; would get {held}{why}" if held else "")


def _summary(rest: list[NodeVerdict]) -> str:
    fits = sum(node.fits for node in rest)
    return f"{fits} of them fit" if fits else "none of them fits"
