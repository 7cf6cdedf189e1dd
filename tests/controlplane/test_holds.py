"""Holds, by the real kube-scheduler and kube-controller-manager: DRA gives nobody what groups and shares have."""

import asyncio
import json
import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from deviceshare.domain.admission.settings import WEBHOOKS
from deviceshare.kube.api import Api, Collection
from deviceshare.kube.connection import connect
from deviceshare.loops.kinds import GROUPS, HOLDS, PODS
from deviceshare.loops.ports import ApiError, Kind
from deviceshare_sandbox import Options, Sandbox, running
from tests.controlplane.pool import Json, Pool, pod, refers
from tests.controlplane.test_dra import GROUP, publish
from tests.kubernetes_versions import since

pytestmark = since(34)
HOME = "deviceshare-system"
CLASS = "any-gpu"
SECONDS = float(os.environ.get("DEVICESHARE_HOLDS_SECONDS", "60"))
"""How long users and strangers want the devices of one node."""
CROWD = int(os.environ.get("DEVICESHARE_HOLDS_CROWD", "1"))
"""How many times as many users and strangers as usual."""


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    program = str(Path(__file__).with_name("hurried.py"))
    with running(Options(nodes=0, dra_holds=True, admission=WEBHOOKS, program=program)) as started:
        yield started


@pytest.fixture
def pool(sandbox: Sandbox, request: pytest.FixtureRequest) -> Iterator[Pool]:
    made = Pool(sandbox, "".join(each for each in request.node.name[5:45] if each.isalnum()))
    spec = {"extendedResourceName": "example.com/any-gpu"}
    made.apply({"apiVersion": GROUP, "kind": "DeviceClass", "metadata": {"name": CLASS}, "spec": spec})
    yield made
    made.end()


def stranger(pool: Pool, name: str) -> list[Json]:
    """A pod with a claim on any device of the pool's nodes."""
    requests = [{"name": "r", "exactly": {"deviceClassName": CLASS}}]
    claim = {"apiVersion": GROUP, "kind": "ResourceClaim", "metadata": {"name": name}}
    claim["spec"] = {"devices": {"requests": requests}}
    claims = [{"name": "device", "resourceClaimName": name}]
    body = pod(name, scheduler="default-scheduler", nodeSelector={"pool": pool.name}, resourceClaims=claims)
    return [claim, body]


def allocated(pool: Pool, node: str) -> dict[str, list[str]]:
    """By the API server alone: who has which device of the node."""
    found: dict[str, list[str]] = {}
    for claim in json.loads(pool.kubectl("get", "resourceclaims", "-A", "-o", "json"))["items"]:
        for each in (claim.get("status", {}).get("allocation") or {}).get("devices", {}).get("results", ()):
            if each["pool"] == node:
                found.setdefault(each["device"], []).append(
                    f"{claim['metadata']['namespace']}/{claim['metadata']['name']}"
                )
    return found


def share(pool: Pool, name: str, percent: int) -> Json:
    limits = {"limits": {"deviceshare.io/gpu-percent": percent}}
    containers = [{"name": "main", "image": "busybox", "resources": limits}]
    return pod(name, scheduler="deviceshare-scheduler", nodeSelector={"pool": pool.name}, containers=containers)


def test_strangers_get_what_groups_leave(pool: Pool) -> None:
    """A group and a share hold their devices; three strangers wait for two, and get them when the group is deleted."""
    node = pool.node(0, inventory="amd.com/gpu=1")
    publish(pool, node, 4)
    pool.eventually(lambda: pool.kubectl("get", "ndev", "--no-headers", node), refers("nvidia.com/gpu=4"))
    began = time.monotonic()
    pool.apply(pod("a", pool.group("team", 2)))
    pool.running("a")
    print(f"bound after {time.monotonic() - began:.1f} s")
    pool.apply(share(pool, "p", 50))
    pool.running("p")
    pool.eventually(lambda: allocated(pool, node), lambda found: len(found) == 3)
    pool.apply(*stranger(pool, "s1"), *stranger(pool, "s2"), *stranger(pool, "s3"))
    pool.eventually(lambda: [name for name in ("s1", "s2", "s3") if pool.placed(name)], lambda names: len(names) == 1)
    time.sleep(3)
    assert Counter(by[0].partition("/")[0] for by in allocated(pool, node).values()) == {HOME: 3, pool.name: 1}
    assert not pool.kubectl("get", "pods", "-n", HOME, "-l", "deviceshare.io/hold", "-o", "name")
    pool.kubectl("delete", "pod", "a", "-n", pool.name)
    pool.kubectl("delete", "sdg", f"{pool.name}-team")
    began = time.monotonic()
    pool.eventually(lambda: [name for name in ("s1", "s2", "s3") if pool.placed(name)], lambda names: len(names) == 3)
    print(f"strangers after {time.monotonic() - began:.1f} s")
    pool.kubectl("delete", "pod", "p", "-n", pool.name)
    pool.eventually(lambda: pool.kubectl("get", "resourceclaims", "-n", HOME, "-o", "name"), lambda text: not text)


