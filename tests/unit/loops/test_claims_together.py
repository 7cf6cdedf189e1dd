"""Claims that are chosen for one write are those that would be chosen one after another, by the ledger as written."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.hardware import Hardware, Part
from deviceshare.domain.objects.ledger import Claim, LedgerSpec, LedgerStatus, NodeDevices
from deviceshare.domain.objects.object_decoder import ObjectMeta
from deviceshare.domain.objects.reasons import Reason
from deviceshare.domain.objects.shares import GROUP, Holder, Request, Share
from deviceshare.domain.placement.device_states import device_states
from deviceshare.loops.protocol.bind import WantedClaim, _choose, wanted_devices, wanted_share
from tests.unit.domain.objects import GPU, a_share_pod

COUNT = 4
GROUPS = ("a", "b")
UUIDS = [f"GPU-{number}" for number in range(COUNT)]
OLD = Holder("uid-of-old", GROUP, "old")


def by(names: str, index: int) -> Device:
    return Device(GPU, index, UUIDS[index] if names == "uuid" else "")


def a_node_with(names: str, *, reported: bool, group: bool, percents: Iterable[int]) -> NodeDevices:
    """Four devices; of number 0 pods have parts, and number 1 is a group's where there is one."""
    names = names if reported else "index"
    parts = [Part(GPU, index, uuid, memory_mib=16384) for index, uuid in enumerate(UUIDS)]
    uuid = UUIDS[0] if names == "uuid" else ""
    claims = {
        f"uid-of-s{number}": Claim(pod=f"ns/s{number}", shares=[Share("main", GPU, 0, uuid, percent=percent)])
        for number, percent in enumerate(percents)
    }
    if group:
        claims[OLD.uid] = Claim(OLD.name, [by(names, 1)])
    status = LedgerStatus(
        devices=[Device(GPU, index, UUIDS[index] if reported else "") for index in range(COUNT)],
        handover={"nvidia": names} if reported else {},
        memory_mib={GPU: 16384},
        hardware=Hardware(devices=parts) if reported else Hardware(),
    )
    return NodeDevices(ObjectMeta(name="n1", resource_version="7"), LedgerSpec(claims), status)


def wish(number: int, kind: str, amount: int) -> WantedClaim:
    """Of a group for devices, or of a pod for a percentage: of nobody's device, or of the group's that is there."""
    if kind == "devices":
        holder = Holder(f"uid-of-new{number}", GROUP, f"new{number}")
        return wanted_devices(Request(holder, {GPU: 1 + amount % 2}, "binpack", {}, ""), token=f"t{number}")
    pod = a_share_pod(f"p{number}", percent=10 + amount * 10)
    strategy = "spread" if amount % 2 else "binpack"
    if kind == "within":
        return wanted_share(Request(OLD, {GPU: 1}, strategy, {}, "n1", pod.share, pod.sharer))
    return wanted_share(Request(pod.sharer, {}, strategy, {}, "", pod.share))


LEDGERS = st.builds(
    a_node_with,
    st.sampled_from(["uuid", "index"]),
    reported=st.booleans(),
    group=st.booleans(),
    percents=st.lists(st.sampled_from([10, 30]), max_size=2),
)
WISHES = st.lists(
    st.tuples(st.sampled_from(["devices", "share", "share", "within"]), st.integers(0, 8)), min_size=6, max_size=6
)
ORDER = st.lists(st.integers(0, 5), max_size=8)
"""Some wish twice: a pod may be bound twice at once."""


@given(WISHES, ORDER, LEDGERS)
def test_together_as_one_after_another(wanted: list[tuple[str, int]], order: list[int], seen: NodeDevices) -> None:
    """With every choice beside those before it, some twice, and nothing claimed twice."""
    wishes = [wish(number, *wanted[number]) for number in order]
    chosen, refused = _choose(seen, wishes)
    after = seen
    for uid, choose in wishes:
        found = choose(after, ())
        if isinstance(found, Reason):
            assert refused[uid].kind is found.kind
        else:
            assert chosen[uid] == found
            after = replace(after, spec=LedgerSpec({**after.claims, uid: found}))
    assert {*chosen, *refused} == {each.uid for each in wishes}
    assert not any(state.claimed_twice for state in device_states(after))
