"""Holdings: who holds what, by the evidence of claims, groups' statuses and live pods, and what of it contradicts.

Repair recreates ledgers from them (loops/protocol/repair.py).
"""

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from msgspec.structs import replace

from deviceshare.domain.objects import ledger
from deviceshare.domain.objects.devices import Device, Identity, parse_selected
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import Claim
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import Holder, Share, current, stored_once


class Holding(NamedTuple):
    """Devices that somebody holds by the evidence of a claim, a group's status or a live pod."""

    holder: Holder
    claim: Claim
    """What it is to become. Its former devices were replaced by a rebind, and pods may hold them still."""

    @property
    def owner(self) -> str:
        """Equal for holdings that may have the same device."""
        return self.claim.within or ("pods with shares" if self.claim.pod else self.holder.uid)


def reconcile_holdings(
    evidence: Iterable[Holding], present: Callable[[Device], Device], claimed: Collection[Holding] = ()
) -> tuple[list[Holding], list[Holding]]:
    """Joins the holdings of each holder, earlier evidence first, and sets aside what would give a device two owners.

    The `claimed` ones come first. They stay in the ledger: what contradicts one of them is set aside, also where that
    one contradicts another.

    `present` says which device is meant (NodeDevices.present): a reboot may have changed the numbers since. Those with
    different UUIDs are two, also where it only knows the number that each had when it was claimed.
    """
    kept: dict[str, list[Holding]] = {}
    owners: dict[Identity, set[tuple[str, str]]] = {}
    """Who names the device, and by which UUID."""
    disputed = []
    for number, holding in enumerate((*claimed, *evidence)):
        meant = {
            (identity, device.uuid)
            for device in (*holding.claim.devices, *holding.claim.replaced)
            for identity in (present(device).identity, device.identity if device.uuid else present(device).identity)
        }
        contradicts = any(
            owner != holding.owner and (uuid == name or not (uuid and name))
            for identity, uuid in meant
            for owner, name in owners.get(identity, ())
        )
        if contradicts:
            disputed.append(holding)
        else:
            kept.setdefault(holding.holder.uid, []).append(holding)
        if number < len(claimed) or not contradicts:
            for identity, uuid in meant:
                owners.setdefault(identity, set()).add((holding.owner, uuid))
    return [_joined(mine, present) for mine in kept.values()], disputed


def _joined(holdings: list[Holding], present: Callable[[Device], Device]) -> Holding:
    """One holding with the devices of one of these, and all others as former.

    They differ when a rebind was under way. Its newest devices are those that nobody had to give up yet.
    """
    if holdings[0].claim.shares:
        return _joined_shares(holdings, present)
    claims = [holding.claim for holding in holdings]
    given_up = {present(device) for claim in claims for device in claim.former}
    current = (claim for claim in claims if claim.whole and given_up.isdisjoint(map(present, claim.whole)))
    newest = next(current, claims[0])
    every = {present(device): device for claim in claims for device in (*claim.whole, *claim.former)}
    for device in newest.whole:
        every.pop(present(device), None)
    return Holding(holdings[0].holder, replace(newest, former=sorted(every.values())))


def _joined_shares(holdings: list[Holding], present: Callable[[Device], Device]) -> Holding:
    """One holding with the shares of one of these, and all others as former ones."""

    def part(share: Share) -> tuple[str, Device]:
        return share.container, present(share.device)

    [holder, first] = holdings[0]
    claims = [holding.claim for holding in holdings if holding.claim.within == first.within]
    given_up = {part(share) for claim in claims for share in claim.shares if share.former}
    newest = next((each for each in claims if given_up.isdisjoint(map(part, current(each.shares)))), first)
    every = {part(share): replace(share, former=True) for claim in claims for share in claim.shares}
    every |= {part(share): share for share in newest.shares}
    return Holding(holder, ledger.share_claim_of(holder, stored_once(every.values()), newest.within))


def beside_claims(claimed: list[Holding], groups: Iterable[Group], pods: Iterable[Pod], node: str) -> list[Holding]:
    """All other evidence for the node. A group's status names no UUIDs: it counts only where nothing else is there."""
    told = list(of_pods(pods, node))
    known = {holding.holder.uid for holding in (*claimed, *told)}
    return [*told, *(holding for holding in of_groups(groups, node) if holding.holder.uid not in known)]


def of_groups(groups: Iterable[Group], node: str) -> Iterable[Holding]:
    for group in groups:
        if group.node == node:
            try:
                devices = parse_selected(group.status.selected_devices)
            except ValueError:
                continue  # Somebody edited the status by hand; the pods' annotations still speak for the group.
            yield Holding(group.holder, ledger.claim_of(group.holder, devices))


def of_pods(pods: Iterable[Pod], node: str) -> Iterable[Holding]:
    for pod in pods:
        if not (pod.lives and pod.node == node and pod.holder_uid) or pod.impostor:
            continue
        within = pod.holder_uid if pod.group else ""
        if pod.group and pod.devices:
            yield Holding(pod.holder, ledger.claim_of(pod.holder, pod.devices, pod.former))
        if pod.shares:
            yield Holding(pod.sharer, ledger.share_claim_of(pod.sharer, stored_once(pod.shares), within))


def of_claim(uid: str, claim: Claim) -> Holding:
    """What the claim says of devices, not how it came about."""
    bare = replace(claim, shares=list(stored_once(claim.shares)), releasing="", rebound="", token="")
    return Holding(claim.holder(uid), bare)
