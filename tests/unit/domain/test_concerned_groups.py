"""Whom a changed ledger concerns: no group of which something else is said is left out."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from deviceshare.domain.answers.group_status import health, selected_devices
from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.hardware import Hardware, Part
from deviceshare.domain.objects.ledger import Claim, LedgerSpec, LedgerStatus, NodeDevices
from deviceshare.domain.objects.object_decoder import ObjectMeta
from deviceshare.domain.objects.shares import Share, stored_once
from deviceshare.domain.placement.device_states import concerned
from tests.unit.domain.objects import GPU, a_group, a_node, gpus

HOME = a_node()
TEAMS, PODS = ("a", "b", "c"), ("p", "q")
GROUPS = [a_group(name, node="n1") for name in TEAMS]

DEVICES = st.builds(
    lambda number, named: Device(GPU, number, f"GPU-{number}" if named else ""), st.integers(0, 4), st.booleans()
)
"""By number or by UUID; the last one isn't there."""
CLAIMED = st.lists(DEVICES, max_size=3, unique_by=lambda device: device.index)


def of_group(name: str, devices: list[Device], former: list[Device], mark: str) -> Claim:
    return Claim(name, sorted(devices), former=sorted(former), releasing=mark)


def of_pod(name: str, parts: list[tuple[str, Device, int, bool]], within: str) -> Claim:
    shares = [Share(each, GPU, on.index, on.uuid, percent=size, former=former) for each, on, size, former in parts]
    return Claim(pod=f"ns/{name}", shares=list(stored_once(shares)), within=within)


PARTS = st.tuples(st.sampled_from("xy"), DEVICES, st.sampled_from([10, 40, 70]), st.booleans())
CLAIMS: dict[str, st.SearchStrategy[Claim]] = {
    **{
        f"uid-of-{name}": st.builds(of_group, st.just(name), CLAIMED, CLAIMED, st.sampled_from(["", "mark"]))
        for name in TEAMS
    },
    **{
        f"uid-of-{name}": st.builds(
            of_pod,
            st.just(name),
            st.lists(PARTS, min_size=1, max_size=2),
            st.sampled_from(["", "uid-of-a", "uid-of-b"]),
        )
        for name in PODS
    },
}
UIDS = sorted(CLAIMS)


@st.composite
def ledgers(draw: Any) -> NodeDevices:
    """With any claims, and an agent that sees all devices, all but one, or none."""
    claims = {uid: draw(CLAIMS[uid]) for uid in UIDS if draw(st.booleans())}
    faults = [draw(st.sampled_from(["", "Xid 79"])) for _ in range(draw(st.sampled_from([0, 3, 4])))]
    parts = [Part(GPU, n, f"GPU-{n}", memory_mib=16384, unhealthy=fault) for n, fault in enumerate(faults)]
    status = LedgerStatus(list(gpus(*range(4))), hardware=Hardware(devices=parts))
    return NodeDevices(metadata=ObjectMeta("n1", uid="uid-of-ledger"), spec=LedgerSpec(claims), status=status)


@st.composite
def changed_ledgers(draw: Any) -> tuple[NodeDevices, NodeDevices]:
    """One claim or two come, go or become others; or the agent reports something else."""
    old = draw(ledgers())
    claims = dict(old.claims)
    for uid in draw(st.lists(st.sampled_from(UIDS), min_size=1, max_size=2)):
        claims.pop(uid, None)
        if draw(st.booleans()):
            claims[uid] = draw(CLAIMS[uid])
    new = old.with_claims(claims)
    return old, draw(st.sampled_from([new, new, new, replace(new, status=draw(ledgers()).status)]))


@given(changed_ledgers())
def test_every_group_of_which_something_else_is_said_is_concerned(change: tuple[NodeDevices, NodeDevices]) -> None:
    """Through its own claim, or through what others claim of its devices."""
    uids = concerned(*change)
    for group in GROUPS:
        before, after = ((health(group, each, HOME, ()), selected_devices(group, each)) for each in change)
        assert before == after or uids is None or group.uid in uids


def test_a_groups_claim_concerns_those_whose_devices_it_names_too() -> None:
    """Not everybody."""
    old = NodeDevices(
        metadata=ObjectMeta("n1"),
        spec=LedgerSpec({"uid-of-a": Claim("a", list(gpus(0))), "uid-of-c": Claim("c", list(gpus(3)))}),
        status=LedgerStatus(list(gpus(*range(4)))),
    )
    new = old.with_claims({**old.claims, "uid-of-b": Claim("b", list(gpus(0, 1)))})
    assert set(concerned(old, new) or ()) - {""} == {"uid-of-a", "uid-of-b"}
