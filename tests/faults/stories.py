"""Stories of groups and pods: each acts, and yields what must become true before it goes on.

They end with nothing left.
"""

from collections.abc import AsyncIterator, Callable
from functools import partial

from tests.faults.checker import PREFIX, State, claims_of, is_closed
from tests.faults.raw_api import GROUPS, LEDGERS, NODES, PODS, QUOTAS, Json
from tests.faults.scene import GPU, Scene, both
from tests.faults.stage import Goal, ledger_of

Story = Callable[[Scene], AsyncIterator[Goal]]


async def groups(scene: Scene) -> AsyncIterator[Goal]:
    """One group has the node, another waits for it."""
    await scene.node(2)
    first, second = await scene.group("first", 2), await scene.group("second", 1)
    one, two = await scene.pod("one", first), await scene.pod("two", first)
    yield scene.bound(one, two)
    three = await scene.pod("three", second)
    yield scene.waiting(three)
    await scene.delete(one, two, first)
    yield scene.bound(three)
    await scene.delete(three, second)
    yield scene.gone


async def shares(scene: Scene) -> AsyncIterator[Goal]:
    """Parts of one device, more than there is; and parts within a group."""
    await scene.node(2)
    group = await scene.group("group", 1)
    inner = await scene.pod("inner", group, percent=50)
    yield scene.bound(inner)
    one, two = await scene.pod("one", percent=60), await scene.pod("two", percent=30)
    yield scene.bound(one, two)
    late = await scene.pod("late", percent=60)
    yield scene.waiting(late)
    await scene.delete(one)
    yield scene.bound(late)
    await scene.delete(late, two, inner, group)
    yield scene.gone


async def idle(scene: Scene) -> AsyncIterator[Goal]:
    """A group without pods is released, and bound again."""
    await scene.node(2)
    group = await scene.group("group", 2, releaseAfter="1s")
    one = await scene.pod("one", group)
    yield scene.bound(one)
    await scene.delete(one)
    yield scene.unbound(group)
    two = await scene.pod("two", group)
    yield scene.bound(two)
    await scene.delete(two)
    yield scene.unbound(group)
    await scene.delete(group)
    yield scene.gone


async def deletion(scene: Scene) -> AsyncIterator[Goal]:
    """A deleted group goes after its last pod, by its policy, which was another for a while."""
    await scene.node(2)
    group = await scene.group("group", 2)
    one = await scene.pod("one", group)
    yield scene.bound(one)
    yield lambda state: [] if _finalizers(state, group) else ["no finalizer yet"]
    await scene.change(f"{GROUPS}/{group}", spec={"deletionPolicy": "Refuse"})
    yield lambda state: ["the finalizer stays"] if _finalizers(state, group) else []
    await scene.change(f"{GROUPS}/{group}", spec={"deletionPolicy": "AfterLastPod"})
    yield lambda state: [] if _finalizers(state, group) else ["no finalizer again"]
    await scene.delete(group)
    await scene.delete(one)
    yield scene.gone


async def preemption(scene: Scene) -> AsyncIterator[Goal]:
    """A pod of higher priority gets the device of a share, whose pod is evicted, recreated, and waits its turn."""
    await scene.node(1)
    low = await scene.pod("low", percent=60)
    yield scene.bound(low)
    high = await scene.pod("high", percent=60, priorityClassName="system-cluster-critical")
    yield both(scene.bound(high), scene.waiting(low))
    await scene.delete(high)
    yield scene.bound(low)
    await scene.delete(low)
    yield scene.gone


async def quota(scene: Scene) -> AsyncIterator[Goal]:
    """Two groups want more than a quota allows."""
    await scene.node(4)
    spec = {"groupSelector": {"matchLabels": {"run": scene.prefix}}, "hard": {GPU: 2}}
    kind = {"apiVersion": "deviceshare.io/v1alpha1", "kind": "DeviceQuota", "metadata": {"name": scene.prefix}}
    await scene.api.insist("POST", QUOTAS, {**kind, "spec": spec})
    first, second = await scene.group("first", 2), await scene.group("second", 2)
    one = await scene.pod("one", first)
    yield scene.bound(one)
    two = await scene.pod("two", second)
    yield scene.waiting(two)
    await scene.delete(one, first)
    yield scene.bound(two)
    await scene.delete(two, second)
    yield scene.gone
    await scene.api.insist("DELETE", f"{QUOTAS}/{scene.prefix}")


