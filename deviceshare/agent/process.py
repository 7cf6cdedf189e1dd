"""The composition root of `deviceshare agent`: builds the parts, starts them in order and stops them in order.

An agent is stateless: what must survive it is in its node's NodeDevices, and is read back before anything is written.
So when a part fails, the process ends, and the kubelet restarts it.
"""

import asyncio
from functools import partial
from pathlib import Path

import msgspec
import structlog
from msgspec.structs import replace

from deviceshare import __version__, amd, daemon, nvidia, timestamps
from deviceshare.agent.allocations import Allocations, ask_kubelet
from deviceshare.agent.device_reader import CdiSpecs, DeviceReader
from deviceshare.agent.memory_limits import LimitDriver, MemoryLimits, is_intercepted
from deviceshare.agent.metrics import AgentMetrics, of_devices, of_limits, of_turns
from deviceshare.agent.monitor import DeviceMonitor
from deviceshare.agent.own_node import NODE_PODS, OwnNode
from deviceshare.agent.pods_api import Callers, TurnsApi, pods_server, smi_endpoint
from deviceshare.agent.process_table import ProcessTable
from deviceshare.agent.settings import AgentSettings
from deviceshare.agent.turns import TurnRecords, TurnReports, Turns
from deviceshare.agent.violations import Evictions, Violations
from deviceshare.domain.device_health.containers import NodePod
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.flags import Address
from deviceshare.kube.api import Api
from deviceshare.kube.mirror import ApiMirror
from deviceshare.kube.recorder import EventRecorder
from deviceshare.loops.kinds import NODE_DEVICES
from deviceshare.web.messages import HttpRequest, Response, Route
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
            writer=api,
            now=timestamps.now,
            left_out=settings.excluded_namespaces,
        )
        self._processes = ProcessTable(settings.proc_root)
        self._evictions = Evictions(node, self._metrics.count_eviction)
        violations = Violations(
            node,
            self._evictions,
            enforced=settings.enforced,
            tolerance=settings.overuse_tolerance,
            grace=settings.overuse_grace,
        )
        ask = partial(ask_kubelet, Path(settings.pod_resources)) if settings.pod_resources else None
        self._allocations = Allocations(node, ask, settings.placeholders)
        self._monitor = monitor = DeviceMonitor(node, violations, self._metrics.count_xid)
        specs = CdiSpecs(settings.cdi_directories)
        self._reader = DeviceReader(
            monitor.take,
            processes=self._processes,
            sysfs=settings.sys_root,
            specs=specs,
            visible=settings.visible_devices,
            missing=lambda: any(part.lost for part in node.report.known.devices),
        )
        self._limits = MemoryLimits(
            node,
            partial(_limit_driver, settings),
            mode=settings.memory_limits,
            root=settings.cgroup_root,
            intercepts=is_intercepted(settings.proc_root),
            hook=lambda: specs.memory_hook,
            on_limited=self._metrics.limited.observe,
            on_repaired=self._metrics.limits_repaired.inc,
        )
        self._metrics.watch(lambda: of_limits(self._limits.outcome))
        report = node.report
        self._metrics.watch(lambda: of_devices(report.judged, monitor.usage, report.reports, node.groups()))
        directory = settings.turns_directory
        records = TurnRecords(Path(directory), self._processes) if directory else None
        self._turns = Turns(self._processes, records, self._metrics)
        self._metrics.watch(lambda: of_turns(self._turns.view()))
        self._turn_reports = TurnReports(node, self._turns.queues if settings.serve_pods else list)
        self._server = self._build_server(settings)
        self._pods_server = self._build_pods_server(settings.serve_pods) if settings.serve_pods else None

    async def run(self, stopping: asyncio.Event) -> int:
        """Starts all parts, waits for the signal or for a part to fail, stops all parts; returns the exit code.

        Start: the probes first, so that a start that hangs can be diagnosed; the mirrors, from which the last report
        is read; the writers; the device reader; last, what pods ask. Stop: in reverse.
        """
        log.info("Started agent", version=__version__, node=self._node.name)
        async with daemon.Background(stopping) as background:
            await background.start(self._server)
            background.run("mirror-ledgers", self._ledgers.run)
            background.run("mirror-pods", self._pods.run)
            background.run("recorder", self._recorder.run)
            background.run("evictions", self._evictions.run)
            background.run("report", self._node.report.run)
            background.run("allocations", self._allocations.run)
            background.run("device-reader", self._reader.run)
            if self._limits.enabled:
                background.run("memory-limits", self._limits.run)
            background.run("turn-reports", self._turn_reports.run)
            if self._pods_server:
                background.on_stop(self._processes.close)  # what pods ask reads it
                background.run("turns", self._turns.run)
                await background.start(self._pods_server)
                background.on_stop(self._turns.stop)
            await stopping.wait()
            log.info("Stopping agent", failed=background.failure is not None)
        log.info("Stopped agent")
        return 1 if background.failure else 0

    def _build_server(self, settings: AgentSettings) -> Server:
        async def usage(_: HttpRequest) -> Response:
            return _json(replace(self._monitor.usage, turns=self._turns.view()))

        async def use(_: HttpRequest) -> Response:
            return _json(self._monitor.last_hour.view())

        live = {"devices": self._monitor.fault}
        ready = {"report": lambda: self._node.report.fault, "limits": lambda: self._limits.fault}
        routes = [*probe_routes(live, ready, self._metrics), Route("GET", "/usage", usage), Route("GET", "/use", use)]
        return Server("agent", *settings.bind, routes, self._metrics, max_body=65536, timeout=5)

    def _build_pods_server(self, address: Address) -> Server:
        callers = Callers(self._node, self._processes.may_run)
        smi = smi_endpoint(self._node, callers, lambda: self._monitor.usage)
        turns = TurnsApi(self._turns, callers)
        return pods_server(address, [smi, *turns.endpoints], self._metrics)


def _limit_driver(settings: AgentSettings) -> LimitDriver:
    sysfs, root = settings.sys_root, settings.cgroup_root
    return amd.Dmem(sysfs, root) if amd.is_here(sysfs) else nvidia.Driver(root)


def _json(answer: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(answer))
