"""One process: the roles its settings name, started and ended in order."""

import asyncio
import ssl
from collections.abc import Generator, Iterator
from functools import partial
from typing import Any
from uuid import uuid4

import structlog

from deviceshare import __version__, daemon, timestamps
from deviceshare.certificates.keeper import Keeper, RenewalPace
from deviceshare.certificates.serving import Certificate
from deviceshare.domain.admission.pod_guard import PodGuard
from deviceshare.domain.admission.settings import GATES
from deviceshare.domain.answers import census
from deviceshare.domain.answers.picture import draw_in_steps
from deviceshare.flags import Tls
from deviceshare.kube.api import Api, Pulse
from deviceshare.kube.definitions import Definitions
from deviceshare.kube.mirror import count_unreadable
from deviceshare.kube.mirrors import Mirrors
from deviceshare.kube.recorder import EventRecorder
from deviceshare.kube.use_rounds import UseRounds
from deviceshare.loops.kinds import NODE_DEVICES, PODS
from deviceshare.loops.leader.context import ControllerContext
from deviceshare.loops.leader.controller import Controller
from deviceshare.loops.leadership import Elector
from deviceshare.loops.ports import Mirror, Subject
from deviceshare.loops.protocol import bind
from deviceshare.loops.replica.binder import Binder
from deviceshare.loops.replica.guarded_cluster import GuardedCluster
from deviceshare.loops.replica.impostor_watch import ImpostorWatch
from deviceshare.metrics import Metrics
from deviceshare.run.settings import Settings
from deviceshare.web import admission, extender, ui
from deviceshare.web.admission import Admission, namespace_of
from deviceshare.web.extender import Extender
from deviceshare.web.probes import Check, probe_routes
from deviceshare.web.server import Server
from deviceshare.web.ui import Snapshots

log = structlog.get_logger(__name__)

DRAIN_SECONDS = 1.5
"""Between "not ready" and closing the servers, for clients that still have our address: kube-proxy takes a second to
forget a pod that ends. More would let the next leader begin later than it need."""


def main(settings: Settings) -> int:
    """Runs until SIGTERM or SIGINT; returns the exit code."""
    daemon.collect_less_often()
    return daemon.main(settings.kubeconfig, lambda api, stopping: Process(settings, api).run(stopping))


