"""Simulated nodes: real Node objects with nothing behind them but their kubelets, all in one process.

`python -m deviceshare_sandbox.simulated_nodes DIR PORT CERTIFICATE KEY` runs the kubelets. Like the real one,
each has one worker per pod, which looks at the pod, does one step and looks again, and renews a Lease per node, without
which the node lifecycle controller would report the node unreachable
(https://kubernetes.io/docs/concepts/architecture/leases/#node-heart-beats).
https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/node-v1/
"""

import asyncio
import datetime
import signal
import ssl
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec
import structlog
from aiohttp import web

from deviceshare import logs, timestamps
from deviceshare.domain import vendors
from deviceshare.domain.contract import INVENTORY_ANNOTATION, MODE_LABEL, MODE_SHARED
from deviceshare.domain.objects.nodes import Node
from deviceshare.kube.api import Api
from deviceshare.kube.connection import Connection, connect
from deviceshare.kube.mirror import ApiMirror
from deviceshare.loops.kinds import LEASES, NODES
from deviceshare.loops.ports import AlreadyExists, ApiError, NotFound, ObjectChange
from deviceshare_sandbox.reports import SandboxError
from deviceshare_sandbox.simulated_gpus import SimulatedAgent, SimulatedGpus
from deviceshare_sandbox.simulated_network import Address, serve_egress
from deviceshare_sandbox.simulated_pods import (
    PODS,
    SIMULATED,
    KubeletPod,
    Patch,
    Remove,
    environment,
    host_ip,
    next_step,
    recorded,
)
from deviceshare_sandbox.state import Layout, Options

log = structlog.get_logger(__name__)


_AT_ONCE = 16
_READY_SECONDS = 60.0
_POLL_SECONDS = 0.2
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


