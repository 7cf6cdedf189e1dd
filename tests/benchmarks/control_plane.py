"""The least that schedules pods: etcd, kube-apiserver and nodes; and beside them, for a while, what is measured.

Nothing else runs, not even the controllers: with two cores, a bystander's work would count against whom it disturbs.
"""

import contextlib
import os
import resource
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml
from prometheus_client.parser import text_string_to_metric_families

from deviceshare import assets
from deviceshare.domain.admission import settings
from deviceshare.kube.api import Api
from deviceshare.kube.connection import Connection, connect
from deviceshare_sandbox import binaries, credentials
from deviceshare_sandbox.components import Component, Components, choose_ports
from deviceshare_sandbox.credentials import SandboxAuthority, write_key
from deviceshare_sandbox.install import install
from deviceshare_sandbox.processes import Child, Prober
from deviceshare_sandbox.reports import Progress
from deviceshare_sandbox.simulated_nodes import create_nodes
from deviceshare_sandbox.state import Layout, Options, SandboxPlan

_START_SECONDS = 60.0
_REQUEST_SECONDS = 60.0
_DRA_SINCE = 34
"""The minor of Kubernetes that serves resource.k8s.io/v1."""
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


class ControlPlane:
    """A running API server, and how to start more beside it."""

    def __init__(self, layout: Layout, plan: SandboxPlan, prober: Prober) -> None:
        self.nodes = plan.options.nodes
        self.kubeconfig = layout.kubeconfig
        self.ports = choose_ports()
        self.parts = Components(layout, plan, self.ports)
        """The schedulers and deviceshare, set up as in any sandbox, with webhooks."""
        self.profiled: Path | None = None
        """How the files of a profile of what is started next begin."""
        self._layout = layout
        self._plan = plan
        self._prober = prober
        self._children: list[Child] = []

    @property
    def webhook_url(self) -> str:
        return f"https://127.0.0.1:{self.ports.webhook}"

    def parts_with(self, admission: str) -> Components:
        """The same, where pods are admitted in this way."""
        return Components(self._layout, self._plan_with(admission), self.ports)

    def _plan_with(self, admission: str) -> SandboxPlan:
        options = msgspec.structs.replace(self._plan.options, admission=admission)
        return msgspec.structs.replace(self._plan, options=options)

    def scheduler_asking(self, extender: Mapping[str, Any]) -> Component:
        """deviceshare's kube-scheduler with another extender instead of deviceshare's; it takes the same ports."""
        options = msgspec.structs.replace(self._plan.options, extender=dict(extender))
        return Components(
            self._layout, msgspec.structs.replace(self._plan, options=options), self.ports
        ).deviceshare_scheduler

    @contextlib.asynccontextmanager
    async def beside(self, components: Sequence[Component]) -> AsyncIterator[None]:
        """Runs processes for the length of the block; entered when all are healthy."""
        started = [Child(component, self._layout.logs) for component in components]
        self._children += started
        try:
            for child in started:
                await child.start()
            for child in started:
                await child.wait_healthy(self._prober, _START_SECONDS)
            yield
        finally:
            for child in reversed(started):
                await child.stop()
                self._children.remove(child)

    @contextlib.asynccontextmanager
    async def admission(self, connection: Connection, mode: str) -> AsyncIterator[None]:
        """Registers deviceshare's webhooks, or policies, for the length of the block.

        The API server may learn of it a bit later.
        """
        documents = list(yaml.safe_load_all(self._layout.admission(mode).read_text()))
        paths = [f"/apis/{each['apiVersion']}/{_plural(each['kind'])}" for each in documents]
        for document, path in zip(documents, paths, strict=True):
            await send(connection, "POST", path, msgspec.json.encode(document))
        try:
            yield
        finally:
            for document, path in zip(documents, paths, strict=True):
                await send(connection, "DELETE", f"{path}/{document['metadata']['name']}")

    @property
    def serves_policies(self) -> bool:
        """Whether pods can be admitted by policies here."""
        return settings.serves_policies(self._plan.binaries.minor)

    @property
    def serves_claims(self) -> bool:
        """Whether pods can share ResourceClaims here."""
        return self._plan.binaries.minor >= _DRA_SINCE

    def write_policies(self) -> None:
        """Puts the policies beside the webhooks that are installed: `admission` reads either."""
        self._layout.admission(settings.POLICIES).write_text((assets.manifests() / "policies.yaml").read_text())

    def pids(self) -> dict[str, int]:
        """Of each process that runs, by name."""
        return {child.component.name: child.pid for child in self._children}

    def cpu_seconds(self) -> dict[str, float]:
        """Processor time so far of each process that runs, and of this one as `client`."""
        own = resource.getrusage(resource.RUSAGE_SELF)
        seconds = {child.component.name: _cpu_seconds(child.pid) for child in self._children}
        return seconds | {"client": own.ru_utime + own.ru_stime}


