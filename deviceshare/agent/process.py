"""The composition root of `deviceshare agent`: builds the parts, starts them in order and stops them in order.

An agent is stateless: what must survive it is in its node's NodeDevices, and is read back before anything is written.
So when a part fails, the process ends, and the kubelet restarts it.
"""

import asyncio
from functools import partial
from pathlib import Path

import msgspec
import structlog
from aiohttp import web
from msgspec.structs import replace

from deviceshare import __version__, daemon, timestamps
from deviceshare.agent.cdi_specs import CdiSpecs
from deviceshare.agent.device_reader import DeviceReader
from deviceshare.agent.metrics import AgentMetrics
from deviceshare.agent.pod_processes import PodProcesses
from deviceshare.agent.pods_api.caller import Callers
from deviceshare.agent.pods_api.server import pods_server
from deviceshare.agent.pods_api.smi import smi_endpoint
from deviceshare.agent.pods_api.streams import Streams
from deviceshare.agent.pods_api.turns import TurnsApi
from deviceshare.agent.settings import AgentSettings
from deviceshare.agent.turn_processes import TurnProcesses, boot_and_namespace
from deviceshare.agent.turn_records import TurnRecords
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.flags import Address
from deviceshare.kube.api import Api
from deviceshare.kube.mirror import ApiMirror
from deviceshare.kube.recorder import EventRecorder
from deviceshare.kubelet import pod_resources
from deviceshare.loops.agent.allocations import Allocations
from deviceshare.loops.agent.evictions import OVERUSE, Evictions
from deviceshare.loops.agent.guard import IntruderGuard
from deviceshare.loops.agent.judge import Judge
from deviceshare.loops.agent.last_hour import LastHour
from deviceshare.loops.agent.lookout import Lookout
from deviceshare.loops.agent.own_node import OwnNode
from deviceshare.loops.agent.ports import NODE_PODS, NodePod, Sight
from deviceshare.loops.agent.referee import Referee
from deviceshare.loops.agent.reporter import Reporter
from deviceshare.loops.agent.share_watch import ShareWatch
from deviceshare.loops.agent.turn_reports import TurnReports
from deviceshare.loops.background import Background
from deviceshare.loops.kinds import NODE_DEVICES
from deviceshare.web.probes import probe_routes
from deviceshare.web.server import Server

log = structlog.get_logger(__name__)


def main(settings: AgentSettings) -> int:
    """Runs until SIGTERM or SIGINT; returns the exit code."""
    return daemon.main(settings.kubeconfig, lambda api, stopping: Agent(settings, api).run(stopping))


