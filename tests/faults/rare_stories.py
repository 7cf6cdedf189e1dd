"""Stories of what is rare: writes that deviceshare does only after somebody's mistake, or after a long wait."""

import asyncio
from collections.abc import AsyncIterator

from deviceshare_sandbox.simulated_nodes import BOOT_ID
from tests.faults.checker import PREFIX, State, claims_of
from tests.faults.raw_api import GROUPS, LEDGERS, PODS, QUOTAS, Json
from tests.faults.scene import GPU, Scene
from tests.faults.stage import Goal, ledger_of
from tests.faults.stories import Story, has_ledger, report, unanswered

_SECRET = "/api/v1/namespaces/deviceshare-system/secrets/deviceshare-ca"


async def impostor(scene: Scene) -> AsyncIterator[Goal]:
    """A pod gets the Binding of an earlier pod of its name, and is deleted."""
    node = await scene.node(2)
    yield has_ledger(node)
    name = await scene.pod("one", await scene.group("group", 1, nodeSelector={"pool": "nowhere"}))
    scene.stage.wanted.pop(name)
    said = {f"{PREFIX}pod-uid": "another", f"{PREFIX}group-uid": "another"}
    metadata = {"name": name, "annotations": said}
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
    await scene.api.insist("POST", f"{PODS}/{name}/binding", body)
    yield lambda state: [f"{name} is still there"] if f"default/{name}" in state.pods else []
    await scene.delete(f"{scene.prefix}-group")
    yield scene.gone


async def ended(scene: Scene) -> AsyncIterator[Goal]:
    """A pod has failed, and no kubelet ever says that its containers ended; its grace period is waited out."""
    await scene.node(2)
    group, other = await scene.group("first", 2), await scene.group("second", 2)
    one = await scene.pod("one", group)
    yield scene.bound(one)
    yield lambda state: [] if _status(state, one).get("containerStatuses") else [f"{one} doesn't run"]
    running = [
        {"name": "main", "image": "", "imageID": "", "ready": False, "restartCount": 0, "state": {"running": {}}}
    ]
    failed = {"phase": "Failed", "reason": "Evicted", "containerStatuses": running}
    await scene.change(f"{PODS}/{one}/status", status=failed)
    yield lambda state: [] if _annotation(state, one, "ended") else [f"{one} doesn't count as ended"]
    await scene.api.insist("DELETE", scene.path(group))
    two = await scene.pod("two", other)
    yield scene.bound(two)
    await scene.delete(one, two, other)
    yield scene.gone


async def loser(scene: Scene) -> AsyncIterator[Goal]:
    """A bind reserved and claimed for a group, and went no further; a pod that fits nowhere waits meanwhile."""
    node = await scene.node(2)
    yield has_ledger(node)
    spec = {"groupSelector": {"matchLabels": {"run": scene.prefix}}, "hard": {GPU: 2}}
    kind = {"apiVersion": "deviceshare.io/v1alpha1", "kind": "DeviceQuota", "metadata": {"name": scene.prefix}}
    await scene.api.insist("POST", QUOTAS, {**kind, "spec": spec})
    group = await scene.group("group", 2, nodeSelector={"pool": "nowhere"})
    one = await scene.pod("one", group, pool="nowhere")
    yield lambda state: [] if group in state.groups else ["no group yet"]
    uid = scene.stage.state.groups[group]["metadata"]["uid"]
    held = {uid: {"name": group, "devices": {GPU: 2}, "groupVersion": "1"}}
    await scene.change(f"{QUOTAS}/{scene.prefix}/status", status={"reservations": held})
    devices = [{"resource": GPU, "index": 0}, {"resource": GPU, "index": 1}]
    await scene.change(f"{LEDGERS}/{node}", spec={"claims": {uid: {"group": group, "devices": devices, "token": "t"}}})
    yield lambda state: [f"{node} has a claim"] if claims_of(state.ledgers[node]) else []
    while (found := await scene.api.get(f"{QUOTAS}/{scene.prefix}")) and found["status"].get("reservations"):  # noqa: ASYNC110 an API server is asked
        await asyncio.sleep(0.5)
    await scene.delete(one, group)
    yield scene.gone
    await scene.api.insist("DELETE", f"{QUOTAS}/{scene.prefix}")


async def deleted_claim(scene: Scene) -> AsyncIterator[Goal]:
    """Somebody deletes the claim of a group that no pod uses; it gets it again, and its next pod joins."""
    node = await scene.node(2)
    group = await scene.group("group", 2)
    one = await scene.pod("one", group)
    yield scene.bound(one)
    await scene.delete(one)
    yield lambda state: [f"{one} is there"] if f"default/{one}" in state.pods else []
    ledger = await ledger_of(scene.stage, node)
    await scene.change(f"{LEDGERS}/{node}", spec={"claims": dict.fromkeys(claims_of(ledger))})
    before = _version(ledger)
    yield lambda state: [] if _has_claims_since(before, state.ledgers.get(node, {})) else [f"{node} has no claim"]
    two = await scene.pod("two", group)
    yield scene.bound(two)
    await scene.delete(two, group)
    yield scene.gone