class Process:
    """All parts of one deviceshare."""

    def __init__(self, settings: Settings, api: Api, *, trust_pace: RenewalPace = RenewalPace()) -> None:  # noqa: B008 it is frozen
        self._settings = settings
        self._api = api
        self._trust_pace = trust_pace
        self._metrics = Metrics()
        self._recorder = EventRecorder(api, settings.instance)
        self._pulse = Pulse(api)
        self._guard = PodGuard(settings.left_out)
        self._interrupted = asyncio.Event()
        """Set when a term must end, since nothing that it concluded may be written any more."""
        self._definitions = Definitions(api, on_fault=self._interrupted.set)
        self._cluster = GuardedCluster(
            api, self._guard, settings.sharing_labels, self._definitions.fault, self._report_too_large
        )
        gates = settings.placement == GATES
        self._mirrors = mirrors = Mirrors(
            api,
            self._guard,
            settings.sharing_labels,
            dra="controller" in settings.roles,
            every_pod=gates,
            uninjected=settings.uninjected,
            on_rewind=self._interrupted.set,
        )
        self._fleet = mirrors.fleet
        self._binder = Binder(
            self._cluster,
            self._fleet,
            groups=mirrors.groups,
            ledgers=mirrors.ledgers,
            quotas=mirrors.quotas,
            on_conflict=self._metrics.claim_conflicts.inc,
            lifts=gates,
            keeps_nodes=settings.keep_nodes,
            holds_namespace=settings.namespace,
        )
        mirrors.pods.subscribe(self._binder.change)
        self._controller: Controller | None = None
        # A process that restarts within its predecessor's lease must not be taken for it.
        identity = f"{settings.instance}_{uuid4().hex[:8]}"
        self._elector = Elector(api, identity, namespace=settings.namespace, timing=settings.lease)
        self._impostors = ImpostorWatch(self._cluster, mirrors.pods, self._recorder)
        self._snapshots = Snapshots(self._draw_page)
        self._use = UseRounds(api, settings.namespace)
        self._certificates: dict[str, Certificate] = {}
        self._keeper: Keeper | None = None
        self._servers = self._build_servers()
        self._probes = self._build_probes()
        self._metrics.leader.set_function(lambda: float(self._elector.leading))
        self._metrics.watch(self.measure)

    def _report_too_large(self, subject: Subject) -> None:
        self._metrics.too_large.labels(subject.kind.kind).inc()
        mirrors: dict[str, Mirror[Any]] = {NODE_DEVICES.kind: self._mirrors.ledgers, PODS.kind: self._mirrors.pods}
        mirror = mirrors.get(subject.kind.kind)
        known = mirror.get(f"{subject.namespace}/{subject.name}".lstrip("/")) if mirror else None
        uid = known.metadata.uid if known else ""
        text = "deviceshare can't write it: it would be larger than the API server stores; deviceshare doctor"
        self._recorder.warn(subject._replace(uid=uid), "TooLarge", text)

    async def run(self, stopping: asyncio.Event) -> int:
        """Starts everything, waits for the signal or for a part to fail, stops everything; returns the exit code.

        Start: the probes first, so that a start that hangs can be examined; the mirrors; the election, which waits for
        the mirrors; last the other servers, which answer "not ready" as long as those aren't synced. Stop, in reverse:
        readiness says no while the servers are still open; requests under way end; the leader's work stops and then its
        lease is released; what people should read is posted; the mirrors go last, since everything above reads them.
        """
        settings = self._settings
        log.info("Started deviceshare", version=__version__, roles=sorted(settings.roles), admission=settings.admission)
        async with daemon.Background(stopping) as background:
            await background.start(self._probes)
            for name, mirror in self._mirrors.by_name.items():
                background.run(f"mirror-{name}", mirror.run)
            background.run("definitions", self._definitions.run)
            background.run("memory", partial(daemon.keep_small, self._mirrors.wait_listed))
            background.run("pulse", self._pulse.run)
            background.run("recorder", self._recorder.run)
            background.run("impostors", self._impostors.run)
            for name, certificate in self._certificates.items():
                background.run(f"{name}-certificate", certificate.watch)
            if self._keeper is not None:
                background.run("trust", self._keeper.run)
            background.run("snapshots", self._snapshots.run)
            if settings.ui_bind:
                background.run("use-rounds", self._use.run)
            background.on_stop(self._binder.close)
            if "controller" in settings.roles:
                background.run("election", self._lead)
            for server in self._servers:
                await background.start(server)
            await stopping.wait()
            log.info("Stopping deviceshare", failed=background.failure is not None)
            await self._drain()
        log.info("Stopped deviceshare")
        return 1 if background.failure else 0

    async def _drain(self) -> None:
        for server in (self._probes, *self._servers):
            server.draining = True
        self._snapshots.close()
        await asyncio.sleep(DRAIN_SECONDS)

    async def _lead(self) -> None:
        while True:
            self._interrupted.clear()
            # Nothing may be concluded from a cluster that is only half read, nor written where fields would be dropped.
            await self._mirrors.wait_listed()
            await self._definitions.wait_complete()
            await self._elector.run(self._reconcile)

    async def _reconcile(self) -> None:
        """One term as the leader, which ends when it is interrupted."""
        version = self._pulse.version  # without one, the leader waits as long as the oldest server needs
        term = ControllerContext(
            cluster=self._cluster,
            fleet=self._fleet,
            groups=self._mirrors.groups,
            ledgers=self._mirrors.ledgers,
            nodes=self._mirrors.nodes,
            pods=self._mirrors.pods,
            others=self._mirrors.others,
            slices=self._mirrors.slices,
            resource_claims=self._mirrors.resource_claims,
            claims_known=lambda: self._mirrors.resource_claims.known,
            namespaces=self._mirrors.namespaces,
            quotas=self._mirrors.quotas,
            recorder=self._recorder,
            binds_over=bind.binds_over(version),
            compares=bind.compares(version),
            handover=self._settings.handover_setting,
            lifting=self._binder if self._settings.placement == GATES else None,
            share_resources=self._settings.share_resources,
            life=self._settings.life,
            preempts=self._settings.preemption,
            scaling_namespace=self._settings.namespace if self._settings.scaling_pods else "",
            holds_namespace=self._settings.namespace,
            holds=self._settings.dra_holds,
            group_binder=self._binder if self._settings.dra_handover else None,
            uninjected=self._mirrors.uninjected,
            namespace_selector=self._settings.namespace_selector,
            on_recreated=self._metrics.recreated_pods.inc,
            on_released=self._metrics.released_groups.inc,
            on_uncovered=self._metrics.uncovered_pods.set,
        )
        self._controller = Controller(term)
        try:
            async with asyncio.TaskGroup() as tasks:
                working = tasks.create_task(self._controller.run(), name="controller")
                await self._interrupted.wait()
                log.warning("Ended the term as the leader", fault=self._definitions.fault())
                working.cancel()
        finally:
            self._controller = None

    def _build_probes(self) -> Server:
        live: dict[str, Check] = {"controller": lambda: self._controller.stuck() if self._controller else ""}
        ready: dict[str, Check] = {name: mirror.fault for name, mirror in self._mirrors.by_name.items()}
        ready["definitions"] = self._definitions.fault
        ready["api-server"] = self._pulse.fault
        ready["shutdown"] = lambda: "stopping" if self._probes.draining else ""
        if self._keeper is not None:
            ready["certificate"] = self._keeper.fault
        routes = probe_routes(live, ready, self._metrics)
        return Server("probe", *self._settings.probe_bind, routes, self._metrics, max_body=65536, timeout=5)

    def _build_servers(self) -> list[Server]:
        servers = []
        if self._settings.serves_extender:
            servers.append(self._build_extender())
        if self._settings.serves_webhooks:
            servers.append(self._build_webhooks())
        if at := self._settings.ui_bind:
            for mirror in self._mirrors.by_name.values():
                mirror.subscribe(self._snapshots.touch)
            routes = ui.Ui(self._snapshots, at.host, self._use.current).routes()
            servers.append(Server("ui", *at, routes, self._metrics, max_body=ui.MAX_BODY, timeout=ui.TIMEOUT))
        return servers

    def _build_extender(self) -> Server:
        settings, mirrors, files = self._settings, self._mirrors, self._settings.extender_tls
        serving = Extender(
            *(self._fleet, mirrors.groups, self._binder, self._fault, self._guard),
            own_name=None if files else settings.extender_bind.host,
            # Its kube-scheduler may be a release older than the API server.
            since_1_21=lambda: (self._pulse.version or (1, 20)) >= (1, 22),
        )
        return Server(
            "extender",
            *settings.extender_bind,
            serving.routes(),
            self._metrics,
            max_body=extender.MAX_BODY,
            timeout=extender.TIMEOUT,
            connections=extender.MAX_CONNECTIONS,
            at_once=extender.MAX_AT_ONCE,
            tls=self._certificate_of("extender", files) if files else None,
        )

    def _fault(self) -> str:
        """Why no pod may be placed now, or ""."""
        return self._definitions.fault() or ("" if self._mirrors.synced else extender.STARTING)

    def _build_webhooks(self) -> Server:
        settings, files = self._settings, self._settings.webhook_tls
        reviewing = Admission(
            self._mirrors.groups,
            self._mirrors.pods,
            settings.identity,
            settings.agent_identity,
            bypasses=settings.bypasses,
            injection=settings.injection,
            largest=self._fleet.largest,
            by_claim=settings.dra_handover,
            life=settings.life,
            namespaces=self._fleet.namespaces,
            quotas=self._fleet.quotas,
        )
        return Server(
            "webhook",
            *settings.webhook_bind,
            reviewing.routes(),
            self._metrics,
            max_body=admission.MAX_BODY,
            timeout=2,
            connections=admission.MAX_CONNECTIONS,
            tenant=namespace_of,
            tls=self._certificate_of("webhook", files) if files else self._own_certificate(),
        )

    def measure(self) -> Iterator[census.Measured]:
        """The metrics of the whole cluster, as this replica's mirrors show it."""
        mirrors = self._mirrors
        yield from census.measure(
            *(mirrors.fleet, mirrors.groups.values(), mirrors.pods.values(), mirrors.quotas.values()),
            leads=self._elector.leading,
            most_groups=self._settings.group_metrics,
            now=timestamps.micro_now(),
        )
        text = "Objects that can't be decoded as their kind; their devices count as in use (see deviceshare doctor)."
        yield "deviceshare_unreadable_objects", text, ["kind"], count_unreadable(mirrors.by_name.values()).items()
        text = "Fields of this release that the CRD in the cluster lacks; while there are any, nothing is written."
        yield "deviceshare_missing_crd_fields", text, ["crd"], self._definitions.dropped().items()
        sizes = ((name, len(mirror)) for name, mirror in mirrors.by_name.items())
        yield "deviceshare_mirrored_objects", "Objects held in memory, by mirror.", ["mirror"], sizes
        if self._keeper is not None:
            text = "When the serving certificate that deviceshare issued to itself, and its authority, expire."
            expiries = self._keeper.expiries().items()
            yield "deviceshare_certificate_expiry_timestamp_seconds", text, ["certificate"], expiries

    def _draw_page(self) -> Generator[None, None, bytes]:
        mirrors = self._mirrors
        faults = {name: fault for name, mirror in mirrors.by_name.items() if (fault := mirror.fault())}
        replica = ui.Replica(self._settings.instance, __version__, self._elector.leading, faults)
        drawn = yield from draw_in_steps(mirrors.fleet, mirrors.groups.values(), mirrors.pods.values())
        yield
        return ui.encode(replica, drawn)

    def _certificate_of(self, server: str, tls: Tls) -> ssl.SSLContext:
        """Files: read again when they change."""
        certificate = self._certificates[server] = Certificate(tls.certificate, tls.key, clients=tls.clients)
        return certificate.context

    def _own_certificate(self) -> ssl.SSLContext:
        """A certificate that deviceshare makes for itself. Until then it isn't ready."""
        settings = self._settings
        certificate = self._certificates["webhook"] = Certificate(clients=settings.webhook_client_ca)
        self._keeper = Keeper(
            self._api,
            namespace=settings.namespace,
            secret=settings.ca_secret,
            configuration=settings.webhook_config,
            dns_names=settings.webhook_names,
            addresses=settings.webhook_addresses,
            serve=certificate.use,
            leading=lambda: self._elector.leading,
            pace=self._trust_pace,
        )
        return certificate.context