class ApiHistory:
    """Every state of claims and pods, in the order of their versions, which etcd counts for all kinds together."""

    def __init__(self) -> None:
        self._events: list[tuple[int, str, str, Json]] = []

    async def record(self, api: Api, kind: Kind[Any]) -> None:
        """Until cancelled."""
        version = await api.version_of(Collection(kind))
        async with api.watch(Collection(kind), version=version, last=3600, quiet=600) as changes:
            async for change in changes:
                found = json.loads(bytes(change.object))
                if change.type != "BOOKMARK":
                    number = int(found["metadata"]["resourceVersion"])
                    self._events.append((number, change.type, kind.plural, found))

    def faults(self) -> list[str]:
        """The moments at which a device had two owners; and what happened, in numbers, is printed."""
        claims: dict[str, tuple[str, set[str]]] = {}
        users: dict[str, set[str]] = {}
        entered: dict[str, set[str]] = {}
        by_claim: dict[str, tuple[str, str]] = {}
        seen: Counter[str] = Counter()
        wrong: list[str] = []
        for number, what, plural, found in sorted(self._events, key=lambda each: each[0]):
            meta = found["metadata"]
            key = f"{meta['namespace']}/{meta['name']}"
            table: dict[str, Any] = claims if plural == "resourceclaims" else users
            before = table.pop(key, None)
            known = by_claim.pop(key, None) if plural == "pods" else entered.pop(key, None)
            if what == "DELETED":
                continue
            if plural == "resourceclaims":
                results = (found.get("status", {}).get("allocation") or {}).get("devices", {}).get("results", ())
                claims[key] = meta["namespace"], {each["device"] for each in results}
                entries = found.get("status", {}).get("reservedFor", ()) if results else ()
                entered[key] = {each["uid"] for each in entries}
                seen["claims of ours"] += meta["namespace"] == HOME and not before
                seen["allocations to us" if meta["namespace"] == HOME else "to strangers"] += bool(results) and not (
                    before and before[1]
                )
            else:
                written = " ".join(str(each) for each in meta.get("annotations", {}).values())
                lives = found["spec"].get("nodeName") and found["status"].get("phase") not in ("Succeeded", "Failed")
                numbers = re.findall(r"GPU-0000000(\d)-aaaa", written)
                users[key] = {f"gpu-{each}" for each in numbers} if lives else set()
                seen["pods of ours"] += bool(users[key]) and not before
                if lives and (named := meta.get("annotations", {}).get("deviceshare.io/claim")):
                    by_claim[key] = named, meta["uid"]
                    seen["pods by claim"] += not known
            owners = Counter(device for _, devices in claims.values() for device in devices)
            held = {device for namespace, devices in claims.values() if namespace == HOME for device in devices}
            used = {device for devices in users.values() for device in devices}
            wrong += [f"{number}: {device} twice" for device, count in owners.items() if count > 1]
            wrong += [f"{number}: {device} is used and not held" for device in used - held]
            lost = [key for key, (named, uid) in by_claim.items() if uid not in entered.get(named, ())]
            wrong += [f"{number}: {key} runs without its claim" for key in lost]
        print(dict(seen))
        return wrong


def test_no_device_ever_has_two_owners(pool: Pool) -> None:
    """Users and strangers, these by name, by template and by an extended resource, while the leader is killed."""
    node = pool.node(0, inventory="amd.com/gpu=1")
    publish(pool, node, 4)
    pool.eventually(lambda: pool.kubectl("get", "ndev", "--no-headers", node), refers("nvidia.com/gpu=4"))
    history = ApiHistory()
    asyncio.run(_stress(pool, history))
    assert history.faults() == []
    pool.kubectl("delete", "pods", "--all", "-n", pool.name, "--force", "--grace-period=0")
    pool.kubectl("delete", "sdg", "-l", f"pool={pool.name}", "--wait=false")
    pool.eventually(lambda: pool.kubectl("get", "resourceclaims,pods", "-n", HOME, "-o", "name"), lambda said: not said)
    labelled = ("get", "resourceclaims", "-A", "-l", "deviceshare.io/hold", "-o", "name")
    pool.eventually(lambda: pool.kubectl(*labelled), lambda said: not said)


