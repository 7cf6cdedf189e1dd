"""The budget of a ledger: how many bytes claims may take of a node's NodeDevices, in all and of each namespace.

The API server stores no object above etcd's 1.5 MiB, and writes one of a megabyte slowly. So claims of pods and groups
end at BUDGET, and what releases them never does: marks, rebinds and what repair adds have the rest of the object.

Of what is left a namespace leaves room to others: it may have FAIR times as much as would then be free (Choudhury and
Hahne, "Dynamic queue length thresholds", 1998). One that is alone has four fifths, two have four ninths each, and
whoever comes later still finds room.
"""

from collections import Counter
from functools import lru_cache
from typing import Final, NamedTuple

from msgspec import json

from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.ledger import Claim, NodeDevices, claim_bytes, claim_of, share_claim_of
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.objects.shares import Holder, Request, Share, ShareRequest, share_of

BUDGET: Final = 512 << 10
"""Bytes. 1,600 shares of 250 bytes take 400,000 of them, and one namespace may have those."""
FAIR: Final = 4
MAX_CLAIM: Final = 1 << 10
"""Bytes of a pod's claim. What a group's takes follows from the node's devices."""
_ROOMY: Final = BUDGET * FAIR // (FAIR + 1) - MAX_CLAIM
"""Up to here any pod's claim fits, whoever has the others."""
_UUID: Final = "GPU-00000000-0000-0000-0000-000000000000"


class Crowding(NamedTuple):
    """What claims take of a ledger that doesn't have room for all that may come."""

    used: int
    namespaces: tuple[tuple[str, int], ...]
    """Bytes by the pods' namespace, sorted."""

    def obstacle(self, namespace: str, size: int) -> Reason | None:
        """Why a claim of so many bytes can't be added; `namespace` is "" for a group's."""
        left = BUDGET - self.used - size
        if left < 0:
            return FULL
        mine = dict(self.namespaces).get(namespace, 0) + size
        if namespace and mine > FAIR * left:
            text = f"node(s) with a nearly full ledger, which keeps room for other namespaces than {namespace}"
            return Reason(ReasonKind.LEDGER_FULL, text, _CURE)
        return None

    def obstacle_to(self, request: Request) -> Reason | None:
        """Why the claims that the request needs can't be added."""
        group = 0
        if request.resources:
            devices = [Device(r, 10, _UUID) for r, count in request.resources.items() for _ in range(count)]
            group = claim_bytes(_UUID, claim_of(request.holder, devices, token="0" * 16))
        share = _share_bytes(request.taker, request.share) if request.share else 0
        return self.obstacle(_namespace(request.taker.name) if share else "", group + share)


def crowding(ledger: NodeDevices) -> Crowding | None:
    """None where every claim that a pod may have fits, as nearly always."""
    if len(json.encode(ledger.spec)) <= _ROOMY:
        return None
    used: Counter[str] = Counter()
    for uid, claim in ledger.claims.items():
        used[_namespace(claim.pod)] += len(uid) + _bytes_without_uid(json.encode(claim))
    return Crowding(used.total(), tuple(sorted(used.items())))


@lru_cache(8192)  # claims of a few hundred bytes
def _bytes_without_uid(claim: bytes) -> int:
    # Asked of every claim of a crowded ledger at each change and each bind, and nearly all claims are as they were.
    return claim_bytes("", json.decode(claim, type=Claim))


def obstacle(ledger: NodeDevices, uid: str, claim: Claim) -> Reason | None:
    """Why the claim can't be added."""
    crowded = crowding(ledger)
    return crowded.obstacle(_namespace(claim.pod), claim_bytes(uid, claim)) if crowded else None


def oversize(pod: Holder, share: ShareRequest) -> Reason | None:
    """Why the pod can have a claim nowhere: its parts and their containers' names take too many bytes."""
    # Two never do, however long the names of pod and containers are.
    if len(share.needs) <= 2 or _share_bytes(pod, share) <= MAX_CLAIM:
        return None
    text = f"the pod's {len(share.needs)} parts take more than the {MAX_CLAIM} bytes that a claim may have"
    return Reason(ReasonKind.INVALID_SPEC, text, "ask in fewer containers, or give them shorter names")


def _share_bytes(pod: Holder, share: ShareRequest) -> int:
    """What its claim takes at most: with UUIDs, the n-th part of each container on one device."""
    parts: list[Share] = []
    numbers: Counter[str] = Counter()
    resource = max(share.of, key=len, default="")
    for need in share.needs:
        parts.append(share_of(need, Device(resource, 10 + numbers[need.container], _UUID)))
        numbers[need.container] += 1
    return claim_bytes(_UUID, share_claim_of(pod, parts, _UUID))


def _namespace(pod: str) -> str:
    return pod.partition("/")[0]


_CURE: Final = "delete pods with shares there, or share another node"
FULL: Final = Reason(ReasonKind.LEDGER_FULL, "node(s) with a full ledger: no more claims fit", _CURE)
