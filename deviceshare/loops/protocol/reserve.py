"""The claim protocol's reserve and recount: what a group holds of a DeviceQuota (claims.md, Quotas).

Q is a DeviceQuota that matches the group G. Its status is written by compare-and-swap alone.
"""

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType

from deviceshare.domain.objects.device_quota import DeviceQuota, Reservation, quota_patch, reservation_of
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.reasons import Reason
from deviceshare.domain.objects.shares import GROUP, Holder
from deviceshare.loops.kinds import DEVICE_QUOTAS, GROUPS, find
from deviceshare.loops.ports import Cluster, Conflict, NotFound
from deviceshare.loops.protocol import holders
from deviceshare.loops.protocol.bind import Refused


async def reserve(
    cluster: Cluster, group: Group, names: Collection[str], known: Mapping[str, DeviceQuota] = MappingProxyType({})
) -> list[DeviceQuota]:
    """Reserves what the group wants in each of these quotas that matches it; returns them as they are then.

    `group` is as step 1 of the bind read it, which must have been before this: a reservation is dropped only after a
    write that makes the bind fail which read the group before (`recount`). So what is reserved stays, whatever becomes
    of this bind; it may be of use to another one.

    `known` are copies of any age. A write by a copy's version proves that it was the newest; all are read where one is
    missing or has changed since, has nothing to be written, or leaves no room.

    Raises Refused where the group and those that hold devices already would exceed a quota.
    """
    copies = [known.get(name) for name in names]
    quotas = [quota for quota in copies if quota and not quota.metadata.unreadable]
    if len(quotas) == len(copies) and all(_shows_itself(quota, group) for quota in quotas):
        with suppress(Conflict, NotFound):
            return [await _write(cluster, quota, add={group.uid: reservation_of(group)}) for quota in quotas]
    read = [quota for name in names if (quota := await find(cluster, DEVICE_QUOTAS, name))]
    quotas = [quota for quota in read if quota.matches(group.metadata.labels)]
    # All of them are asked before the first is written, so that one doesn't count what another refuses.
    for quota in quotas:
        if reason := _obstacle(quota, group):
            raise Refused(reason)
    return [await _write(cluster, quota, add={group.uid: reservation_of(group)}) for quota in quotas]


def _shows_itself(quota: DeviceQuota, group: Group) -> bool:
    """Whether the group's reservation changes this copy, so that a write shows whether it is the newest."""
    if _obstacle(quota, group) or not quota.matches(group.metadata.labels):
        return False
    return bool(quota_patch(quota, add={group.uid: reservation_of(group)}))


def _obstacle(quota: DeviceQuota, group: Group) -> Reason | None:
    return quota.obstacle(group.uid, group.name, group.spec.resources)


async def recount(
    cluster: Cluster, name: str, *, suspects: Collection[str], bound: Iterable[Group]
) -> DeviceQuota | None:
    """Drops the reservations of groups that no longer need them, and adds those of bound groups that have none.

    Of a quota that is new, or whose spec was changed, groups are asked for afresh: from then on its status is complete.

    Args:
        suspects: the UIDs of groups with a reservation that may be gone, unbound, or no longer match.
        bound: groups that are bound, as far as is known.
    """
    seen = await find(cluster, DEVICE_QUOTAS, name)
    if seen is None:
        return None
    held, drop = seen.status.reservations, []
    for uid in [each for each in suspects if each in held]:
        group = await holders.read_group(cluster, Holder(uid, GROUP, held[uid].name))
        if group is not None and seen.matches(group.metadata.labels):
            if group.node:
                continue
            # Binds that read the group before fail by this write; those that read it after write Q, so we fail.
            await holders.fence(cluster, group)
        drop.append(uid)
    # With a selector that can't be evaluated nobody knows which groups: such a quota lets nobody be bound.
    complete = not seen.counts_all
    if complete and not seen.observed:
        # The mirror may be older than the quota. After the GET: whoever reserves in between makes our write fail.
        listed = await cluster.list(GROUPS)
        bound = [group for group in listed if not (group.metadata.unreadable or seen.holds(group))]
    add = {}
    for mirrored in bound:
        # Another bind of it may have reserved more than it had when it was mirrored: that must not be written over.
        group = await holders.read_group(cluster, mirrored.holder) if mirrored.uid in held else mirrored
        if group is not None and group.node and seen.matches(group.metadata.labels) and not seen.holds(group):
            add[group.uid] = reservation_of(group)
    return await _write(cluster, seen, add=add, drop=drop, complete=complete)


async def _write(
    cluster: Cluster,
    quota: DeviceQuota,
    *,
    add: Mapping[str, Reservation],
    drop: Collection[str] = (),
    complete: bool = False,
) -> DeviceQuota:
    patch = quota_patch(quota, add=add, drop=drop, complete=complete)
    return await cluster.patch(DEVICE_QUOTAS, quota.name, patch, subresource="status") if patch else quota
