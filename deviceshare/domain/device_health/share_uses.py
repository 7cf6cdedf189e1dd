"""Uses of shares: the memory that containers use of a device, beside what their shares allow them.

Shares are those of the node's ledger, by the UID of the pod, which the kernel's control groups name: what a pod says of
itself counts for nothing. Memory of a process whose pod isn't known is nobody's use.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct

from deviceshare.domain.device_health.trespasses import Occupant
from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.ledger import Claim, NodeDevices
from deviceshare.domain.objects.requests import Holder
from deviceshare.domain.objects.shares import Share
from deviceshare.domain.placement.rooms import mib, units, used


class ShareUse(Struct, frozen=True):
    """What a container uses of a device and what it may use, or all of a pod's containers together."""

    device: Device
    """In the node's present numbering."""
    pod: str
    """`namespace/name`"""
    pod_uid: str
    container: str
    """"" for the whole pod, where memory is used that can't be assigned to a container with a share of the device."""
    used_mib: int
    limit_mib: int
    containers: int = 1
    """How many containers' shares the limit is made of."""


def share_uses(ledger: NodeDevices, occupants: Iterable[Occupant]) -> list[ShareUse]:
    """The use of every share on the node whose size in MiB is known, sorted by pod, device and container."""
    taken: defaultdict[tuple[str, Device], Counter[str]] = defaultdict(Counter)
    for each in occupants:
        taken[each.pod_uid, each.device][each.container] += each.memory_mib
    uses: list[ShareUse] = []
    for uid, claim in sorted(ledger.claims.items(), key=lambda each: (each[1].pod, each[0])):
        for device, shares in sorted(shares_by_device(ledger, claim).items()):
            uses += _of_pod(claim.holder(uid), device, shares, taken.get((uid, device), {}), ledger.memory_of(device))
    return uses


def shares_by_device(ledger: NodeDevices, claim: Claim) -> dict[Device, list[Share]]:
    """The claim's shares by device, in the node's present numbering."""
    found: dict[Device, list[Share]] = {}
    for share in claim.shares:
        found.setdefault(ledger.present(share.device), []).append(share)
    return found


def limit_of_container(shares: Iterable[Share], size: int) -> int:
    """MiB of what one container may use of a device with so many MiB; 0 where that isn't known."""
    return mib(sum(units(share, size) or 0 for share in shares), size)


def limit_of_pod(shares: Iterable[Share], size: int) -> int:
    """Likewise, of what the containers of a pod may use at one time."""
    return mib(used(tuple(shares), size), size)


def _of_pod(
    pod: Holder, device: Device, shares: Collection[Share], taken: Mapping[str, int], size: int
) -> Iterable[ShareUse]:
    if not size:
        return
    names = sorted({share.container for share in shares})
    for name in names:
        limit = limit_of_container((share for share in shares if share.container == name), size)
        yield ShareUse(device, pod.name, pod.uid, name, taken.get(name, 0), limit)
    if any(memory for name, memory in taken.items() if name not in names):
        yield ShareUse(device, pod.name, pod.uid, "", sum(taken.values()), limit_of_pod(shares, size), len(names))
