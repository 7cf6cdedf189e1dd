"""The claim protocol over random histories: any interleaving, any crash, stale reads, two collectors, a careless hand.

What runs is what production runs: the Binder itself, the collector, the repairs. `PROTOCOL_EXAMPLES=50000` explores
further; docs/decisions/0003-claim-protocol-tests.md tells which rule of claims.md each sabotage breaks, and that the
test notices.
"""

from tests.unit.loops.histories import CARELESS, USUAL, HistoryWorld, many, schedules


class CarelessWorld(HistoryWorld):
    """Where a status was wiped, only the pods and the claims tell where its group lives: mirrors must know those."""

    everywhere_at_once = True


@many
@schedules
def test_a_device_keeps_one_owner_in_any_order_of_events(schedule: bytes) -> None:
    """Binds, collections, crashes, pauses, deletions and stale mirrors."""
    HistoryWorld(schedule, USUAL).run()


@many
@schedules
def test_a_device_keeps_one_owner_while_people_wipe_and_delete_what_they_should_not(schedule: bytes) -> None:
    """The same, with statuses wiped and ledgers deleted, and the repairs of both, by two leaders at once."""
    CarelessWorld(schedule, [*USUAL, *CARELESS]).run()


@many
@schedules
def test_a_device_keeps_one_owner_while_pods_refuse_our_writes(schedule: bytes) -> None:
    """Their annotations are full, or a webhook is against any write: collectors go on without them."""
    HistoryWorld(schedule, [*USUAL, *[HistoryWorld.pod_refuses_writes] * 3]).run()
