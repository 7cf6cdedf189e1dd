"""What must hold in every state of the API server's store, judged on plain JSON, by none of deviceshare's code.

docs/claims.md has the rules. A device is named by its resource and index, which never change in these tests.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import NamedTuple

from tests.faults.raw_api import Json

PREFIX = "deviceshare.io/"


class State(NamedTuple):
    """The objects at one revision: groups by name, pods by namespace and name, ledgers by node."""

    groups: dict[str, Json]
    pods: dict[str, Json]
    ledgers: dict[str, Json]


class Use(NamedTuple):
    """Who has a device of a node: the whole of it, or a part within a group's device or nobody's."""

    owner: str
    device: str
    part: Fraction
    within: str = ""

    @property
    def whole(self) -> bool:
        return self.part == 0


def never(state: State) -> list[str]:
    """What may be in no state, whatever people and faults do: one device owned twice, one group in two places."""
    return [*_claimed_twice(state), *_used_twice(state), *_used_of_another(state), *_scattered(state)]


def unproven(state: State) -> list[str]:
    """What may be in no state either, unless people took evidence away: use without a claim, a bound group without."""
    return [*_unclaimed_pods(state), *_unclaimed_groups(state)]


def claims_of(ledger: Json) -> dict[str, Json]:
    """By the holder's UID."""
    found: dict[str, Json] = ledger.get("spec", {}).get("claims") or {}
    return found


def is_closed(ledger: Json) -> bool:
    """Whether it names no devices, as while it is being recreated."""
    return not ledger.get("status", {}).get("devices")


def is_live(pod: Json) -> bool:
    """Whether it is on a node and its containers may run."""
    ended = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
    return bool(node_of(pod)) and not ended


def node_of(pod: Json) -> str:
    annotations = pod["metadata"].get("annotations") or {}
    return str(pod["spec"].get("nodeName") or annotations.get(f"{PREFIX}placed-on", ""))


def uses_of(pod: Json) -> Iterator[Use]:
    """What its annotations give it, former devices included."""
    said = pod["metadata"].get("annotations") or {}
    group = said.get(f"{PREFIX}group-uid", "")
    if shares := said.get(f"{PREFIX}shares"):
        yield from (_part(pod["metadata"]["uid"], share, group) for share in json.loads(shares))
    if not group:
        return
    for kind, numbers in json.loads(said.get(f"{PREFIX}selected-devices", "{}")).items():
        yield from (Use(group, f"{kind}/{number}", Fraction(0)) for number in numbers.split(","))
    for device in json.loads(said.get(f"{PREFIX}former-devices", "[]")):
        yield Use(group, _name(device), Fraction(0))


def _claimed(ledger: Json) -> Iterator[Use]:
    for uid, claim in claims_of(ledger).items():
        for device in (*(claim.get("devices") or ()), *(claim.get("former") or ())):
            yield Use(uid, _name(device), Fraction(0))
        yield from (_part(uid, share, claim.get("within", "")) for share in _shares(claim))


def _shares(claim: Json) -> Iterator[Json]:
    """However they are stored: as objects, or in lines such as `main 30% nvidia.com/gpu 0=GPU-a,1=GPU-b former`."""
    yield from claim.get("shares") or ()
    for line in claim.get("parts") or ():
        _, size, resource, devices, *_ = line.split(" ")
        amount = {"percent": int(size[:-1])} if size.endswith("%") else {"memoryMib": int(size.removesuffix("Mi"))}
        yield from ({"resource": resource, "index": int(each.split("=")[0]), **amount} for each in devices.split(","))


def _name(device: Json) -> str:
    return f"{device['resource']}/{device.get('index', 0)}"


def _part(owner: str, share: Json, within: str) -> Use:
    part = Fraction(share.get("percent", 0), 100) + Fraction(share.get("memoryMib", 0), 16384)
    return Use(owner, _name(share), part or Fraction(1), within)


