"""The parts of the page: its snapshots of the mirrors, what agents say of use, and its server."""

from collections.abc import Callable, Generator
from typing import Any

from deviceshare import __version__
from deviceshare.domain.answers.picture import draw_in_steps
from deviceshare.flags import Address
from deviceshare.kube.agent_client import agent_client
from deviceshare.kube.api import Api
from deviceshare.kube.mirror import ApiMirror
from deviceshare.kube.mirrors import Mirrors
from deviceshare.loops.replica.use_rounds import UseRounds
from deviceshare.metrics import ServerMetrics
from deviceshare.run.settings import Settings
from deviceshare.web import ui
from deviceshare.web.probes import Check
from deviceshare.web.server import Server
from deviceshare.web.snapshots import Snapshots


class PageParts:
    """Who builds it runs `snapshots` and `use`, and starts the server."""

    def __init__(self, settings: Settings, api: Api, mirrors: Mirrors, *, leading: Callable[[], bool]) -> None:
        self.snapshots = Snapshots(self._draw)
        self.use = UseRounds(api, settings.namespace, agent_client)
        self._instance = settings.instance
        self._mirrors = mirrors
        self._leading = leading

    def server(self, at: Address, metrics: ServerMetrics) -> Server:
        """Serves it. Call it once."""
        for mirror in self._mirrors.by_name.values():
            mirror.subscribe(self.snapshots.touch)
        routes = ui.Ui(self.snapshots, at.host, self.use.current).routes()
        return Server("ui", *at, routes, metrics, max_body=ui.MAX_BODY, timeout=ui.TIMEOUT)

    def _draw(self) -> Generator[None, None, bytes]:
        mirrors = self._mirrors
        faults = {name: fault for name, mirror in mirrors.by_name.items() if (fault := fault_of(mirror)())}
        replica = ui.Replica(self._instance, __version__, self._leading(), faults)
        drawn = yield from draw_in_steps(mirrors.fleet, mirrors.groups.values(), mirrors.pods.values())
        yield
        return ui.encode(replica, drawn)


def fault_of(mirror: ApiMirror[Any]) -> Check:
    """Why the mirror isn't synced, or ""."""
    return lambda: "" if mirror.synced else "not read yet, or its watch is lost"
