"""The ports of deviceshare.loops, against the real API server."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from deviceshare.domain import contract
from deviceshare.domain.admission.pod_guard import PodGuard
from deviceshare.domain.objects.nodes import SharingLabels
from deviceshare.kube.api import Api, Collection
from deviceshare.kube.connection import Unserved, connect
from deviceshare.kube.mirror import ApiMirror
from deviceshare.kube.mirrors import Mirrors
from deviceshare.kube.recorder import EventRecorder
from deviceshare.loops.kinds import EVENTS, GROUPS, LEASES, NODES, PODS
from deviceshare.loops.leadership import LEASE_NAME, Elector
from deviceshare.loops.ports import AlreadyExists, Conflict, Expired, Invalid, Kind, NotFound, Subject
from deviceshare_sandbox import Sandbox

SPEC = {"resources": {"nvidia.com/gpu": 1}}


@pytest.fixture
async def api(sandbox: Sandbox) -> AsyncIterator[Api]:
    """As the cluster's admin, by kubeconfig and over TLS."""
    async with connect(str(sandbox.kubeconfig)) as connection:
        yield Api(connection)


@asynccontextmanager
async def owned(work: Any) -> AsyncIterator["asyncio.Task[None]"]:
    """A task of the test's, ended with it."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})


async def until(condition: Callable[[], Any]) -> None:
    for _ in range(3000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came about")


def pod(name: str, **labels: str) -> dict[str, Any]:
    """A pod that no scheduler picks up."""
    spec = {"schedulerName": "nobody", "containers": [{"name": "main", "image": "busybox"}]}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}


async def test_the_life_of_an_object(api: Api, namespace: str) -> None:
    """Each verb, each refusal that a caller acts on."""
    assert await api.server_version() >= (1, 20)
    spec = SPEC | {"deletionPolicy": "Refuse"}  # so it has no finalizer
    made = await api.create(GROUPS, {"metadata": {"name": namespace, "labels": {"test": namespace}}, "spec": spec})
    assert made.spec.resources == {"nvidia.com/gpu": 1}
    with pytest.raises(AlreadyExists):
        await api.create(GROUPS, {"metadata": {"name": namespace}, "spec": SPEC})
    with pytest.raises(Invalid):
        await api.create(GROUPS, {"metadata": {"name": f"{namespace}-2"}, "spec": {"resources": {"nvidia.com/gpu": 0}}})
    listed = await api.list(GROUPS, label_selector=f"test={namespace}")
    assert [group.metadata.uid for group in listed] == [made.metadata.uid]
    assert (await api.get(GROUPS, namespace)).metadata.uid == made.metadata.uid
    with pytest.raises(Conflict):
        await api.delete(GROUPS, namespace, uid="somebody-else")
    await api.delete(GROUPS, namespace, uid=made.metadata.uid)
    with pytest.raises(NotFound):
        await api.get(GROUPS, namespace)


async def test_nodes_are_mirrored_by_other_systems_labels_where_a_setting_names_them(api: Api, namespace: str) -> None:
    """As long as they have one: the label may come and go while the node stays."""
    mirrors = Mirrors(api, PodGuard(), SharingLabels([f"{namespace}=true"]))
    await api.create(NODES, {"metadata": {"name": namespace, "labels": {f"{namespace}": "true"}}})
    try:
        labelled = await api.list(NODES, label_selector=f"{contract.MODE_LABEL}={contract.MODE_SHARED}")
        ours = {node.metadata.name for node in labelled}
        async with owned(mirrors.by_name["nodes"].run()):
            await until(lambda: {node.metadata.name for node in mirrors.nodes.values()} == {*ours, namespace})
            assert all(node.shared for node in mirrors.nodes.values())
            await api.patch(NODES, namespace, {"metadata": {"labels": {namespace: None}}})
            await until(lambda: mirrors.nodes.get(namespace) is None)
            await api.patch(NODES, namespace, {"metadata": {"labels": {namespace: "true"}}})
            await until(lambda: mirrors.nodes.get(namespace) is not None)
            assert mirrors.fleet.node(namespace) is not None
    finally:
        await api.delete(NODES, namespace)


async def test_of_two_writers_with_the_same_version_one_loses(api: Api, namespace: str) -> None:
    """The whole claim protocol stands on this: a merge patch with a resourceVersion is a compare-and-swap."""
    await api.create(GROUPS, {"metadata": {"name": namespace}, "spec": SPEC})
    won: list[Any] = []
    while not won:  # the controller writes to the group too, and may win a round
        version = (await api.get(GROUPS, namespace)).metadata.resource_version
        bodies = [{"metadata": {"resourceVersion": version, "labels": {"won": str(n)}}} for n in range(8)]
        writers = [api.patch(GROUPS, namespace, body) for body in bodies]
        outcomes = await asyncio.gather(*writers, return_exceptions=True)
        won = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
        assert all(isinstance(outcome, Conflict) for outcome in outcomes if outcome not in won)
    assert len(won) == 1
    assert (await api.get(GROUPS, namespace)).metadata.labels == won[0].metadata.labels
    await api.delete(GROUPS, namespace)


async def test_a_binding_gives_node_and_annotations_at_once(api: Api, namespace: str) -> None:
    """In one write, so that no kubelet ever sees the one without the other."""
    made = await api.create(PODS, pod("p"), namespace)
    node = (await api.list(NODES))[0].metadata.name
    bind: dict[str, Any] = {"uid": made.metadata.uid, "node": node, "timeout": 20.0}
    seen = []
    mirror = ApiMirror(api, PODS, namespace=namespace)
    mirror.subscribe(lambda change: seen.append(change.new))
    async with owned(mirror.run()):
        await until(lambda: mirror.synced)
        await api.bind(namespace, "p", annotations={"deviceshare.io/selected-devices": "0,1"}, **bind)
        await until(lambda: any(p and p.node for p in seen))
    bound = next(p for p in seen if p and p.node)
    assert (bound.node, bound.metadata.annotations["deviceshare.io/selected-devices"]) == (node, "0,1")
    with pytest.raises(Conflict, match="already assigned"):
        await api.bind(namespace, "p", annotations={"deviceshare.io/selected-devices": "2"}, **bind)
    with pytest.raises(NotFound):
        await api.bind(namespace, "missing", annotations={}, **bind)


async def test_a_mirror_follows_its_selector(api: Api, namespace: str) -> None:
    """Who leaves the selection is gone from the mirror, and a list in pages is a whole one."""
    made = [await api.create(PODS, pod(f"p{n}", picked="yes" if n else "no"), namespace) for n in range(4)]
    mirror = ApiMirror(api, PODS, namespace=namespace, label_selector="picked=yes")
    async with owned(mirror.run()):
        await until(lambda: len(mirror) == 3)
        mirror.put(
            await api.patch(
                PODS, "p1", {"metadata": {"annotations": {"deviceshare.io/woken-at": "y"}}}, namespace=namespace
            )
        )
        held = mirror.get(f"{namespace}/p1")
        assert held is not None
        assert held.metadata.annotations["deviceshare.io/woken-at"] == "y"
        await api.patch(PODS, "p1", {"metadata": {"labels": {"picked": "no"}}}, namespace=namespace)
        await api.delete(PODS, "p2", namespace, uid=made[2].metadata.uid)
        await until(lambda: {p.metadata.name for p in mirror.values() if not p.metadata.deletion_timestamp} == {"p3"})


async def test_a_watch_from_a_forgotten_version_says_expired(api: Api) -> None:
    """The real server says it inside a 200, where Python's own watch overlooks it."""

    async def watch() -> None:
        async with api.watch(Collection(GROUPS), version="1", last=30, quiet=30) as events:
            async for _ in events:
                pass

    with pytest.raises(Expired):
        await watch()