def _faults(place: str, uses: Iterable[Use]) -> Iterator[str]:
    """Of the uses of one node's devices, by claims or by pods."""
    by_device: dict[str, set[Use]] = defaultdict(set)
    for use in uses:
        by_device[use.device].add(use)
    for device, found in by_device.items():
        owners = {use.owner for use in found if use.whole}
        parts = [use for use in found if not use.whole]
        if len(owners) > 1:
            yield f"{place}: {device} belongs to {sorted(owners)}"
        if owners and any(use.within not in owners for use in parts):
            yield f"{place}: {device} belongs to {sorted(owners)} and in parts to {sorted(parts)}"
        if sum((use.part for use in parts), Fraction(0)) > 1:
            yield f"{place}: more than the whole of {device} is given away: {sorted(parts)}"


def _claimed_twice(state: State) -> Iterator[str]:
    for node, ledger in state.ledgers.items():
        yield from _faults(f"claims of {node}", _claimed(ledger))


def _live(state: State) -> Iterator[tuple[str, Json]]:
    return ((key, pod) for key, pod in state.pods.items() if is_live(pod))


def _used_twice(state: State) -> Iterator[str]:
    by_node: dict[str, list[Use]] = defaultdict(list)
    for _, pod in _live(state):
        by_node[node_of(pod)] += uses_of(pod)
    for node, uses in by_node.items():
        yield from _faults(f"pods of {node}", uses)


def _used_of_another(state: State) -> Iterator[str]:
    for key, pod in _live(state):
        for use in uses_of(pod):
            for claim in _claimed(state.ledgers.get(node_of(pod), {})):
                if claim.whole and claim.device == use.device and claim.owner not in (use.owner, use.within):
                    yield f"{key} on {node_of(pod)} uses {use.device}, which is claimed for {claim.owner}"


def _scattered(state: State) -> Iterator[str]:
    homes: dict[str, set[str]] = defaultdict(set)
    for _, pod in _live(state):
        if uid := (pod["metadata"].get("annotations") or {}).get(f"{PREFIX}group-uid"):
            homes[uid].add(node_of(pod))
    for group in state.groups.values():
        if node := group.get("status", {}).get("nodeName"):
            homes[group["metadata"]["uid"]].add(node)
    yield from (f"group {uid} is on {sorted(nodes)}" for uid, nodes in homes.items() if len(nodes) > 1)


def _unclaimed_pods(state: State) -> Iterator[str]:
    for key, pod in _live(state):
        ledger = state.ledgers.get(node_of(pod), {})
        if is_closed(ledger):
            continue
        claimed = {(use.owner, use.device) for use in _claimed(ledger)}
        missing = [use for use in uses_of(pod) if (use.owner, use.device) not in claimed]
        if missing:
            yield f"{key} on {node_of(pod)} uses {missing}, for which there is no claim"


def _unclaimed_groups(state: State) -> Iterator[str]:
    for name, group in state.groups.items():
        status = group.get("status", {})
        ledger = state.ledgers.get(status.get("nodeName", ""), {})
        claimed = is_closed(ledger) or group["metadata"]["uid"] in claims_of(ledger)
        if status.get("phase") == "Bound" and not claimed:
            yield f"group {name} says Bound to {status['nodeName']}, where it has no claim"


def unfinished(state: State) -> list[str]:
    """What may be in states on the way, but not in the last one: marks, former devices, claims that nobody needs."""
    groups = {group["metadata"]["uid"]: group for group in state.groups.values()}
    pods = {pod["metadata"]["uid"]: pod for pod in state.pods.values()}
    texts = []
    for node, ledger in state.ledgers.items():
        texts += [f"the ledger of {node} is closed"] if is_closed(ledger) else []
        for uid, claim in claims_of(ledger).items():
            home = groups.get(uid, {}).get("status", {}).get("nodeName") or (node_of(pods[uid]) if uid in pods else "")
            texts += [f"{node}: {claim.get('group') or claim.get('pod')} has a claim and is on {home!r}"] * (
                home != node
            )
            texts += [f"{node}: the claim of {uid} bears a mark"] if claim.get("releasing") else []
    return texts