async def _stress(pool: Pool, history: ApiHistory) -> None:
    dice, end = random.Random(5), time.monotonic() + SECONDS
    async with connect(str(pool.sandbox.kubeconfig)) as connection:
        api = Api(connection)
        watching = [asyncio.create_task(history.record(api, kind), name=kind.plural) for kind in (HOLDS, PODS)]
        await asyncio.sleep(1)
        async with asyncio.TaskGroup() as tasks:
            for number in range(5 * CROWD):
                tasks.create_task(_repeat(end, _use, api, pool, dice, f"u{number}"))
            for number in range(3 * CROWD):
                tasks.create_task(_repeat(end, _intrude, api, pool, dice, f"s{number}"))
            tasks.create_task(_kill(pool, dice, end))
        await asyncio.sleep(10)
        for task in watching:
            task.cancel()
        await asyncio.wait(watching)
        assert all(task.cancelled() for task in watching)


async def _repeat(end: float, work: Callable[..., Awaitable[None]], *arguments: Any) -> None:
    number = 0
    while time.monotonic() < end:
        with suppress(ApiError):
            await work(*arguments[:-1], f"{arguments[-1]}-{(number := number + 1)}")


async def _kill(pool: Pool, dice: random.Random, end: float) -> None:
    while time.monotonic() < end:
        await asyncio.sleep(dice.uniform(20, 60))
        with suppress(ProcessLookupError):
            os.kill(pool.sandbox.pid("deviceshare"), signal.SIGKILL)


async def _use(api: Api, pool: Pool, dice: random.Random, name: str) -> None:
    """A pod with a share or of a group, and its end; a pod that fails its requests is left to the test's end."""
    group = f"{pool.name}-{name}" if dice.random() < 0.6 else ""
    body = pod(name, group) if group else share(pool, name, dice.choice([40, 100]))
    if group:
        spec: Json = {"resources": {"nvidia.com/gpu": dice.randint(1, 2)}}
        if dice.random() < 0.5:
            spec |= {"handover": "claim", "allowedNamespaces": {"from": "Selector", "names": [pool.name]}}
            body["spec"]["schedulerName"] = "default-scheduler"
        await api.create(GROUPS, {"metadata": {"name": group, "labels": {"pool": pool.name}}, "spec": spec})
    await api.create(PODS, body, pool.name)
    await _bound(api, pool, name, 20)
    await asyncio.sleep(dice.choice([0, 0.2, 1]))
    await api.delete(PODS, name, pool.name)
    if group:
        await api.delete(GROUPS, group)
    await asyncio.sleep(dice.choice([0, 0.1, 1]))


async def _intrude(api: Api, pool: Pool, dice: random.Random, name: str) -> None:
    claim, body = stranger(pool, name)
    way = dice.randrange(3)
    if way == 0:
        await api.create(HOLDS, claim, pool.name)
    elif way == 1:
        template: Kind[Any] = Kind(GROUP, "ResourceClaimTemplate", "resourceclaimtemplates", object, namespaced=True)
        with suppress(ApiError, TypeError):
            await api.create(template, {"metadata": {"name": name}, "spec": {"spec": claim["spec"]}}, pool.name)
        body["spec"]["resourceClaims"] = [{"name": "device", "resourceClaimTemplateName": name}]
    else:
        del body["spec"]["resourceClaims"]
        body["spec"]["containers"][0]["resources"] = {"limits": {"example.com/any-gpu": 1}}
    await api.create(PODS, body, pool.name)
    await _bound(api, pool, name, 10)
    await asyncio.sleep(dice.choice([0, 0.1, 0.3]))
    await api.delete(PODS, name, pool.name)
    await asyncio.sleep(dice.choice([0, 0.1, 0.5]))


async def _bound(api: Api, pool: Pool, name: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if (await api.get(PODS, name, pool.name)).spec.node_name:
            return
        await asyncio.sleep(0.1)
