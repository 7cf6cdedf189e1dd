"""Who takes turns with whom, by the ledger alone."""

from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.ledger import Claim, LedgerSpec, NodeDevices
from deviceshare.domain.objects.shares import Share
from deviceshare.domain.turns.arena_name import ArenaName, arena_of

GPU = "nvidia.com/gpu"


def sharer(name: str, *indices: int, within: str = "") -> Claim:
    return Claim(pod=f"ns/{name}", shares=[Share("c", GPU, index, percent=30) for index in indices], within=within)


LEDGER = NodeDevices(
    spec=LedgerSpec(
        {
            "uid-of-team": Claim("team", [Device(GPU, 2)]),
            "uid-before": Claim("team"),
            "a": sharer("a", 0),
            "b": sharer("b", 0),
            "c": sharer("c", 1),
            "d": sharer("d", 0, 1),
            "e": Claim(pod="ns/e", shares=[Share("c", GPU, 0, percent=9, former=True), *sharer("e", 1).shares]),
        }
    )
)


def test_pods_of_a_group_take_turns_with_each_other() -> None:
    """By the group's UID: a recreated group is another."""
    assert arena_of(LEDGER, "uid-of-team") == ArenaName("group/uid-of-team", "team")
    assert arena_of(LEDGER, "uid-before") == ArenaName("group/uid-before", "team")


def test_pods_with_shares_take_turns_on_their_device() -> None:
    """Those on another device don't, and neither does who has parts of several."""
    first, second, third = (arena_of(LEDGER, uid) for uid in "abc")
    assert first == second != third
    assert first is not None
    assert first.name == f"{GPU} 0"
    assert arena_of(LEDGER, "d") is None
    assert arena_of(LEDGER, "e") is None, "after a rebind its programs may be on either"
    assert arena_of(LEDGER, "nobody") is None