async def rebind(scene: Scene) -> AsyncIterator[Goal]:
    """A device breaks under a group and under a share; each gets another, and the former is released with its pod."""
    node = await scene.node(4)
    yield has_ledger(node)
    await report(scene, node)
    group = await scene.group("group", 2)
    one = await scene.pod("one", group)
    yield scene.bound(one)
    part = await scene.pod("part", percent=60)
    yield scene.bound(part)
    before = await ledger_of(scene.stage, node)
    await report(scene, node, *sorted(_first_devices(before)))
    asked = {"metadata": {"annotations": {f"{PREFIX}rebind": "please"}}}
    await scene.change(scene.path(group), **asked)
    yield lambda state: unanswered(state, node, group)
    yield lambda state: [] if _former(state, one) else [f"{one} isn't updated"]
    await report(scene, node)
    await scene.delete(one, part, group)
    yield scene.gone


async def share_rebind(scene: Scene) -> AsyncIterator[Goal]:
    """A device breaks under a share, which moves to another."""
    node = await scene.node(2)
    yield has_ledger(node)
    await report(scene, node, devices=2)
    part = await scene.pod("part", percent=60)
    yield scene.bound(part)
    await report(scene, node, 0, devices=2)
    await scene.change(scene.path(part), metadata={"annotations": {f"{PREFIX}rebind": "please"}})
    yield lambda state: unanswered(state, node, part)
    yield lambda state: [] if '"former":true' in _said(state, part, "shares") else [f"{part} isn't updated"]
    await report(scene, node, devices=2)
    await scene.delete(part)
    yield scene.gone


async def resize(scene: Scene) -> AsyncIterator[Goal]:
    """A share becomes larger and smaller where it is, beside another that waits for the room."""
    await scene.node(1)
    part = await scene.pod("part", percent=20)
    yield scene.bound(part)
    for size in ("main=70%", "main=30%"):
        await scene.change(scene.path(part), metadata={"annotations": {f"{PREFIX}resize": size}})
        yield partial(_is_resized, part, f'"percent":{size[5:-1]}')
    other = await scene.pod("other", percent=60)
    yield scene.bound(other)
    await scene.delete(part, other)
    yield scene.gone


def _is_resized(part: str, wanted: str, state: State) -> list[str]:
    return [] if wanted in _said(state, part, "shares") else [f"{part} isn't resized"]


async def lost_node(scene: Scene) -> AsyncIterator[Goal]:
    """A group leaves a node that is gone, by its policy; the node comes back under its name."""
    node = await scene.node(2)
    group = await scene.group("group", 2, nodeLossPolicy="Move")
    one = await scene.pod("one", group)
    yield scene.bound(one)
    await scene.api.insist("DELETE", f"{NODES}/{node}")
    scene.stage.wanted.pop(one)
    await scene.api.insist("DELETE", f"{PODS}/{one}?gracePeriodSeconds=0")
    yield scene.unbound(group)
    yield lambda state: [f"the ledger of {node} stays"] if node in state.ledgers else []
    await scene.node(2)
    two = await scene.pod("two", group)
    yield scene.bound(two)
    await scene.delete(two, group)
    yield scene.gone


async def recreated_node(scene: Scene) -> AsyncIterator[Goal]:
    """A node is deleted and recreated under its name, while a group is on it that stays."""
    node = await scene.node(2)
    group = await scene.group("group", 2)
    one = await scene.pod("one", group)
    yield scene.bound(one)
    await scene.api.insist("DELETE", f"{NODES}/{node}")
    await scene.node(2)
    yield has_ledger(node)
    two = await scene.pod("two", group)
    yield scene.bound(two)
    await scene.delete(one, two, group)
    yield scene.gone


async def lost_ledger(scene: Scene) -> AsyncIterator[Goal]:
    """Somebody deletes the ledger by force under a group that has the node, and one that waits."""
    node = await scene.node(2)
    first, second = await scene.group("first", 2), await scene.group("second", 1)
    one = await scene.pod("one", first)
    yield scene.bound(one)  # before the other is there: a fault may let it overtake
    two = await scene.pod("two", second)
    yield scene.waiting(two)
    await scene.stage.lose_ledger(node)
    yield both(has_ledger(node), scene.bound(one), scene.waiting(two))
    await scene.delete(one, first)
    yield scene.bound(two)
    await scene.delete(two, second)
    yield scene.gone