async def create_nodes(api: Api, options: Options, version: str, kubelet_port: int = 0) -> None:
    """Creates node-1 to node-N; one that is there already is left as it is."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def create(name: str) -> None:
        async with slots:
            try:
                await api.create(NODES, node(name, options, version, kubelet_port))
            except AlreadyExists:
                return
            # Admission taints every new node until a controller has seen its condition; ours are ready from the start.
            await api.patch(NODES, name, {"spec": {"taints": None}})

    async with asyncio.TaskGroup() as group:
        for number in range(1, options.nodes + 1):
            group.create_task(create(f"node-{number}"), name=f"create node-{number}")


async def equip(api: Api, name: str, options: Options) -> None:
    """Waits until a real kubelet has reported its node ready, and annotates it with the devices that it is to have.

    Raises SandboxError when that takes more than a minute.
    """
    try:
        async with asyncio.timeout(_READY_SECONDS):
            while not await _ready(api, name):  # noqa: ASYNC110 - what is waited for is another process's doing
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError:
        raise SandboxError(f"{name} wasn't ready after {_READY_SECONDS:.0f} s; see kubelet.log") from None
    annotations = {INVENTORY_ANNOTATION: f"{options.resource}={options.devices}"}
    await api.patch(NODES, name, {"metadata": {"annotations": annotations, "labels": memory_labels(options)}})


async def _ready(api: Api, name: str) -> bool:
    try:
        return (await api.get(NODES, name)).ready
    except NotFound:
        return False


def node(name: str, options: Options, version: str, kubelet_port: int = 0) -> dict[str, Any]:
    """A shared node with `options.devices` devices, as a kubelet with a device plugin would register it."""
    capacity = {"cpu": "64", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": "500"}
    if options.devices:
        capacity[options.resource] = str(options.devices)
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        MODE_LABEL: MODE_SHARED,
        SIMULATED: "true",
        **memory_labels(options),
    }
    return {
        "metadata": {"name": name, "labels": labels},
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "conditions": conditions(),
            "addresses": [
                {"type": "InternalIP", "address": host_ip(name)},
                {"type": "Hostname", "address": name},
                {"type": "InternalDNS", "address": "localhost"},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet_port}},
            "nodeInfo": {"kubeletVersion": version, "operatingSystem": "linux", "architecture": "amd64"}
            | dict.fromkeys(
                ("machineID", "systemUUID", "kernelVersion", "osImage", "containerRuntimeVersion"), "simulated"
            )
            # It booted when this machine did, and an agent that is run for it reports the same.
            | {"kubeProxyVersion": version, "bootID": BOOT_ID.read_text().strip()},
        },
    }


def memory_labels(options: Options) -> dict[str, str]:
    """How much memory each device has, as GPU feature discovery writes it."""
    if options.resource != vendors.NVIDIA.resource or not options.memory_mib:
        return {}
    return {f"{options.resource}.memory": str(options.memory_mib)}


def conditions() -> list[dict[str, str]]:
    """What a healthy kubelet reports."""
    now = timestamps.now()
    healthy = {"Ready": "True", "MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False"}
    return [
        {
            "type": type_,
            "status": status,
            "reason": "SandboxKubelet",
            "message": "the sandbox simulates this node",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        for type_, status in healthy.items()
    ]


HEARTBEAT_SECONDS = 20.0
LEASE_SECONDS = 60
_WRITES_AT_ONCE = 32
_RETRY_SECONDS = 0.5
_DELETE_TIMEOUT = 10.0


class Kubelet:
    """Runs the pods of every node labelled `sandbox.deviceshare.io/simulated`, those added later included."""

    def __init__(self, connection: Connection, gpus: SimulatedGpus) -> None:
        self._connection = connection
        self._gpus = gpus
        self._api = Api(connection)
        self._nodes: ApiMirror[Node] = ApiMirror(self._api, NODES, label_selector=SIMULATED)
        self._pods: ApiMirror[KubeletPod] = ApiMirror(self._api, PODS, field_selector="spec.nodeName!=")
        self._changes: dict[str, asyncio.Event] = {}
        """UID → set when that pod changed."""
        self._slots = asyncio.Semaphore(_WRITES_AT_ONCE)

    @property
    def healthy(self) -> bool:
        """Whether it sees the cluster as it is."""
        return self._nodes.synced and self._pods.synced

    def pod(self, key: str) -> KubeletPod | None:
        """The pod of this namespace and name, as it is now."""
        return self._pods.get(key)

    def listener_of(self, address: Address) -> Address:
        """What listens for an address of the pods' network."""
        return self._gpus.listener_of(address, self._pods.values())

    async def run(self) -> None:
        """Works until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._nodes.run(), name="nodes")
            await self._nodes.wait_listed()
            group.create_task(self._pods.run(), name="pods")
            group.create_task(self._heartbeats(), name="heartbeats")
            self._pods.subscribe(lambda change: self._pod_changed(group, change.new))
            self._pods.subscribe(lambda change: self._run_programs(group, change.sides[-1].spec.node_name))
            self._nodes.subscribe(lambda change: self._node_changed(group, change))

    def _run_programs(self, group: asyncio.TaskGroup, node: str) -> None:
        self._gpus.take(group, node, (pod for pod in self._pods.values() if pod.spec.node_name == node))

    def _pod_changed(self, group: asyncio.TaskGroup, pod: KubeletPod | None) -> None:
        if pod is None or self._nodes.get(pod.spec.node_name) is None:
            return
        uid = pod.metadata.uid
        if uid not in self._changes:
            self._changes[uid] = asyncio.Event()
            group.create_task(self._work(pod.metadata.key, uid), name=f"pod {pod.metadata.key}")
        self._changes[uid].set()

    async def _work(self, key: str, uid: str) -> None:
        changed = self._changes[uid]
        try:
            while (pod := self._pods.get(key)) is not None and pod.metadata.uid == uid:
                changed.clear()
                pause = await self._do(pod)
                if pause != 0:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(pause):
                            await changed.wait()
        finally:
            del self._changes[uid]

    async def _do(self, pod: KubeletPod) -> float | None:
        """Takes the pod's next step; returns the seconds until it should be looked at again, None for at its change."""
        step = next_step(pod, datetime.datetime.now(datetime.UTC))
        try:
            async with self._slots:
                if isinstance(step, Patch):
                    name, namespace = pod.metadata.name, pod.metadata.namespace
                    patched = self._api.patch(PODS, name, step.body, namespace=namespace, subresource=step.subresource)
                    self._pods.put(await patched)
                    return 0
                if isinstance(step, Remove):
                    await self._remove(pod)
                    return _RETRY_SECONDS
                return step.seconds
        except NotFound:
            return _RETRY_SECONDS
        except ApiError as error:
            log.warning("Failed to take a step", pod=pod.metadata.key, step=type(step).__name__, error=str(error))
            return _RETRY_SECONDS

    async def _remove(self, pod: KubeletPod) -> None:
        """Ends the deletion that somebody began: only a kubelet may set the grace period to 0."""
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.metadata.uid}}
        path, data = PODS.path(pod.metadata.name, pod.metadata.namespace), msgspec.json.encode(body)
        await self._connection.call("DELETE", path, body=data, timeout=_DELETE_TIMEOUT)

    def _node_changed(self, group: asyncio.TaskGroup, change: ObjectChange[Node]) -> None:
        name, old, node = change
        if node is None:
            return
        if old is None:
            group.create_task(self._heartbeat(name), name=f"heartbeat {name}")
            for pod in self._pods.values():  # Their events may come before their node's.
                if pod.spec.node_name == name:
                    self._pod_changed(group, pod)
        if any(each.type == "Ready" and each.status == "Unknown" for each in node.status.conditions):
            # Its heartbeats were missed, as after a laptop's sleep. "False" is somebody's choice and stays.
            group.create_task(self._report_ready(name), name=f"status {name}")

    async def _heartbeats(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            await asyncio.gather(*(self._heartbeat(node.metadata.name) for node in self._nodes.values()))

    async def _heartbeat(self, node: str) -> None:
        now = timestamps.micro_now()
        spec = {"holderIdentity": node, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now}
        namespace = "kube-node-lease"
        try:
            async with self._slots:
                try:
                    await self._api.patch(LEASES, node, {"spec": spec}, namespace=namespace)
                except NotFound:
                    await self._api.create(LEASES, {"metadata": {"name": node}, "spec": spec}, namespace)
        except ApiError as error:
            log.warning("Failed to renew a node's lease", node=node, error=str(error))

    async def _report_ready(self, node: str) -> None:
        try:
            await self._api.patch(NODES, node, {"status": {"conditions": conditions()}}, subresource="status")
        except ApiError as error:
            log.warning("Failed to report a node ready", node=node, error=str(error))


def kubelet_api(pod_of: Callable[[str], KubeletPod | None], healthy: Callable[[], bool]) -> web.Application:
    """What the API server asks a kubelet for `kubectl logs`, `exec`, `attach` and `port-forward`."""

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(status=200 if healthy() else 503)

    async def logs_of(request: web.Request) -> web.Response:
        key, container = "{namespace}/{pod}".format_map(request.match_info), request.match_info["container"]
        pod = pod_of(key)
        found = [each for each in pod.all_containers if each.name == container] if pod else []
        if pod is None or not found:
            return web.Response(status=404, text=f"{key} has no container {container} here")
        said = f"{key} is simulated: nothing runs in it. Container {container} would have this environment:"
        variables = recorded(pod).get(container) or environment(pod, found[0])
        return web.Response(text="\n".join([said, *(f"{name}={value}" for name, value in variables.items()), ""]))

    async def nothing_runs(request: web.Request) -> web.Response:
        key = "{namespace}/{pod}".format_map(request.match_info)
        said = f"{key} is simulated: nothing runs in it. kubectl logs shows the environment that it would have."
        # kubectl shows the message of a Status as it is.
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": said, "code": 501}
        return web.json_response(status, status=501)

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", logs_of)
    app.router.add_route("*", "/{verb:exec|attach|portForward}/{namespace}/{pod}{rest:.*}", nothing_runs)
    return app


async def serve(layout: Layout, port: int, certificate: str, key: str) -> None:
    """Runs the kubelet and its API until SIGTERM, and the API server's way to pods where nodes have agents."""
    main: asyncio.Task[Any] | None = asyncio.current_task()
    assert main is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, main.cancel)
    agents = msgspec.json.decode(layout.agents.read_bytes(), type=list[SimulatedAgent])
    async with AsyncExitStack() as stack:
        connection = await stack.enter_async_context(connect(str(layout.kubeconfig_of("kubelet"))))
        kubelet = Kubelet(connection, SimulatedGpus(agents, layout.plan().options))
        if agents:
            await stack.enter_async_context(await serve_egress(layout.egress, kubelet.listener_of))
        app = kubelet_api(kubelet.pod, lambda: kubelet.healthy)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(certificate, key)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls).start()
            await kubelet.run()
        finally:
            await runner.cleanup()


if __name__ == "__main__":
    logs.configure("console")
    directory, listen, *tls = sys.argv[1:]
    try:
        asyncio.run(serve(Layout(Path(directory)), int(listen), tls[0], tls[1]))
    except asyncio.CancelledError:
        sys.exit(0)
