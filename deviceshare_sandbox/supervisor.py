"""The supervising process of one sandbox: `python -m deviceshare_sandbox.supervisor DIR [PARENT]`.

It starts everything in the order in which the parts need each other, keeps it running, writes down how it is, and ends
it in reverse. It is a process of its own, so that `up --detach` can leave and tests can kill it. With PARENT, a process
id, it ends when that process has died.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

import msgspec
import structlog

from deviceshare import logs
from deviceshare.domain.admission.settings import GATES
from deviceshare.domain.contract import NAMESPACE
from deviceshare.kube.api import Api
from deviceshare.kube.connection import connect
from deviceshare.loops.ports import ApiError
from deviceshare_sandbox import credentials, nvml
from deviceshare_sandbox.components import Component, Components, choose_ports
from deviceshare_sandbox.credentials import SandboxAuthority, write_key
from deviceshare_sandbox.install import install
from deviceshare_sandbox.network import API_SERVICE, HOST, NODE, free_ports
from deviceshare_sandbox.processes import Child, Prober
from deviceshare_sandbox.real_node import NAME, RealNode
from deviceshare_sandbox.reports import SandboxError
from deviceshare_sandbox.simulated_gpus import SimulatedAgent, agent_component, agent_pod, agents_of
from deviceshare_sandbox.simulated_nodes import create_nodes, equip
from deviceshare_sandbox.simulated_pods import PODS
from deviceshare_sandbox.state import Layout, ProcessState, SandboxState
from deviceshare_sandbox.syscalls import die_with_parent

log = structlog.get_logger(__name__)

_READY_SECONDS = 120.0
_WATCH_SECONDS = 1.0


class Supervisor:
    """Runs one sandbox from its first process to its last."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._plan = layout.plan()
        self._ports = choose_ports()
        self._components = Components(layout, self._plan, self._ports)
        self._agents: list[SimulatedAgent] = []
        if self._plan.options.agents:
            self._agents = agents_of(layout, self._plan.options, free_ports(2 * self._plan.options.nodes))
        self._children: list[Child] = []
        self._state = SandboxState(
            pid=os.getpid(),
            server=self._components.server,
            version=self._plan.binaries.version,
            ports=self._ports,
            deviceshare_command=self._components.deviceshare.command,
        )

    async def run(self) -> None:
        """Brings everything up, keeps it up until cancelled, and takes it down; raises SandboxError when it can't."""
        authority = self._write_credentials()
        tokens = credentials.write_kubeconfigs(self._layout, self._components.server, authority)
        try:
            prober = Prober(authority)
            await self._bring_up(prober, tokens)
            self._say("ready", ready=True)
            async with asyncio.TaskGroup() as group:
                for child in self._children:
                    group.create_task(child.keep_alive(), name=f"keep {child.component.name}")
                group.create_task(self._watch(prober), name="watch")
        finally:
            # In reverse: the last started needs the others, and the API server outlives its clients.
            for child in reversed(self._children):
                await child.stop()

    def fail(self, error: Exception) -> None:
        """Records the error for the process that waits for this sandbox."""
        self._state.error = str(error)
        self._say("failed", ready=False)

    def _write_credentials(self) -> Path:
        pki = self._layout.pki
        authority = SandboxAuthority(pki)
        names = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
        authority.issue("kube-apiserver", names, ("127.0.0.1", HOST, API_SERVICE))
        authority.issue("loopback")
        authority.issue("kubelet", (), (NODE,))
        authority.issue_client("kubelet-client", "kube-apiserver", "system:masters")
        authority.issue("webhook")
        write_key(pki / "service-accounts.key")
        return authority.certificate

    async def _bring_up(self, prober: Prober, tokens: Path) -> None:
        parts, options = self._components, self._plan.options
        real = RealNode(self._layout, self._plan) if options.real_node else None
        if real:  # The API server listens on the link to it.
            await self._start(prober, real.containerd)
            self._say("importing images")
            await asyncio.to_thread(real.import_own_images)
        self._layout.agents.write_bytes(msgspec.json.encode(self._agents))
        # The API server exits if its store isn't there.
        await self._start(prober, parts.etcd)
        await self._start(prober, parts.apiserver(tokens))
        # CRDs and rights come before their users. Webhooks refuse groups until deviceshare answers.
        self._say("installing manifests")
        url = f"https://127.0.0.1:{self._ports.webhook}"
        await install(self._layout, self._plan, webhook_url=url)
        # These start together: all of them retry while the API server is busy or another isn't there yet.
        clients = [parts.controller_manager, parts.scheduler]
        clients += [] if options.bare or options.placement == GATES else [parts.deviceshare_scheduler]
        clients += [parts.deviceshare] if options.deviceshare else []
        if real:
            clients.append(real.kubelet)
        elif options.kubelet:
            clients.append(parts.kubelet)
        await self._start(prober, *clients)
        # Nodes come last, so that nothing is scheduled before every component runs.
        self._say("waiting for the node" if real else "creating nodes")
        async with connect(str(self._layout.kubeconfig)) as connection:
            if real:
                await equip(Api(connection), NAME, options)
                await self._start(prober, real.proxy)  # It asks for its node at its start, and then only after seconds.
            else:
                await create_nodes(Api(connection), options, self._plan.binaries.version, self._ports.kubelet)
                for agent in self._agents:
                    await Api(connection).create(PODS, agent_pod(agent), NAMESPACE)
        if self._agents:
            library = await asyncio.to_thread(nvml.build, self._layout.data)
            known = (self._layout, self._plan.binaries)
            theirs = [await asyncio.to_thread(credentials.agent_kubeconfig, *known, each.node) for each in self._agents]
            started = zip(self._agents, theirs, strict=True)
            await self._start(prober, *(agent_component(each, kubeconfig, library) for each, kubeconfig in started))

    async def _start(self, prober: Prober, *components: Component) -> None:
        self._say("starting " + ", ".join(component.name for component in components))
        children = [Child(component, self._layout.logs) for component in components]
        for child in children:
            self._children.append(child)
            await child.start()
        async with asyncio.TaskGroup() as group:
            for child in children:
                group.create_task(child.wait_healthy(prober, _READY_SECONDS), name=f"await {child.component.name}")

    async def _watch(self, prober: Prober) -> None:
        """Keeps the written state true, to the second."""
        while True:
            health = await asyncio.gather(*(prober.healthy(child.component.probe) for child in self._children))
            self._write([child.alive and healthy for child, healthy in zip(self._children, health, strict=True)])
            await asyncio.sleep(_WATCH_SECONDS)

    def _say(self, stage: str, *, ready: bool = False) -> None:
        log.info("Reached a stage", stage=stage)
        self._state.stage = stage
        self._state.ready = ready
        self._write([ready for _ in self._children])

    def _write(self, health: list[bool]) -> None:
        self._state.processes = [
            ProcessState(
                name=child.component.name,
                pid=child.pid,
                healthy=healthy,
                restarts=child.restarts,
                message=child.message,
                probe=child.component.probe,
            )
            for child, healthy in zip(self._children, health, strict=True)
        ]
        self._layout.write_state(self._state)


async def supervise(layout: Layout) -> int:
    """Runs the sandbox until SIGTERM or SIGINT; returns the exit status."""
    main, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert main is not None
    supervisor = Supervisor(layout)
    ending = False

    def end() -> None:
        nonlocal ending
        if not ending:  # A second signal must not interrupt the teardown.
            ending = True
            main.cancel()

    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, end)
    try:
        await supervisor.run()
    except asyncio.CancelledError:
        log.info("Ended")
        return 0
    except (SandboxError, ApiError, OSError, ExceptionGroup) as error:
        log.exception("Failed")
        supervisor.fail(_first(error))
        return 1
    return 0


def _first(error: Exception) -> Exception:
    """The cause among several: what failed first ended the others."""
    return _first(error.exceptions[0]) if isinstance(error, ExceptionGroup) else error


if __name__ == "__main__":
    logs.configure("console")
    if len(sys.argv) > 2:
        die_with_parent(signal.SIGTERM)
        if os.getppid() != int(sys.argv[2]):  # It died before it could be our parent.
            sys.exit(1)
    elif os.fork():
        os._exit(0)  # The process that started this one isn't its parent any more, and need not reap it.
    sys.exit(asyncio.run(supervise(Layout(Path(sys.argv[1])))))
