"""Holdings: who holds what, by the evidence of claims, groups' statuses and live pods, and what of it contradicts.

Repair recreates ledgers from them (loops/protocol/repair.py).
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from msgspec.structs import replace

from deviceshare.domain.objects import ledger
from deviceshare.domain.objects.devices import Device, Devices, Identity, parse_selected
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import Claim, NodeDevices
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import Holder, Share, current, stored_once


class Holding(NamedTuple):
    """Devices that somebody holds by the evidence of a claim, a group's status or a live pod.

    `former` were replaced by a rebind, and pods may hold them still. Where there are `shares`, which have former ones
    among them, no device is held whole.
    """

    holder: Holder
    devices: Devices
    former: Devices = ()
    shares: tuple[Share, ...] = ()
    within: str = ""
    """As in a claim."""

    @property
    def claim(self) -> Claim:
        """The claim that it is to become."""
        if self.shares:
            return ledger.share_claim_of(self.holder, self.shares, self.within)
        return ledger.claim_of(self.holder, self.devices, self.former)

    @property
    def owner(self) -> str:
        """Equal for holdings that may have the same device."""
        return self.within or (_SHARERS if self.shares else self.holder.uid)


_SHARERS = "pods with shares"


_BY_NUMBER = NodeDevices().present
"""As in a ledger that is gone: it has no UUIDs."""


def reconcile_holdings(
    holdings: Iterable[Holding], present: Callable[[Device], Device] = _BY_NUMBER
) -> tuple[list[Holding], list[Holding]]:
    """Joins the holdings of each holder, earlier evidence first, and sets aside what would give a device two owners.

    `present` says which device is meant (NodeDevices.present): a reboot may have changed the numbers since. Those with
    different UUIDs are two, also where it only knows the number that each had when it was claimed.
    """
    kept: dict[str, list[Holding]] = {}
    owners: dict[Identity, set[tuple[str, str]]] = {}
    """Who names the device, and by which UUID."""
    disputed = []
    for holding in holdings:
        meant = {
            (identity, device.uuid)
            for device in (*holding.devices, *holding.former)
            for identity in (present(device).identity, device.identity if device.uuid else present(device).identity)
        }
        if any(
            owner != holding.owner and (uuid == name or not (uuid and name))
            for identity, uuid in meant
            for owner, name in owners.get(identity, ())
        ):
            disputed.append(holding)
            continue
        kept.setdefault(holding.holder.uid, []).append(holding)
        for identity, uuid in meant:
            owners.setdefault(identity, set()).add((holding.owner, uuid))
    return [_joined(mine, present) for mine in kept.values()], disputed


def _joined(holdings: list[Holding], present: Callable[[Device], Device]) -> Holding:
    """One holding with the devices of one of these, and all others as former.

    They differ when a rebind was under way. Its newest devices are those that nobody had to give up yet.
    """
    if holdings[0].shares:
        return _joined_shares(holdings, present)
    given_up = {present(device) for holding in holdings for device in holding.former}
    current = (h for h in holdings if h.devices and given_up.isdisjoint(map(present, h.devices)))
    newest = next(current, holdings[0])
    every = {present(device): device for holding in holdings for device in (*holding.devices, *holding.former)}
    for device in newest.devices:
        every.pop(present(device), None)
    return newest._replace(former=tuple(sorted(every.values())))


def _joined_shares(holdings: list[Holding], present: Callable[[Device], Device]) -> Holding:
    """One holding with the shares of one of these, and all others as former ones."""

    def part(share: Share) -> tuple[str, Device]:
        return share.container, present(share.device)

    holdings = [holding for holding in holdings if holding.within == holdings[0].within]
    given_up = {part(share) for holding in holdings for share in holding.shares if share.former}
    newest = next((h for h in holdings if given_up.isdisjoint(map(part, current(h.shares)))), holdings[0])
    every = {part(share): replace(share, former=True) for holding in holdings for share in holding.shares}
    every |= {part(share): share for share in newest.shares}
    return of_shares(newest.holder, every.values(), newest.within)


def all_holdings(claims: list[Holding], groups: Iterable[Group], pods: Iterable[Pod], node: str) -> list[Holding]:
    """All evidence for the node. A group's status names no UUIDs, so it counts only where nothing else is evidence."""
    named = [*claims, *of_pods(pods, node)]
    known = {holding.holder.uid for holding in named}
    return [*named, *(holding for holding in of_groups(groups, node) if holding.holder.uid not in known)]


def of_groups(groups: Iterable[Group], node: str) -> Iterable[Holding]:
    for group in groups:
        if group.node == node:
            try:
                yield Holding(group.holder, parse_selected(group.status.selected_devices))
            except ValueError:
                continue  # Somebody edited the status by hand; the pods' annotations still speak for the group.


def of_pods(pods: Iterable[Pod], node: str) -> Iterable[Holding]:
    for pod in pods:
        if not (pod.lives and pod.node == node and pod.holder_uid) or pod.impostor:
            continue
        if pod.group and pod.devices:
            yield Holding(pod.holder, pod.devices, pod.former)
        if pod.shares:
            yield of_shares(pod.sharer, pod.shares, pod.holder_uid if pod.group else "")


def of_shares(holder: Holder, shares: Iterable[Share], within: str) -> Holding:
    parts = stored_once(shares)
    before = (share.device for share in parts if share.former)
    devices = (share.device for share in current(parts))
    return Holding(holder, tuple(sorted({*devices})), tuple(sorted({*before})), parts, within)


def of_claim(uid: str, claim: Claim) -> Holding:
    return Holding(
        claim.holder(uid), tuple(claim.devices), tuple(claim.replaced), stored_once(claim.shares), claim.within
    )
