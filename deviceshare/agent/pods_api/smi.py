"""`/smi`: the devices of the pod that asks, as text or, where the header `Accept` prefers it, as JSON."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec
from aiohttp import web

from deviceshare.agent.pods_api.caller import Caller, Callers
from deviceshare.agent.pods_api.server import Endpoint, plain
from deviceshare.domain.answers.pod_view import POD_COLUMNS, PodView, pod_lines, pod_rows, pod_view
from deviceshare.domain.objects.printable import printable
from deviceshare.domain.objects.requests import GROUP, POD, Holder
from deviceshare.domain.objects.usage import Usage
from deviceshare.loops.agent.own_node import OwnNode

_JSON: Final = "application/json"
_GAP: Final = "  "


def smi_endpoint(node: OwnNode, callers: Callers, usage: Callable[[], Usage]) -> Endpoint:
    """`usage` returns the agent's last look at all devices of the node."""

    async def smi(request: web.Request) -> web.StreamResponse:
        caller = await callers.caller(request)
        pod = Holder(caller.uid, POD, caller.key)
        view = pod_view(usage(), caller.ledger, pod, caller.holder, _mates(node, caller))
        return _as_json(view) if prefers_json(request.headers.get("Accept", "")) else plain(drawn(view))

    return Endpoint("/smi", "This pod's devices, its processes on them, and who shares them; also as JSON.", smi)


def _mates(node: OwnNode, caller: Caller) -> list[str]:
    """The other pods that have devices of the caller's group; a pod with shares of its own has none."""
    if caller.holder.kind != GROUP:
        return []
    return [
        pod.metadata.key
        for pod in node.pods.values()
        if pod.metadata.uid != caller.uid
        and not pod.finished
        and not pod.mirrored
        and node.holder_uid(pod) == caller.holder.uid
    ]


def drawn(view: PodView) -> str:
    """The view as text, without anything that a terminal obeys."""
    lines = [printable(line) for line in pod_lines(view)]
    return "\n".join([*lines, "", *_aligned([POD_COLUMNS, *pod_rows(view.devices)]), ""])


def _aligned(rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [_GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def _as_json(view: PodView) -> web.Response:
    # ASCII: a terminal obeys none of what JSON may leave unescaped.
    text = json.dumps(msgspec.to_builtins(view), indent=1, ensure_ascii=True).replace("\x7f", "\\u007f")
    response = plain(f"{text}\n")
    response.content_type = _JSON
    return response


def prefers_json(accept: str) -> bool:
    """Whether the header names JSON, and no text that it likes better (RFC 9110, 12.5.1)."""
    weights: dict[str, float] = {}
    for part in accept[:1024].split(","):
        name, *parameters = (word.strip().lower() for word in part.split(";"))
        weights[name] = max(weights.get(name, 0.0), _weight(parameters))
    text = max(weights.get(name, 0.0) for name in ("text/plain", "text/*"))
    return weights.get(_JSON, 0.0) > text


def _weight(parameters: Iterable[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return min(max(float(value), 0.0), 1.0)
            except ValueError:
                return 0.0
    return 1.0
