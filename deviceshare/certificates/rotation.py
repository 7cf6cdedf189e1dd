"""Rotation of the certificate authority that the API servers trust, without a gap.

A certificate authority (CA) signs what each replica serves; the API servers trust the CAs in a webhook
configuration's `caBundle`. Replicas and API servers learn of a change at different times, so a CA is trusted before it
signs, and for as long as anything that it signed may be in use:

    next       trusted, signs nothing yet
    current    trusted, signs
    previous   trusted, signs no longer

Decision 5 says which reads and writes make it safe with any number of writers.
"""

from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace


class Lifetimes(Struct, frozen=True):
    """How long authorities and certificates are valid."""

    authority: timedelta = timedelta(days=365)
    certificate: timedelta = timedelta(hours=24)
    skew: timedelta = timedelta(hours=1)
    """How far two machines' clocks may differ: certificates begin that much earlier, and CAs are kept that longer."""


class Validity(Struct, frozen=True):
    """From when to when, in UTC."""

    not_before: datetime
    not_after: datetime

    def holds(self, now: datetime) -> bool:
        return self.not_before <= now < self.not_after

    def aging(self, now: datetime) -> bool:
        """Whether two thirds have passed; a third is left to renew in."""
        return now >= self.not_before + (self.not_after - self.not_before) * 2 / 3


class KeyPair(NamedTuple):
    """A certificate and its private key, in PEM: a CA's own, or one that a replica presents in TLS handshakes."""

    certificate: str
    key: str
    validity: Validity
    issuer: str = ""
    """The PEM certificate of the CA that signed it; "" for a CA's own."""

    def __repr__(self) -> str:
        """Without the key: a traceback or a log may show it, also within a Trust."""
        validity = self.validity
        return f"KeyPair(valid from {validity.not_before:%Y-%m-%d %H:%M} to {validity.not_after:%Y-%m-%d %H:%M})"


class Trust(Struct, frozen=True):
    """The CAs in all roles, as the Secret holds them."""

    current: KeyPair | None = None
    next: KeyPair | None = None
    previous: tuple[str, ...] = ()
    """PEM certificates; their keys have been deleted."""
    previous_until: datetime | None = None
    """When all that `previous` signed has expired; set by a replica that has read that it signs no longer."""
    requested: bool = False
    """Whether a person has requested a new CA."""

    @property
    def bundle(self) -> tuple[str, ...]:
        """The PEM certificates to trust. Their order is the same before and after a CA changes its role."""
        kept = [authority.certificate for authority in (self.current, self.next) if authority]
        return tuple(sorted({*kept, *self.previous}))


def advance(
    trust: Trust,
    *,
    trusted: Collection[str],
    settled: bool,
    now: datetime,
    new: Callable[[], KeyPair],
    lifetimes: Lifetimes,
) -> Trust:
    """The state that should be written next; the same one when nothing is due.

    `trusted` are the certificates in the configurations now. `settled` says that they have held the whole bundle for
    long enough to have reached every API server. `new` makes a CA.
    """
    if trust.current is None:
        # Lost, while replicas serve what it signed: whatever the configurations trust is treated as previous.
        lost = set(trusted) - set(trust.bundle)
        if trust.next is None and not (lost or trust.previous):
            return Trust(current=new())
        if trust.next is None or lost:
            previous = tuple(sorted({*trust.previous, *lost}))
            return Trust(next=trust.next or new(), previous=previous)
    if trust.next is not None:
        if not settled:
            return trust
        retired = {trust.current.certificate} if trust.current else set()
        previous = tuple(sorted({*trust.previous, *retired}))
        return replace(trust, current=trust.next, next=None, previous=previous, previous_until=None)
    if trust.previous and trust.previous_until is None:
        # Skew twice: the last signer's clock may be ahead of the API servers', and the next reader's ahead of ours.
        return replace(trust, previous_until=now + lifetimes.certificate + 2 * lifetimes.skew)
    if trust.previous_until and now >= trust.previous_until:
        return replace(trust, previous=(), previous_until=None)
    # One rotation at a time: clocks that differ could otherwise fill the bundle. A person's request is always met.
    if trust.requested or (trust.current and trust.current.validity.aging(now) and not trust.previous):
        return replace(trust, next=new(), requested=False)
    return trust


def signer(trust: Trust, served: KeyPair | None, now: datetime) -> KeyPair | None:
    """The CA that a replica should have sign a new certificate now, or None when it keeps what it serves.

    A CA that is not valid by this replica's clock is not used: an API server whose clock agrees would refuse what it
    signs, while what is served may still be valid.
    """
    authority = trust.current
    if authority is None or not authority.validity.holds(now):
        return None
    if served is None or served.issuer != authority.certificate:
        return authority
    return None if served.validity.holds(now) and not served.validity.aging(now) else authority