@contextlib.asynccontextmanager
async def control_plane(nodes: int, devices: int) -> AsyncIterator[tuple[ControlPlane, Connection]]:
    """Starts one in a temporary directory; yields it and an admin's connection."""
    with tempfile.TemporaryDirectory(prefix="deviceshare-benchmark-") as directory:
        layout = Layout(Path(directory))
        plan = SandboxPlan(
            Options(nodes=nodes, devices=devices, deviceshare=False, durable=True, admission=settings.WEBHOOKS),
            binaries.find(Progress()),
        )
        with _locked(layout, plan):
            authority = SandboxAuthority(layout.pki)
            authority.issue("kube-apiserver", ("localhost",), ("127.0.0.1",))
            authority.issue("loopback")
            authority.issue("webhook")
            write_key(layout.pki / "service-accounts.key")
            plane = ControlPlane(layout, plan, Prober(authority.certificate))
            tokens = credentials.write_kubeconfigs(layout, plane.parts.server, authority.certificate)
            async with (
                plane.beside([plane.parts.etcd]),
                plane.beside([plane.parts.apiserver(tokens)]),
                connect(str(layout.kubeconfig)) as connection,
            ):
                await install(layout, plan, webhook_url=plane.webhook_url)
                plane.write_policies()
                await create_nodes(Api(connection), plan.options, plan.binaries.version)
                yield plane, connection


async def send(connection: Connection, method: str, path: str, body: bytes | None = None) -> bytes:
    """One request; the answer's body."""
    return await connection.call(method, path, timeout=_REQUEST_SECONDS, body=body)


@contextlib.contextmanager
def _locked(layout: Layout, plan: SandboxPlan) -> Iterator[None]:
    with layout.lock():
        layout.prepare(plan)
        yield


async def requests(connection: Connection) -> Counter[str]:
    """How many requests the API server has answered, by what was asked, such as `POST pods/binding`.

    Without those that only look on: lists, watches and the pods that a benchmark itself creates and deletes.
    """
    asked: Counter[str] = Counter()
    text = (await send(connection, "GET", "/metrics")).decode()
    for family in text_string_to_metric_families(text):
        for name, labels, value, *_ in family.samples if family.name == "apiserver_request" else ():
            what = "/".join(filter(None, (labels["resource"], labels["subresource"])))
            request = f"{labels['verb']} {what}"
            looks_on = labels["verb"] in ("LIST", "WATCH", "CONNECT") or request in ("POST pods", "DELETE pods")
            if (
                name.endswith("_total")
                and what
                and not looks_on
                and labels["resource"] not in ("leases", "subjectaccessreviews")
            ):
                asked[request] += int(value)
    return asked


def _plural(kind: str) -> str:
    """The kind in a URL."""
    name = kind.lower()
    return f"{name.removesuffix('y')}ies" if name.endswith("y") else f"{name}s"


def _cpu_seconds(pid: int) -> float:
    # proc(5): user and system time are fields 14 and 15; the second, a name in parentheses, may hold blanks.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND
