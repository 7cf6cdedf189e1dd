"""How the API servers come to trust the webhooks, and how that trust changes hands without a gap.

A certificate authority (CA) signs what each replica serves; the API servers believe the CAs in a webhook
configuration's `caBundle`. Two sides that learn of a change at different times must agree at every moment, so a CA is
believed before it signs and is believed for as long as anything it signed may be in use:

    next       believed, signs nothing yet
    current    believed, signs
    previous   believed, signs no longer

Everything here is a pure function of the state and the time. keeper.py says which reads and writes make
it safe with any number of writers; docs/decisions/0005-certificates.md says why it is done at all.
"""

from collections.abc import Callable, Collection
from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace


class Lifetimes(Struct, frozen=True):
    """How long things are good for."""

    authority: timedelta = timedelta(days=365)
    certificate: timedelta = timedelta(hours=24)
    skew: timedelta = timedelta(hours=1)
    """How far two machines' clocks may be apart: everything is signed as if that much earlier, and kept that longer."""


class Validity(Struct, frozen=True):
    """From when to when, in UTC."""

    not_before: datetime
    not_after: datetime

    def holds(self, now: datetime) -> bool:
        return self.not_before <= now < self.not_after

    def aging(self, now: datetime) -> bool:
        """Whether two thirds are over, so that there is a third left to renew in."""
        return now >= self.not_before + (self.not_after - self.not_before) * 2 / 3


class Authority(Struct, frozen=True):
    """A CA, in PEM."""

    certificate: str
    key: str
    validity: Validity


class Trust(Struct, frozen=True):
    """The whole state, as one Secret holds it."""

    current: Authority | None = None
    next: Authority | None = None
    previous: tuple[str, ...] = ()
    """PEM certificates; their keys are forgotten."""
    previous_until: datetime | None = None
    """When nothing that `previous` signed can be valid any more; counted by who has seen that it signs no longer."""
    asked: bool = False
    """Whether somebody wants another CA now."""

    @property
    def bundle(self) -> tuple[str, ...]:
        """The PEM certificates to believe. Their order is the same before and after a CA changes its role."""
        kept = [authority.certificate for authority in (self.current, self.next) if authority]
        return tuple(sorted({*kept, *self.previous}))


def advance(
    trust: Trust,
    *,
    believed: Collection[str],
    settled: bool,
    now: datetime,
    new: Callable[[], Authority],
    lifetimes: Lifetimes,
) -> Trust:
    """The state that should be written next; the same one when nothing is due.

    `believed` are the certificates in the configurations now. `settled` says that they have held the whole bundle for
    long enough to have reached every API server. `new` makes a CA.
    """
    if trust.current is None:
        # Lost, while replicas serve what it signed. To the world it is as if whatever is believed were previous.
        lost = set(believed) - set(trust.bundle)
        if trust.next is None and not (lost or trust.previous):
            return Trust(current=new())
        if trust.next is None or lost:
            previous = tuple(sorted({*trust.previous, *lost}))
            return Trust(next=trust.next or new(), previous=previous)
    if trust.next is not None:
        if not settled:
            return trust
        retired = {trust.current.certificate} if trust.current else set()
        return replace(
            trust,
            current=trust.next,
            next=None,
            previous=tuple(sorted({*trust.previous, *retired})),
            previous_until=None,
        )
    if trust.previous and trust.previous_until is None:
        # Twice: the clock of who signed last may be ahead of the API servers', and the next reader's of this one.
        return replace(trust, previous_until=now + lifetimes.certificate + 2 * lifetimes.skew)
    if trust.previous_until and now >= trust.previous_until:
        return replace(trust, previous=(), previous_until=None)
    # One at a time: clocks that disagree could otherwise fill the bundle. A person who asks knows better.
    if trust.asked or (trust.current and trust.current.validity.aging(now) and not trust.previous):
        return replace(trust, next=new(), asked=False)
    return trust


class Served(Struct, frozen=True):
    """What a replica shows in its handshakes."""

    issuer: str
    """The PEM certificate of the CA that signed it."""
    validity: Validity


def signer(trust: Trust, served: Served | None, now: datetime) -> Authority | None:
    """The CA that a replica should have sign a new certificate now, or None when it may go on with what it serves.

    A CA that is not valid by this replica's clock is not turned to: its signature could convince nobody who agrees with
    the clock, and what is served may still do.
    """
    authority = trust.current
    if authority is None or not authority.validity.holds(now):
        return None
    if served is not None and served.issuer == authority.certificate:
        fresh = served.validity.holds(now) and not served.validity.aging(now)
        return None if fresh else authority
    return authority