class Agent:
    """All parts of one agent."""

    def __init__(self, settings: AgentSettings, api: Api) -> None:
        name = settings.node_name
        self._metrics = AgentMetrics()
        self._recorder = EventRecorder(api, name)
        self._ledgers: ApiMirror[NodeDevices] = ApiMirror(api, NODE_DEVICES, field_selector=f"metadata.name={name}")
        self._pods: ApiMirror[NodePod] = ApiMirror(api, NODE_PODS, field_selector=f"spec.nodeName={name}")
        self._node = node = OwnNode(
            name=name,
            ledgers=self._ledgers,
            pods=self._pods,
            recorder=self._recorder,
            now=timestamps.now,
            left_out=settings.excluded_namespaces,
        )
        self._reporter = Reporter(api, node)
        self._judge = Judge(node, on_xid=self._metrics.count_xid)
        self._evictions = Evictions(api, on_evicted=self._metrics.count_eviction)
        self._allocations = Allocations(
            partial(pod_resources.allocations, Path(settings.pod_resources)) if settings.pod_resources else None,
            self._pods,
            lambda: self._judge.known.devices if self._judge.known else (),
            lambda: self._lookout.report(),  # noqa: PLW0108 the lookout is built below
            settings.placeholders,
        )
        self._lookout = Lookout(
            node,
            judge=self._judge,
            guard=IntruderGuard(node, self._evictions.want if settings.evicts_trespassers else None),
            shares=ShareWatch(
                node,
                tolerance=settings.overuse_tolerance,
                grace=settings.overuse_grace,
                evict=partial(self._evictions.want, cause=OVERUSE) if settings.evicts_overusers else None,
                spare=partial(self._evictions.withdraw, cause=OVERUSE),
            ),
            allocations=self._allocations,
            reporter=self._reporter,
        )
        self._reader = DeviceReader(
            self._take,
            proc=settings.proc_root,
            sysfs=settings.sys_root,
            specs=CdiSpecs(settings.cdi_directories),
            visible=settings.visible_devices,
        )
        self._metrics.watch_devices(
            lambda: self._lookout.hardware, lambda: self._lookout.usage, lambda: self._reporter.reports, node.groups
        )
        self._last_hour = LastHour(node.clock)
        self._referee = _referee(settings, self._metrics)
        self._metrics.watch_turns(self._referee.view)
        self._turn_reports = TurnReports(self._lookout, self._referee.arenas if settings.serve_pods else list)
        self._server = self._build_server(settings)
        self._pods_server = self._build_pods_server(settings, settings.serve_pods) if settings.serve_pods else None

    async def run(self, stopping: asyncio.Event) -> int:
        """Starts all parts, waits for the signal or for a part to fail, stops all parts; returns the exit code.

        Start: the probes first, so that a start that hangs can be diagnosed; the mirrors, from which the last report
        is read; the writers; the device reader; last, what pods ask. Stop: in reverse.
        """
        log.info("Started agent", version=__version__, node=self._node.name)
        async with Background(stopping) as background:
            await background.start(self._server)
            background.run("mirror-ledgers", self._ledgers.run)
            background.run("mirror-pods", self._pods.run)
            background.run("recorder", self._recorder.run)
            background.run("evictions", self._evictions.run)
            background.run("report", self._reporter.run)
            background.run("allocations", self._allocations.run)
            background.run("device-reader", self._reader.run)
            background.run("turn-reports", self._turn_reports.run)
            if self._pods_server:
                background.run("referee", self._referee.run)
                await background.start(self._pods_server)
                background.on_stop(self._referee.stop)
            await stopping.wait()
            log.info("Stopping agent", failed=background.failure is not None)
        log.info("Stopped agent")
        return 1 if background.failure else 0

    def _take(self, sight: Sight) -> None:
        self._lookout.take(sight)
        self._last_hour.take(self._lookout.usage)
        known = self._judge.known
        self._reader.missing = known is not None and any(part.lost for part in known.devices)

    def _build_server(self, settings: AgentSettings) -> Server:
        async def usage(_: web.Request) -> web.Response:
            now = replace(self._lookout.usage, turns=self._referee.view())
            return web.Response(body=msgspec.json.encode(now), content_type="application/json")

        async def use(_: web.Request) -> web.Response:
            return web.Response(body=msgspec.json.encode(self._last_hour.view()), content_type="application/json")

        live = {"devices": self._lookout.fault}
        routes = [
            *probe_routes(live, {"report": lambda: self._reporter.fault}, self._metrics),
            web.get("/usage", usage),
            web.get("/use", use),
        ]
        return Server("agent", *settings.bind, routes, self._metrics, max_body=65536, timeout=5)

    def _build_pods_server(self, settings: AgentSettings, address: Address) -> Server:
        callers, streams = Callers(self._node, PodProcesses(settings.proc_root).may_run), Streams()
        endpoints = [
            smi_endpoint(self._node, callers, lambda: self._lookout.usage),
            *TurnsApi(self._referee, callers, streams).endpoints,
        ]
        return pods_server(address, endpoints, self._metrics)


def _referee(settings: AgentSettings, metrics: AgentMetrics) -> Referee:
    directory, proc = settings.turns_directory, settings.proc_root
    records = TurnRecords(Path(directory), *boot_and_namespace(proc)) if directory else None
    return Referee(TurnProcesses(proc), records, metrics)
