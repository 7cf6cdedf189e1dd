"""An extender that says yes to everything: what asking any extender in Python costs, whatever it decides.

`python -m tests.benchmarks.agreeable PORT`. kube-scheduler binds by itself, as it does where no extender wants to.
"""

import sys

import msgspec
import uvloop
from aiohttp import web
from msgspec import Raw, Struct, field

CONFIG = {
    "filterVerb": "filter",
    "prioritizeVerb": "prioritize",
    "weight": 1,
    "nodeCacheCapable": True,
    "httpTimeout": "15s",
}
"""Its entry in kube-scheduler's configuration, but for the `urlPrefix`."""


class _Arguments(Struct):
    node_names: Raw = field(name="NodeNames")


_arguments = msgspec.json.Decoder(_Arguments)


async def _filter(request: web.Request) -> web.Response:
    names = _arguments.decode(await request.read()).node_names
    return _json(b'{"NodeNames":' + bytes(names) + b',"FailedNodes":{},"Error":""}')


async def _prioritize(request: web.Request) -> web.Response:
    names = msgspec.json.decode(_arguments.decode(await request.read()).node_names, type=list[str])
    return _json(msgspec.json.encode([{"Host": name, "Score": 0} for name in names]))


async def _healthz(_: web.Request) -> web.Response:
    return web.Response()


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")


async def _app() -> web.Application:
    app = web.Application(client_max_size=64 << 20)
    app.add_routes([web.post("/filter", _filter), web.post("/prioritize", _prioritize), web.get("/healthz", _healthz)])
    return app


if __name__ == "__main__":
    web.run_app(
        _app(), host="127.0.0.1", port=int(sys.argv[1]), access_log=None, print=None, loop=uvloop.new_event_loop()
    )