async def wiped_status(scene: Scene) -> AsyncIterator[Goal]:
    """Somebody wipes the group's status, which is restored; it takes another pod."""
    node = await scene.node(2)
    group = await scene.group("group", 2)
    one = await scene.pod("one", group)
    yield scene.bound(one)
    await scene.change(f"{GROUPS}/{group}/status", status=None)
    yield lambda state: [] if state.groups[group].get("status", {}).get("nodeName") == node else ["not restored"]
    two = await scene.pod("two", group)
    yield scene.bound(two)
    await scene.delete(one, two, group)
    yield scene.gone


async def edited_ledger(scene: Scene) -> AsyncIterator[Goal]:
    """Somebody takes claims and finalizer out of the ledger, whose pods run; it gets all of them again."""
    node = await scene.node(3)
    group = await scene.group("group", 2)
    one, part = await scene.pod("one", group), await scene.pod("part", percent=40)
    yield scene.bound(one, part)
    await scene.change(f"{LEDGERS}/{node}", metadata={"finalizers": None}, spec={"claims": None})
    yield lambda state: [] if len(claims_of(state.ledgers.get(node, {}))) == 2 else ["claims are missing"]
    two = await scene.pod("two", group)
    yield scene.bound(two)
    await scene.delete(one, two, part, group)
    yield scene.gone


async def marked_claim(scene: Scene) -> AsyncIterator[Goal]:
    """Somebody marks the claim of a bound group; the mark is taken away, and pods join."""
    node = await scene.node(2)
    group = await scene.group("group", 2)
    one = await scene.pod("one", group)
    yield scene.bound(one)
    uid = next(iter(claims_of(await ledger_of(scene.stage, node))))
    await scene.change(f"{LEDGERS}/{node}", spec={"claims": {uid: {"releasing": "by hand"}}})
    two = await scene.pod("two", group)
    yield scene.bound(two)
    await scene.delete(one, two, group)
    yield scene.gone


COMMON: dict[str, Story] = {
    story.__name__.replace("_", "-"): story
    for story in (
        *(groups, shares, idle, deletion, preemption, quota, rebind, share_rebind, resize, lost_node, recreated_node),
        *(lost_ledger, wiped_status, edited_ledger, marked_claim),
    )
}


def has_ledger(node: str) -> Goal:
    """The node has a ledger, and it is open."""
    return lambda state: [f"{node} has no open ledger"] if is_closed(state.ledgers.get(node, {})) else []


async def report(scene: Scene, node: str, *broken: int, devices: int = 4, boot: str = "") -> None:
    """Writes the node's hardware as its agent would: these devices are unhealthy."""
    parts: list[Json] = [{"resource": GPU, "index": n, "uuid": f"GPU-{node}-{n}"} for n in range(devices)]
    for number in broken:
        parts[number] |= {"unhealthy": "Xid 79: it has fallen off the bus", "since": "2026-11-21T03:00:00Z"}
    await scene.change(f"{LEDGERS}/{node}/status", status={"hardware": {"devices": parts, "bootId": boot}})


def _first_devices(ledger: Json) -> set[int]:
    """One of the group's."""
    return {claim["devices"][0].get("index", 0) for claim in claims_of(ledger).values() if claim.get("devices")}


def unanswered(state: State, node: str, holder: str) -> list[str]:
    claims = claims_of(state.ledgers.get(node, {})).values()
    mine = [each for each in claims if holder in (each.get("group") or each.get("pod", ""))]
    return [] if mine and mine[0].get("rebound") == "please" else [f"{holder} has no answer to its request"]


def _finalizers(state: State, group: str) -> list[str]:
    found: list[str] = state.groups[group]["metadata"].get("finalizers") or []
    return found


def _said(state: State, pod: str, annotation: str) -> str:
    found = state.pods.get(f"default/{pod}", {}).get("metadata", {}).get("annotations") or {}
    return str(found.get(f"{PREFIX}{annotation}", "")).replace(" ", "")


def _former(state: State, pod: str) -> str:
    return _said(state, pod, "former-devices")
