"""The ordering rules of a mirror's content."""

import pytest

from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.object_decoder import ObjectMeta
from deviceshare.kube.mirror import Cache
from deviceshare.loops.ports import ObjectChange

Change = tuple[str | None, str | None]


def node(version: int | str, name: str = "a", uid: str = "u", **labels: str) -> Node:
    return Node(metadata=ObjectMeta(name=name, uid=uid, resource_version=str(version), labels=labels))


def watched(cache: Cache[Node]) -> list[Change]:
    """The versions of each change, as a subscriber sees them."""
    changes: list[Change] = []

    def watcher(change: ObjectChange[Node]) -> None:
        _, old, new = change
        changes.append((old.metadata.resource_version if old else None, new.metadata.resource_version if new else None))

    cache.subscribe(watcher)
    return changes


def held(cache: Cache[Node]) -> dict[str, str]:
    return {n.metadata.name: n.metadata.resource_version for n in cache.values()}


def test_a_list_replaces_what_was_there() -> None:
    """What vanished while nobody watched is told as a removal, what did not change is not told."""
    cache: Cache[Node] = Cache()
    cache.replace([node(1, "a"), node(2, "b"), node(3, "c")], "5")
    changes = watched(cache)
    changes.clear()
    cache.replace([node(2, "b"), node(8, "c"), node(9, "d")], "10")
    assert sorted(changes, key=str) == [("1", None), ("3", "8"), (None, "9")]
    assert held(cache) == {"b": "2", "c": "8", "d": "9"}


def test_a_subscriber_is_told_what_is_there_already() -> None:
    """Who comes late needs no separate look."""
    cache: Cache[Node] = Cache()
    cache.replace([node(1)], "5")
    assert watched(cache) == [(None, "1")]


def test_our_own_write_is_not_taken_back_by_an_older_event() -> None:
    """The watch is behind: it tells the state before our write after we know the one after it."""
    cache: Cache[Node] = Cache()
    cache.replace([node(1)], "5")
    changes = watched(cache)
    cache.put(node(8))
    cache.apply(node(7))
    assert held(cache) == {"a": "8"}
    cache.apply(node(8))
    cache.apply(node(9))
    assert held(cache) == {"a": "9"}
    assert changes == [(None, "1"), ("1", "8"), ("8", "9")]


def test_our_own_write_is_not_taken_back_by_an_older_deletion() -> None:
    """The name was free and taken again by us before the watch told of the deletion."""
    cache: Cache[Node] = Cache()
    cache.replace([node(1)], "5")
    cache.put(node(8, uid="u2"))
    cache.remove("a", "7")
    assert held(cache) == {"a": "8"}
    cache.remove("a", "9")
    assert held(cache) == {}


def test_our_own_write_does_not_bring_back_what_was_deleted_after_it() -> None:
    """The answer to the write was slower than the watch, which has told of the deletion already."""
    cache: Cache[Node] = Cache()
    cache.replace([node(1)], "5")
    cache.remove("a", "9")
    cache.put(node(8))
    assert held(cache) == {}


def test_our_own_write_survives_an_older_list() -> None:
    """The list began before the write; a newer list without the object means that it is gone."""
    cache: Cache[Node] = Cache()
    cache.replace([], "5")
    cache.put(node(8))
    cache.replace([], "7")
    assert held(cache) == {"a": "8"}
    cache.replace([], "9")
    assert held(cache) == {}


def test_a_restored_backup_wins_over_our_own_write() -> None:
    """Versions that went back are another history; what we wrote in the old one did not happen."""
    cache: Cache[Node] = Cache()
    cache.replace([node(1)], "50")
    cache.put(node(60))
    cache.replace([node(2)], "40")
    assert held(cache) == {"a": "2"}
    cache.apply(node(41))
    assert held(cache) == {"a": "41"}


@pytest.mark.parametrize(("told", "written"), [("", "8"), ("abc", "8"), ("5", "x8")])
def test_versions_that_cannot_be_compared_leave_it_to_the_watch(told: str, written: str) -> None:
    """Before the first list, and on servers whose versions are not decimal."""
    cache: Cache[Node] = Cache()
    if told:
        cache.replace([node(1)], told)
    cache.put(node(written))
    assert held(cache) == ({"a": "1"} if told else {})


def test_another_object_under_the_same_name_is_a_removal_and_an_addition() -> None:
    """Identity is the UID: a recreated group is another group."""
    cache: Cache[Node] = Cache()
    cache.replace([node(1, uid="u1")], "5")
    changes = watched(cache)
    cache.apply(node(8, uid="u2"))
    assert changes == [(None, "1"), ("1", None), (None, "8")]


def test_what_is_not_worth_keeping_looks_removed() -> None:
    """It may become worth keeping, and stop being so, by a label."""
    cache: Cache[Node] = Cache(keep=lambda n: "shared" in n.metadata.labels)
    changes = watched(cache)
    cache.replace([node(1)], "5")
    cache.apply(node(6, shared=""))
    cache.put(node(8))
    cache.apply(node(7, shared=""))
    assert changes == [(None, "6"), ("6", None)]
    assert len(cache) == 0


def test_a_failing_subscriber_does_not_keep_the_others_from_seeing_a_change() -> None:
    """Nor the mirror from going on."""
    cache: Cache[Node] = Cache()

    def fail(change: ObjectChange[Node]) -> None:
        raise ValueError

    cache.subscribe(fail)
    changes = watched(cache)
    cache.replace([node(1)], "5")
    assert changes == [(None, "1")]


def test_iterating_is_not_disturbed_by_changes() -> None:
    """A loop may await, and the watch goes on meanwhile."""
    cache: Cache[Node] = Cache()
    cache.replace([node(1, "a"), node(2, "b")], "5")
    for n in cache.values():
        cache.remove(n.metadata.name, "6")
    assert len(cache) == 0
