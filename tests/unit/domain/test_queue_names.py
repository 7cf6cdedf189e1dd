"""Who takes turns with whom, by the ledger alone."""

from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.hardware import Hardware, Part
from deviceshare.domain.objects.ledger import Claim, LedgerSpec, LedgerStatus, NodeDevices
from deviceshare.domain.objects.shares import Share
from deviceshare.domain.turns.program_queue import QueueName, queue_of

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
    assert queue_of(LEDGER, "uid-of-team") == QueueName("group/uid-of-team", "team")
    assert queue_of(LEDGER, "uid-before") == QueueName("group/uid-before", "team")


def test_pods_with_shares_take_turns_on_their_device() -> None:
    """Those on another device don't, and neither does who has parts of several."""
    first, second, third = (queue_of(LEDGER, uid) for uid in "abc")
    assert first == second != third
    assert first is not None
    assert first.name == f"{GPU} 0"
    assert queue_of(LEDGER, "d") is None
    assert queue_of(LEDGER, "e") is None, "after a rebind its programs may be on either"
    assert queue_of(LEDGER, "nobody") is None


def test_a_device_is_one_queue_whatever_is_known_of_it() -> None:
    """Its UUID isn't known while its ledger is recreated, nor before its agent has reported; turns go on meanwhile."""
    claims = {
        "named": Claim(pod="ns/named", shares=[Share("c", GPU, 0, "GPU-a", percent=30)]),
        "numbered": sharer("numbered", 0),
        "another": sharer("another", 1),
    }
    hardware = Hardware(devices=[Part(GPU, 0, "GPU-a"), Part(GPU, 1, "GPU-b")])
    reported = NodeDevices(spec=LedgerSpec(claims), status=LedgerStatus(hardware=hardware))
    recreated = NodeDevices(spec=LedgerSpec(claims))

    assert queue_of(reported, "named") == queue_of(reported, "numbered") == queue_of(recreated, "named")
    before, after, another = queue_of(recreated, "numbered"), queue_of(reported, "named"), queue_of(reported, "another")
    assert before and after and another
    assert before.may_be(after) and after.may_be(before)
    assert not another.may_be(before) and not before.may_be(another)
    assert not another.may_be(after)
    assert not QueueName("group/1", "team").may_be(after)
