"""Pods: created as fast as the API server takes them, awaited until a scheduler has bound them, and removed again."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from deviceshare.domain import contract
from deviceshare.domain.objects.object_decoder import ObjectMeta
from deviceshare.kube.api import Api, lines, path_of
from deviceshare.kube.connection import Connection
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES
from deviceshare.loops.ports import AlreadyExists, Forbidden, Unavailable
from tests.benchmarks.control_plane import send

PODS = "/api/v1/namespaces/default/pods"
_DRA = "/apis/resource.k8s.io/v1"
_CLASS = "any"
_AT_ONCE = 24
"""Requests in flight: enough that the API server never waits for the client, few enough that none waits long."""
_PATIENCE_SECONDS = 300.0
_RETRY_SECONDS = 0.1
_REFERENCE = b'"fieldRef"'
_NOW = msgspec.json.encode({"gracePeriodSeconds": 0})


class _Bound(Struct):
    class Object(Struct):
        metadata: ObjectMeta

    object: Object


_bound = msgspec.json.Decoder(_Bound)


def pod(name: str, group: str, scheduler: str, *, grouped: bool, limits: Mapping[str, str], claim: str = "") -> bytes:
    """A pod of ordinary size. Whether it asks to join its group or only carries its name, it is equally long.

    `limits` are those of its container, such as the share that it asks for, and `claim` its ResourceClaim.
    """
    key = contract.GROUP if grouped else "example.com/group-name"
    claims = {"resourceClaims": [{"name": "devices", "resourceClaimName": claim}]} if claim else {}
    resources = {"requests": {"cpu": "100m", "memory": "128Mi", **limits}, "limits": limits}
    named = {"claims": [{"name": "devices"}]} if claim else {}
    return msgspec.json.encode(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": "benchmark"}, "annotations": {key: group}},
            "spec": {
                "schedulerName": scheduler,
                **claims,
                "containers": [
                    {
                        "name": "main",
                        "image": "example.com/team/training:1.0",
                        "command": ["python", "-m", "train", "--epochs=10"],
                        "env": [{"name": "LOG_LEVEL", "value": "info"}],
                        "resources": {**resources, **named},
                    }
                ],
            },
        }
    )


async def await_ledgers(api: Api, number: int) -> None:
    """Returns once deviceshare knows the devices of this many nodes; raises TimeoutError after five minutes."""
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while sum(bool(ledger.devices) for ledger in await api.list(NODE_DEVICES)) < number:  # noqa: ASYNC110 a start
            await asyncio.sleep(0.5)


async def create_groups(api: Api, names: Sequence[str], devices: int) -> None:
    """SharedDeviceGroups of `devices` GPUs each; deviceshare may learn of them a bit later."""
    for name in names:
        with contextlib.suppress(AlreadyExists):
            body = {"metadata": {"name": name}, "spec": {"resources": {"nvidia.com/gpu": devices}}}
            await api.create(GROUPS, body)


async def publish_devices(connection: Connection, number: int) -> None:
    """As many devices of each node in a ResourceSlice, as a DRA driver would, and a class of all of them."""
    await send(
        connection, "POST", f"{_DRA}/deviceclasses", msgspec.json.encode({"metadata": {"name": _CLASS}, "spec": {}})
    )
    for node in msgspec.json.decode(await send(connection, "GET", "/api/v1/nodes"))["items"]:
        name = node["metadata"]["name"]
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        devices = [{"name": f"gpu-{each}"} for each in range(number)]
        spec = {"driver": "gpu.example.com", "nodeName": name, "pool": pool, "devices": devices}
        body = msgspec.json.encode({"metadata": {"name": name}, "spec": spec})
        await send(connection, "POST", f"{_DRA}/resourceslices", body)


async def publish_capacity(connection: Connection, resources: Mapping[str, str]) -> None:
    """So much of these resources on each node, as a device plugin would."""
    body = msgspec.json.encode({"status": {"capacity": resources, "allocatable": resources}})
    for node in msgspec.json.decode(await send(connection, "GET", "/api/v1/nodes"))["items"]:
        path = f"/api/v1/nodes/{node['metadata']['name']}/status"
        await connection.call("PATCH", path, timeout=60.0, body=body, content_type="application/merge-patch+json")


async def create_claims(connection: Connection, names: Sequence[str], devices: int) -> None:
    """ResourceClaims of so many devices each."""
    exactly = {"deviceClassName": _CLASS, "allocationMode": "ExactCount", "count": devices}
    spec = {"devices": {"requests": [{"name": "devices", "exactly": exactly}]}}
    for name in names:
        body = msgspec.json.encode({"metadata": {"name": name}, "spec": spec})
        await send(connection, "POST", f"{_DRA}/namespaces/default/resourceclaims", body)


async def remove_groups(connection: Connection) -> None:
    """Deletes all groups and returns once no claim is left; raises TimeoutError after five minutes."""
    api = Api(connection)
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while await api.list(GROUPS):
            with contextlib.suppress(Unavailable, Forbidden):  # it may not know yet that the pods are gone
                await send(connection, "DELETE", path_of(GROUPS, "", ""))
            await asyncio.sleep(0.2)
        while any(ledger.claims for ledger in await api.list(NODE_DEVICES)):  # noqa: ASYNC110 collected a moment later
            await asyncio.sleep(0.5)


async def create_and_await(
    connection: Connection, pods: Sequence[bytes], on_bound: Callable[[], Any] = lambda: None, *, injected: bool = False
) -> float:
    """Creates pods; returns the seconds from the first request until each was seen bound to a node.

    A pod that should have been `injected` and was not, since an older API server ignores a webhook that is late, is
    created once more, as its workload would do: nobody would bind it.

    Raises TimeoutError after five minutes.
    """
    version = await _version(connection)
    async with (
        asyncio.timeout(_PATIENCE_SECONDS),
        contextlib.aclosing(_as_bound(connection, version)) as names,
        asyncio.TaskGroup() as creating,
    ):
        begun = time.perf_counter()
        remaining = iter(pods)
        for number in range(_AT_ONCE):
            creating.create_task(_create_each(connection, remaining, injected=injected), name=f"create pods {number}")
        bound: set[str] = set()
        async for name in names:
            bound.add(name)
            on_bound()
            if len(bound) == len(pods):
                break
        return time.perf_counter() - begun


async def _as_bound(connection: Connection, version: str) -> AsyncGenerator[str, None]:
    """The names of pods as they are bound to nodes after this version of the cluster.

    Only bound pods are sent, once each, so watching costs little beside what is measured. An API server may end a watch
    at any time, and newer ones do in their first seconds: then it goes on from the last event.
    """
    while True:
        watching = {"watch": "1", "fieldSelector": "spec.nodeName!=", "resourceVersion": version}
        async with connection.stream(PODS, query=watching, quiet=_PATIENCE_SECONDS) as chunks:
            async for line in lines(chunks):
                metadata = _bound.decode(line).object.metadata
                version = metadata.resource_version
                yield metadata.name
        await asyncio.sleep(_RETRY_SECONDS)


async def remove_all(connection: Connection) -> None:
    """Deletes all pods and returns when none is left; raises TimeoutError after five minutes."""
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while msgspec.json.decode(await send(connection, "GET", PODS))["items"]:
            with contextlib.suppress(Unavailable):  # hundreds at once may take longer than the server's time-out
                await send(connection, "DELETE", PODS, _NOW)
            await asyncio.sleep(0.1)


async def mutated(connection: Connection, body: bytes) -> bool:
    """Whether a webhook or policy would change this pod now, so that its containers get more variables.

    Nothing is created. A pod that is refused isn't changed yet: policies are put in force one after the other.
    """
    try:
        answer = await send(connection, "POST", f"{PODS}?dryRun=All", body)
    except Forbidden:
        return False
    return _variables(answer) > _variables(body)


def _variables(pod: bytes) -> int:
    return sum(len(container["env"]) for container in msgspec.json.decode(pod)["spec"]["containers"])


async def _create_each(connection: Connection, remaining: Any, *, injected: bool) -> None:
    for body in remaining:
        while True:
            try:
                answer = await send(connection, "POST", PODS, body)
                if not injected or _REFERENCE in answer:
                    break
                name = msgspec.json.decode(body)["metadata"]["name"]
                await send(connection, "DELETE", f"{PODS}/{name}", _NOW)
            except AlreadyExists:
                break
            except Unavailable:  # a webhook was too late, on a busy machine: any client retries, and the time counts
                await asyncio.sleep(0.1)


async def _version(connection: Connection) -> str:
    answer = msgspec.json.decode(await send(connection, "GET", f"{PODS}?limit=1"))
    return str(answer["metadata"]["resourceVersion"])
