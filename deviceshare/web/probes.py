"""Liveness and readiness probes, and the metrics endpoint.

The answers have the format of Kubernetes' own components
(https://kubernetes.io/docs/reference/using-api/health-checks/).
"""

from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

from deviceshare.metrics import ServerMetrics
from deviceshare.web.scrapes import Scrapes

Check = Callable[[], str]
"""Returns why the check fails, or "". Called on the event loop: it must neither block nor raise."""


def probe_routes(live: Mapping[str, Check], ready: Mapping[str, Check], metrics: ServerMetrics) -> list[web.RouteDef]:
    """`/livez`, `/readyz` (200, or 500 when a check fails; `?verbose` lists all of them) and `/metrics`."""

    scrapes = Scrapes(metrics)

    async def scrape(request: web.Request) -> web.Response:
        body, content_type = await scrapes.answer(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    return [
        web.get("/livez", _handler("livez", live)),
        web.get("/readyz", _handler("readyz", ready)),
        web.get("/metrics", scrape),
    ]


def _handler(name: str, checks: Mapping[str, Check]) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(request: web.Request) -> web.Response:
        faults = {check: ask() for check, ask in checks.items()}
        failed = any(faults.values())
        if not failed and "verbose" not in request.query:
            return web.Response(text="ok")
        lines = [f"[-]{check}: {fault}" if fault else f"[+]{check} ok" for check, fault in faults.items()]
        lines.append(f"{name} check {'failed' if failed else 'passed'}")
        return web.Response(text="\n".join(lines) + "\n", status=500 if failed else 200)

    return answer
