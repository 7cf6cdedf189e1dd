"""What one look at a ledger or a pod refuses, and what it doesn't, wherever a bind has got to.

Each was a condition that could be taken out of the code before, and no test noticed (`tests/mutants --generate`).
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from deviceshare.domain import contract
from deviceshare.domain.objects.ledger import Claim, NodeDevices
from deviceshare.domain.objects.object_decoder import decoder_of
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.loops.ports import Conflict, Undecodable
from deviceshare.loops.protocol.bind import (
    Moved,
    Refused,
    WantedClaim,
    after_conflict,
    claim_all,
    joinable,
    lift,
    read_ledger,
)
from tests.unit.domain.objects import GPU, a_group, a_ledger, gpus

TEAM = a_group()


def unreadable(ledger: NodeDevices, path: str) -> NodeDevices:
    return replace(ledger, metadata=replace(ledger.metadata, unreadable={path: "Expected `object`, got `int`"}))


def answering(found: NodeDevices) -> Any:
    """A cluster that has this ledger, and can't decode it where something in it can't be read."""

    async def get(*_: Any) -> NodeDevices:
        if found.metadata.unreadable:
            raise Undecodable("it can't be read")
        return found

    async def listed(*_: Any, **__: Any) -> list[NodeDevices]:
        return [found]

    async def patch(_kind: Any, _name: str, body: dict[str, Any], **_: Any) -> NodeDevices:
        claims = msgspec.convert(body["spec"]["claims"], dict[str, Claim])
        found.claims.update(claims)
        return found

    return SimpleNamespace(get=get, list=listed, patch=patch)


def test_a_claim_that_does_not_say_whose_bind_wrote_it_is_enough_where_the_holder_says_neither() -> None:
    ledger = a_ledger(team=gpus(0, 1))
    assert joinable(ledger, TEAM.holder, "") == gpus(0, 1)
    assert joinable(ledger, TEAM.holder, "token") == gpus(0, 1)


def test_a_holder_that_lost_the_token_of_its_claim_is_repaired_and_one_with_another_was_bound_again() -> None:
    ledger = a_ledger(team=gpus(0, 1))
    ledger.claims[TEAM.uid] = replace(ledger.claims[TEAM.uid], token="token")
    with pytest.raises(Conflict, match="is being repaired"):
        joinable(ledger, TEAM.holder, "")
    with pytest.raises(Conflict, match="was bound again meanwhile"):
        joinable(ledger, TEAM.holder, "other")


def test_nobody_joins_by_a_claim_that_only_says_what_its_holder_had() -> None:
    ledger = a_ledger(team=())
    ledger.claims[TEAM.uid] = Claim("team", former=list(gpus(0)))
    with pytest.raises(Refused, match="which it is leaving"):
        joinable(ledger, TEAM.holder, "")


@pytest.mark.parametrize(
    ("now", "refused", "text"),
    [
        ({"metadata": {"uid": "another"}}, Refused, "was recreated"),
        ({"metadata": {"uid": "u"}, "spec": {"nodeName": "n2"}}, Refused, "already bound to node n2"),
        ({"metadata": {"uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"}}, Refused, "is being deleted"),
        ({"metadata": {"uid": "u"}}, Moved, "written"),
    ],
)
async def test_a_refused_binding_is_retried_only_for_a_pod_that_still_waits(
    now: dict[str, Any], refused: type[Exception], text: str
) -> None:
    pod = msgspec.convert({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}}, Pod)
    with pytest.raises(refused, match=text):
        await after_conflict(answering(msgspec.convert(now, Pod)), pod, "n1")  # type: ignore[arg-type]


async def test_a_gate_is_not_lifted_from_a_pod_whose_affinity_cannot_be_read() -> None:
    """It would be written anew, without what it said."""
    spec = {"schedulingGates": [{"name": contract.PLACEMENT_GATE}], "affinity": {"nodeAffinity": 1}}
    raw = {"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": spec}
    pod = decoder_of(Pod).salvage(msgspec.json.encode(raw))
    assert pod.awaits_placement
    with pytest.raises(Refused, match="affinity of pod ns/p can't be read"):
        await lift(answering(a_ledger()), pod, TEAM.holder, "n1", {}, timeout=1)


async def test_a_ledger_of_which_a_claim_cannot_be_read_is_listed_and_one_that_hides_more_is_an_error() -> None:
    found = unreadable(a_ledger(team=gpus(0)), "spec.claims[uid-of-other].devices")
    assert await read_ledger(answering(found), "n1") is found
    with pytest.raises(Undecodable):
        await read_ledger(answering(unreadable(a_ledger(team=gpus(0)), "status.published")), "n1")


def chosen(claim: Claim) -> Callable[..., Claim | Reason]:
    return lambda _seen, _beside: claim


async def test_a_claim_that_can_be_read_is_used_beside_one_that_cannot_and_no_other_is_written() -> None:
    """Whose claim it is keeps its devices; any device may be the hidden claim's."""
    found = unreadable(a_ledger(team=gpus(0)), "spec.claims[uid-of-other].devices")
    mine = found.claims[TEAM.uid]
    wanted = [WantedClaim(TEAM.uid, chosen(mine)), WantedClaim("uid-of-new", chosen(Claim("new", list(gpus(1)))))]
    claimed = await claim_all(answering(found), wanted, "n1")
    assert list(claimed.refused) == ["uid-of-new"]
    assert claimed.refused["uid-of-new"].kind is ReasonKind.UNREADABLE
    assert list(claimed.ledger.claims) == [TEAM.uid]


async def test_a_claim_that_is_there_is_not_written_again() -> None:
    """As it is, not as its holder would choose it now."""
    found = a_ledger("n1", {GPU: 2}, team=gpus(0))
    claimed = await claim_all(answering(found), [WantedClaim(TEAM.uid, chosen(Claim("team", list(gpus(1)))))], "n1")
    assert claimed.ledger.claims[TEAM.uid].devices == list(gpus(0))