async def wiped_under_a_mark(scene: Scene) -> AsyncIterator[Goal]:
    """Somebody wipes a group's status whose claim a collector has marked; it is adopted with its claim."""
    node = await scene.node(2)
    group = await scene.group("group", 2)
    one = await scene.pod("one", group)
    yield scene.bound(one)
    uid = next(iter(claims_of(await ledger_of(scene.stage, node))))
    await scene.change(f"{LEDGERS}/{node}", spec={"claims": {uid: {"releasing": "by hand"}}})
    await scene.change(f"{GROUPS}/{group}/status", status=None)
    yield lambda state: [] if state.groups[group].get("status", {}).get("nodeName") == node else ["not restored"]
    two = await scene.pod("two", group)
    yield scene.bound(two)
    await scene.delete(one, two, group)
    yield scene.gone


async def emptied_secret(scene: Scene) -> AsyncIterator[Goal]:
    """Somebody empties the Secret of the webhooks' certificate authority."""
    await scene.change(_SECRET, data=None)
    while not (await scene.api.get(_SECRET) or {}).get("data"):  # noqa: ASYNC110
        await asyncio.sleep(0.5)
    yield scene.gone


async def kept(scene: Scene) -> AsyncIterator[Goal]:
    """An idle group is being released when its owner wants to keep it; a pod that can't join has binds awaited."""
    node = await scene.node(2)
    group = await scene.group("group", 2, releaseAfter="2s")
    one, stuck = await scene.pod("one", group), await scene.pod("stuck", group, pool="nowhere")
    yield scene.bound(one)
    await scene.delete(one)
    yield lambda state: [] if _marks(state, node) else ["not marked yet"]
    await scene.change(f"{GROUPS}/{group}", spec={"releaseAfter": "never"})
    yield lambda state: ["still marked"] if _marks(state, node) else []
    two = await scene.pod("two", group)
    yield scene.bound(two)
    await scene.delete(two, stuck, group)
    yield scene.gone


async def former(scene: Scene) -> AsyncIterator[Goal]:
    """A device was replaced, and the pod that had it has gone; the group, which stays, no longer has it."""
    node = await scene.node(4)
    yield has_ledger(node)
    await report(scene, node)
    group = await scene.group("group", 2)
    one = await scene.pod("one", group)
    yield scene.bound(one)
    await report(scene, node, 0, 1)
    await scene.change(f"{GROUPS}/{group}", metadata={"annotations": {f"{PREFIX}rebind": "please"}})
    yield lambda state: unanswered(state, node, group)
    await scene.delete(one)
    yield lambda state: ["still former"] if _formers(state, node) else []
    await report(scene, node)
    two = await scene.pod("two", group)
    yield scene.bound(two)
    await scene.delete(two, group)
    yield scene.gone


async def first_report(scene: Scene) -> AsyncIterator[Goal]:
    """The agent comes to a node whose devices are claimed by number: claim and pod are told UUIDs."""
    node = await scene.node(2)
    yield has_ledger(node)
    group = await scene.group("group", 2)
    one = await scene.pod("one", group)
    yield scene.bound(one)
    await report(scene, node, devices=2, boot=BOOT_ID.read_text().strip())
    yield lambda state: [] if _uuids(state, node) == {f"GPU-{node}-0", f"GPU-{node}-1"} else ["no UUIDs in the claim"]
    yield (
        lambda state: (
            [] if f"GPU-{node}-0" in _annotation(state, one, "nvidia-visible-devices") else [f"{one} isn't told"]
        )
    )
    await scene.delete(one, group)
    yield scene.gone
    await scene.change(f"{LEDGERS}/{node}/status", status={"hardware": None})


RARE: dict[str, Story] = {
    story.__name__.replace("_", "-"): story
    for story in (impostor, ended, loser, kept, former, first_report, deleted_claim, wiped_under_a_mark, emptied_secret)
}


def _status(state: State, pod: str) -> dict[str, object]:
    found: dict[str, object] = state.pods.get(f"default/{pod}", {}).get("status", {})
    return found


def _annotation(state: State, pod: str, name: str) -> str:
    said = state.pods.get(f"default/{pod}", {}).get("metadata", {}).get("annotations") or {}
    return str(said.get(f"{PREFIX}{name}", ""))


def _version(ledger: Json) -> int:
    return int(ledger["metadata"]["resourceVersion"])


def _has_claims_since(version: int, ledger: Json) -> bool:
    return bool(claims_of(ledger)) and _version(ledger) > version


def _uuids(state: State, node: str) -> set[str]:
    claims = claims_of(state.ledgers.get(node, {})).values()
    return {device.get("uuid", "") for claim in claims for device in claim.get("devices") or ()}


def _marks(state: State, node: str) -> list[str]:
    return [uid for uid, claim in claims_of(state.ledgers.get(node, {})).items() if claim.get("releasing")]


def _formers(state: State, node: str) -> list[str]:
    return [uid for uid, claim in claims_of(state.ledgers.get(node, {})).items() if claim.get("former")]
