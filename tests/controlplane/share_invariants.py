"""What must hold of shares at every moment, judged on what the API server stores, without the allocator's own code.

The lists are read one after another: a pod's claim is there before the pod has its node, and goes after the pod's
end. So the pods are read first.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import Share
from deviceshare.kube.api import Api
from deviceshare.loops.kinds import NODE_DEVICES, PODS

SHARES = "deviceshare.io/shares"


class SharesSeen(NamedTuple):
    """The live pods with shares by UID, and then the ledgers by node."""

    pods: dict[str, Pod]
    ledgers: dict[str, NodeDevices]

    @property
    def claims(self) -> int:
        """How many there are, of all nodes."""
        return sum(len(ledger.claims) for ledger in self.ledgers.values())


async def look(api: Api, namespace: str) -> SharesSeen:
    """Reads everything, past every cache."""
    pods = {pod.metadata.uid: pod for pod in await api.list(PODS, namespace=namespace) if pod.lives}
    return SharesSeen(pods, {ledger.node: ledger for ledger in await api.list(NODE_DEVICES)})


def overfull(seen: SharesSeen, size: int) -> list[str]:
    """Devices of which more is allocated than there is: by claims, and by what living pods were given."""
    by_claim = [(node, share) for node, ledger in seen.ledgers.items() for share in _claimed(ledger)]
    by_pod = [(pod.node, share) for pod in seen.pods.values() for share in _given(pod)]
    return [*_over("claims", by_claim, size), *_over("pods", by_pod, size)]


def uncovered(seen: SharesSeen) -> list[str]:
    """Living pods whose share is in no claim, or in another one than they were given."""
    faults = []
    for uid, pod in seen.pods.items():
        claim = seen.ledgers[pod.node].claims.get(uid)
        if claim is None or sorted(map(_amount, claim.shares)) != sorted(map(_amount_of, _given(pod))):
            faults.append(f"{pod.metadata.key} on {pod.node} was given {_given(pod)}, its claim is {claim}")
    return faults


def leaked(seen: SharesSeen) -> list[str]:
    """Claims of pods that don't live there."""
    return [
        f"{node}: {claim.pod} ({uid})"
        for node, ledger in seen.ledgers.items()
        for uid, claim in ledger.claims.items()
        if uid not in seen.pods or seen.pods[uid].node != node
    ]


def _claimed(ledger: NodeDevices) -> Iterable[Mapping[str, Any]]:
    for claim in ledger.claims.values():
        for share in claim.shares:
            yield {"index": share.index, "memoryMib": share.memory_mib, "percent": share.percent}


def _given(pod: Pod) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(pod.metadata.annotations.get(SHARES, "[]"))
    return found


def _over(what: str, shares: Iterable[tuple[str, Mapping[str, Any]]], size: int) -> Iterable[str]:
    sums: dict[tuple[str, int], Fraction] = defaultdict(Fraction)
    for node, share in shares:
        sums[node, share["index"]] += Fraction(share.get("memoryMib", 0), size) + Fraction(share.get("percent", 0), 100)
    yield from (f"{what} of {node} {index} are {float(part):.0%}" for (node, index), part in sums.items() if part > 1)


def _amount(share: Share) -> tuple[int, int, int]:
    return share.index, share.memory_mib, share.percent


def _amount_of(share: Mapping[str, Any]) -> tuple[int, int, int]:
    return share["index"], share.get("memoryMib", 0), share.get("percent", 0)
