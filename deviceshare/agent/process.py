"""The composition root of `deviceshare agent`: builds the parts, starts them in order and stops them in order.

An agent is stateless: what must survive it is in its node's NodeDevices, and is read back before anything is written.
So when a part fails, the process ends, and the kubelet restarts it.
"""

import asyncio
import gc
import signal
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import structlog
import uvloop
from aiohttp import web

from deviceshare import __version__
from deviceshare.agent.cdi_specs import CdiSpecs
from deviceshare.agent.device_reader import DeviceReader
from deviceshare.agent.metrics import AgentMetrics
from deviceshare.agent.settings import AgentSettings
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.kube.api import Api
from deviceshare.kube.connection import NotConfigured, connect
from deviceshare.kube.mirror import ApiMirror
from deviceshare.kube.recorder import EventRecorder
from deviceshare.kubelet import pod_resources
from deviceshare.loops.agent.allocations import Allocations
from deviceshare.loops.agent.evictions import Evictions
from deviceshare.loops.agent.guard import IntruderGuard
from deviceshare.loops.agent.judge import Judge
from deviceshare.loops.agent.lookout import Lookout
from deviceshare.loops.agent.ports import NODE_PODS, AllocationsUnknown, Kubelet, NodePod, PluginAllocation, Sight
from deviceshare.loops.agent.reporter import Reporter
from deviceshare.loops.background import Background
from deviceshare.loops.kinds import NODE_DEVICES
from deviceshare.web.probes import probe_routes
from deviceshare.web.server import CannotListen, Server

log = structlog.get_logger(__name__)


def main(settings: AgentSettings) -> int:
    """Runs until SIGTERM or SIGINT; returns the exit code."""
    gc.freeze()  # imported modules stay for the life of the process
    try:
        return uvloop.run(_run_until_signal(settings))
    except (NotConfigured, CannotListen) as error:
        log.error("Failed to start", error=str(error))
        return 1


async def _run_until_signal(settings: AgentSettings) -> int:
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    async with connect(str(settings.kubeconfig) if settings.kubeconfig else None) as connection:
        running = asyncio.create_task(Agent(settings, Api(connection)).run(stopping), name="agent")
        try:
            return await running
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running


class Agent:
    """All parts of one agent."""

    def __init__(self, settings: AgentSettings, api: Api) -> None:
        node = settings.node_name
        self._node = node
        self._metrics = AgentMetrics()
        self._recorder = EventRecorder(api, node)
        self._ledgers: ApiMirror[NodeDevices] = ApiMirror(api, NODE_DEVICES, field_selector=f"metadata.name={node}")
        self._pods: ApiMirror[NodePod] = ApiMirror(api, NODE_PODS, field_selector=f"spec.nodeName={node}")
        self._reporter = Reporter(api, node, self._ledgers)
        self._judge = Judge(node, self._ledgers, self._recorder, now=_now, on_xid=self._metrics.count_xid)
        self._evictions = Evictions(api, on_evicted=self._metrics.evictions.inc)
        evict = self._evictions.want if settings.enforce == "evict" else None
        self._allocations = Allocations(
            _kubelet(settings.pod_resources),
            self._pods,
            lambda: self._judge.known.devices if self._judge.known else (),
            self._report,
            settings.placeholders,
        )
        self._lookout = Lookout(
            node,
            ledgers=self._ledgers,
            pods=self._pods,
            judge=self._judge,
            guard=IntruderGuard(node, self._recorder, evict),
            allocations=self._allocations,
            reporter=self._reporter,
            now=_now,
            left_out=settings.excluded_namespaces.split(","),
        )
        self._reader = DeviceReader(
            self._take,
            proc=settings.proc_root,
            sysfs=settings.sys_root,
            specs=CdiSpecs(settings.cdi_directories),
            visible=settings.visible_devices,
        )
        self._metrics.watch_devices(
            lambda: self._lookout.hardware, lambda: self._lookout.usage, lambda: self._reporter.reports
        )
        self._server = self._build_server(settings)

    async def run(self, stopping: asyncio.Event) -> int:
        """Starts all parts, waits for the signal or for a part to fail, stops all parts; returns the exit code.

        Start: the probes first, so that a start that hangs can be diagnosed; the mirrors, from which the last report
        is read; the writers; last the device reader. Stop: in reverse.
        """
        log.info("Started agent", version=__version__, node=self._node)
        async with AsyncExitStack() as stack:
            tasks = Background(stopping)
            await self._server.start()
            stack.push_async_callback(self._server.stop)
            for name, work in (
                ("mirror-ledgers", self._ledgers.run),
                ("mirror-pods", self._pods.run),
                ("recorder", self._recorder.run),
                ("evictions", self._evictions.run),
                ("report", self._reporter.run),
                ("allocations", self._allocations.run),
                ("device-reader", self._reader.run),
            ):
                stack.push_async_callback(tasks.watch(name, work))
            await stopping.wait()
            log.info("Stopping agent", failed=tasks.first is not None)
        log.info("Stopped agent")
        return 1 if tasks.first else 0

    def _take(self, sight: Sight) -> None:
        self._lookout.take(sight)
        known = self._judge.known
        self._reader.missing = known is not None and any(part.lost for part in known.devices)

    def _report(self) -> None:
        self._lookout.report()

    def _build_server(self, settings: AgentSettings) -> Server:
        async def usage(_: web.Request) -> web.Response:
            return web.Response(body=msgspec.json.encode(self._lookout.usage), content_type="application/json")

        live = {"devices": self._lookout.fault}
        routes = [
            *probe_routes(live, {"report": lambda: self._reporter.fault}, self._metrics),
            web.get("/usage", usage),
        ]
        return Server("agent", *settings.bind, routes, self._metrics, max_body=65536, timeout=5)


def _kubelet(socket: str) -> Kubelet | None:
    if not socket:
        return None

    async def ask() -> list[PluginAllocation]:
        try:
            return list(await pod_resources.allocations(Path(socket)))
        except pod_resources.PodResourcesUnknown as error:
            raise AllocationsUnknown(str(error)) from error

    return ask


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