async def test_a_kind_that_is_not_served_is_no_missing_object(api: Api) -> None:
    """Nobody may conclude from a missing CRD that a group is gone."""
    unserved = Kind("deviceshare.io/v0", GROUPS.kind, GROUPS.plural, GROUPS.type, namespaced=False)
    with pytest.raises(Unserved):
        await api.get(unserved, "any")


async def test_events_are_accepted_and_counted(api: Api, namespace: str) -> None:
    """Of cluster-scoped objects too, which live in `default`."""
    made = await api.create(PODS, pod("p"), namespace)
    node = (await api.list(NODES))[0].metadata
    recorder = EventRecorder(api, "test")
    mirror = ApiMirror(api, EVENTS, field_selector="reason=Tested", keep=lambda event: event.message == namespace)

    def counted(times: int) -> bool:
        found = {(event.metadata.namespace, event.count) for event in mirror.values()}
        return found == {(namespace, times), ("default", times)}

    async with owned(recorder.run()), owned(mirror.run()):
        for times in (1, 2):
            recorder.note(Subject(PODS, "p", namespace, made.metadata.uid), "Tested", namespace)
            recorder.warn(Subject(NODES, node.name, uid=node.uid), "Tested", namespace)
            await until(partial(counted, times))


async def test_the_second_elector_follows_when_the_first_stops(api: Api, namespace: str) -> None:
    """On a real Lease, whose times the API server has found well-formed."""
    led = []

    async def lead(name: str) -> None:
        led.append(name)
        await asyncio.Event().wait()

    first, second = (Elector(api, name, namespace=namespace) for name in ("a", "b"))
    async with owned(first.run(lambda: lead("a"))) as leading:
        await until(lambda: first.leading)
        async with owned(second.run(lambda: lead("b"))):
            await asyncio.sleep(3)
            leading.cancel()
            await asyncio.wait({leading})
            await until(lambda: second.leading)
            lease = await api.get(LEASES, LEASE_NAME, namespace)
            assert (lease.spec.holder_identity, lease.spec.lease_transitions) == ("b", 1)
    assert led == ["a", "b"]
    assert (await api.get(LEASES, LEASE_NAME, namespace)).spec.holder_identity == ""
