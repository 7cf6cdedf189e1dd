"""The life of a certificate authority: believed before it signs, believed as long as what it signed."""

import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceshare.certificates.rotation import KeyPair, Lifetimes, Trust, Validity, advance, signer

DAY = timedelta(days=1)
LIFETIMES = Lifetimes(authority=30 * DAY, certificate=DAY, skew=timedelta(hours=1))
START = datetime(2026, 1, 1, tzinfo=UTC)


class Office:
    """Makes authorities that are told apart by a number."""

    def __init__(self) -> None:
        self.now = START
        self._numbers = itertools.count(1)

    def new(self) -> KeyPair:
        name = f"ca-{next(self._numbers):02}"
        validity = Validity(self.now - LIFETIMES.skew, self.now + LIFETIMES.authority)
        return KeyPair(name, f"{name}-key", validity)

    def advance(self, trust: Trust, *believed: str, settled: bool = False) -> Trust:
        return advance(trust, trusted=believed, settled=settled, now=self.now, new=self.new, lifetimes=LIFETIMES)


@pytest.fixture
def office() -> Office:
    return Office()


def test_the_first_authority_signs_at_once(office: Office) -> None:
    """Nobody believes another one yet, so nobody has to be waited for."""
    trust = office.advance(Trust())

    assert trust.current is not None
    assert trust.bundle == ("ca-01",)
    assert office.advance(trust, "ca-01", settled=True) == trust


def test_an_authority_is_replaced_in_three_steps(office: Office) -> None:
    """When two thirds of its life are over."""
    first = office.advance(Trust())
    office.now += 20 * DAY
    introduced = office.advance(first, "ca-01", settled=True)
    assert introduced.current == first.current
    assert introduced.bundle == ("ca-01", "ca-02")
    assert office.advance(introduced, "ca-01") == introduced, "the new one is not believed everywhere yet"

    promoted = office.advance(introduced, "ca-01", "ca-02", settled=True)
    assert promoted.current == introduced.next
    assert (promoted.next, promoted.previous) == (None, ("ca-01",))
    assert promoted.bundle == introduced.bundle, "the configurations need no write"
    dated = office.advance(promoted, *promoted.bundle, settled=True)
    assert dated.previous_until == office.now + LIFETIMES.certificate + 2 * LIFETIMES.skew
    assert office.advance(dated, *dated.bundle, settled=True) == dated

    office.now = dated.previous_until
    retired = office.advance(dated, *dated.bundle, settled=True)
    assert retired == Trust(current=promoted.current)


def test_a_person_may_ask_for_another_authority(office: Office) -> None:
    """Once."""
    first = office.advance(Trust())

    introduced = office.advance(Trust(current=first.current, requested=True), "ca-01", settled=True)

    assert introduced.next is not None
    assert not introduced.requested


def test_a_lost_secret_keeps_what_is_believed(office: Office) -> None:
    """Replicas go on serving what the lost authority signed."""
    office.now += DAY

    rebuilt = office.advance(Trust(), "lost")

    assert rebuilt.current is None, "nobody may sign by an authority that API servers have yet to hear of"
    assert rebuilt.bundle == ("ca-01", "lost")
    assert office.advance(rebuilt, *rebuilt.bundle) == rebuilt
    promoted = office.advance(rebuilt, *rebuilt.bundle, settled=True)
    assert promoted.current == rebuilt.next
    assert promoted.bundle == rebuilt.bundle


def test_an_authority_lost_in_the_middle_of_a_rotation_stays_believed(office: Office) -> None:
    """Its part of the Secret can't be read any more; the next one can."""
    introduced = Trust(next=office.new())

    kept = office.advance(introduced, "ca-01", "lost")

    assert kept.next == introduced.next
    assert kept.previous == ("lost",)


def test_a_previous_authority_without_an_end_is_given_one(office: Office) -> None:
    """A person may have taken the annotation away."""
    trust = Trust(current=office.new(), previous=("old",))

    assert office.advance(trust, *trust.bundle).previous_until == START + LIFETIMES.certificate + 2 * LIFETIMES.skew


# What a replica serves.


def served(authority: KeyPair, now: datetime) -> KeyPair:
    return KeyPair("", "", Validity(now - LIFETIMES.skew, now + LIFETIMES.certificate), authority.certificate)


def test_a_certificate_is_renewed_after_two_thirds_of_its_life(office: Office) -> None:
    """And when the clock was turned back before it began."""
    trust = office.advance(Trust())
    assert trust.current is not None
    leaf = served(trust.current, START)

    assert signer(trust, None, START) == trust.current
    assert signer(trust, leaf, START + timedelta(hours=15)) is None
    assert signer(trust, leaf, START + timedelta(hours=16)) == trust.current
    assert signer(trust, leaf, START + 20 * DAY) == trust.current
    assert signer(trust, served(trust.current, START + DAY), START) == trust.current


@pytest.mark.parametrize("off", [-2 * DAY, 31 * DAY], ids=["before", "after"])
def test_an_authority_that_is_not_valid_by_the_clock_is_not_turned_to(office: Office, off: timedelta) -> None:
    """Whichever clock is wrong: what is served may still convince."""
    trust = office.advance(Trust())
    old = KeyPair("", "", Validity(START - DAY, START + 60 * DAY), "old")

    assert signer(trust, old, START + off) is None


def test_without_a_current_authority_a_replica_keeps_what_it_has(office: Office) -> None:
    """The next one is not believed yet."""
    assert signer(Trust(next=office.new()), None, START) is None


# Any history.


def signs(trust: Trust) -> set[str]:
    return {trust.current.certificate} if trust.current else set()


Move = Callable[[Office, Trust], Trust]
MOVES: dict[str, Move] = {
    "look": lambda office, trust: office.advance(trust, *trust.bundle),
    "settle": lambda office, trust: office.advance(trust, *trust.bundle, settled=True),
    "ask": lambda office, trust: Trust(trust.current, trust.next, trust.previous, trust.previous_until, requested=True),
}


@given(st.lists(st.tuples(st.sampled_from(sorted(MOVES)), st.integers(0, 40 * 24)), max_size=40))
def test_neighbouring_versions_believe_what_the_other_signs(history: list[tuple[str, int]]) -> None:
    """A replica that is one version behind is believed by who is ahead, and the other way round."""
    office = Office()
    trust = office.advance(Trust())
    signed: dict[str, datetime] = {}
    for move, hours in history:
        before = trust
        signed |= dict.fromkeys(signs(before), office.now + LIFETIMES.certificate)
        trust = MOVES[move](office, before)

        alive = {name for name, until in signed.items() if until > office.now}
        assert signs(before) <= set(trust.bundle)
        assert signs(trust) <= set(before.bundle)
        assert alive <= set(trust.bundle)
        office.now += timedelta(hours=hours)


@given(st.lists(st.integers(0, 20 * 24), max_size=60))
def test_the_bundle_stays_small(hours: list[int]) -> None:
    """However long it goes on: two at most, of which one signs."""
    office = Office()
    trust = office.advance(Trust())
    for each in hours:
        trust = office.advance(trust, *trust.bundle, settled=True)
        assert len(trust.bundle) <= 2
        assert trust.current is not None
        office.now += timedelta(hours=each)


def test_no_text_shows_a_private_key(office: Office) -> None:
    """Of a pair, or of what has one."""
    pair = office.new()
    assert pair.key not in f"{pair} {pair!r} {Trust(current=pair)!r} {[pair]}"
    assert repr(pair) == "KeyPair(valid from 2025-12-31 23:00 to 2026-01-31 00:00)"
