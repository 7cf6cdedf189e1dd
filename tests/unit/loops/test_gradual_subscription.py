"""A gradual subscription tells what a subscription tells, whatever happens in between."""

import asyncio
from typing import Any

from deviceshare.domain.objects.groups import Group, GroupMeta
from deviceshare.kube.mirror import Cache
from deviceshare.loops.leader.controller import AT_ONCE, gradual_subscription
from deviceshare.loops.ports import ObjectChange


class ListedGroups(Cache[Group]):
    """A mirror."""

    synced = True


def group(name: str, version: int = 1) -> Group:
    return Group(GroupMeta(name=name, uid=f"uid-of-{name}", resource_version=str(version)))


class Heard:
    """What a watcher was told, and the state that follows from it."""

    def __init__(self) -> None:
        self.state: dict[str, str] = {}
        self.number = 0

    def __call__(self, change: ObjectChange[Any]) -> None:
        self.number += 1
        known = self.state.get(change.key)
        assert known == (change.old.metadata.resource_version if change.old else None)
        if change.new:
            self.state[change.key] = change.new.metadata.resource_version
        else:
            del self.state[change.key]


async def test_every_object_is_an_addition_first_and_a_change_then() -> None:
    """Also one that changes, goes or comes while the others are being reported."""
    mirror, heard, number = ListedGroups(), Heard(), 4 * AT_ONCE
    mirror.replace([group(f"g{each}") for each in range(number)], "1")
    subscription = gradual_subscription(mirror, heard)
    begun = asyncio.ensure_future(subscription.__aenter__())
    await asyncio.sleep(0)
    assert heard.number == AT_ONCE
    mirror.apply(group("g0", 2))
    mirror.apply(group(f"g{number - 1}", 2))
    mirror.remove("g1", "3")
    mirror.remove(f"g{number - 2}", "3")
    mirror.apply(group("new", 4))
    await begun
    mirror.apply(group("g2", 5))
    assert heard.state == {each.name: each.metadata.resource_version for each in mirror.values()}
    await subscription.__aexit__(None, None, None)
    mirror.apply(group("g3", 6))
    assert heard.state["g3"] == "1"


async def test_an_object_that_a_watcher_fails_on_keeps_it_from_no_other() -> None:
    """As in a mirror."""
    mirror, told = ListedGroups(), list[str]()
    mirror.replace([group("bad"), group("good")], "1")

    def watcher(change: ObjectChange[Any]) -> None:
        if change.key == "bad":
            raise ValueError
        told.append(change.key)

    async with gradual_subscription(mirror, watcher):
        assert told == ["good"]
