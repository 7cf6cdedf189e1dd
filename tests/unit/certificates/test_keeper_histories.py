"""Trust over random histories: several writers, any of which sleeps or dies anywhere; API servers that lag behind.

Hypothesis draws a schedule, a string of bytes. Each choice lets one replica go to its next request, ends a look or a
replica for ever, lets time pass, or does what people do. After every step each API server, whichever of the last
minute's bundles it still goes by, must believe every replica that shows a certificate. Two replicas think that they
lead, and no clock is right. `TRUST_EXAMPLES=50000` explores further.
"""

import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deviceshare.certificates import keeper
from deviceshare.certificates.keeper import Configuration, Keeper, RenewalPace
from deviceshare.certificates.rotation import Lifetimes
from deviceshare.loops.kinds import SECRETS, WEBHOOK_CONFIGURATIONS
from tests.unit.loops.model import Actor, ModelCluster

T = TypeVar("T")

NAMESPACE, SECRET, CONFIGURATION = "system", "ca", "deviceshare"
SKEW = 60
PACE = RenewalPace(
    lifetimes=Lifetimes(
        authority=timedelta(seconds=3600), certificate=timedelta(seconds=600), skew=timedelta(seconds=SKEW)
    )
)
LAG = PACE.settle - 5
"""Seconds by which an API server may be behind."""
START = datetime(2026, 1, 1, tzinfo=UTC)
EXAMPLES = int(os.environ.get("TRUST_EXAMPLES", "200"))
CLOCKS = (-SKEW / 2, 0.0, SKEW / 2)
WEBHOOK = {"name": "a.deviceshare.io", "clientConfig": {"url": "https://x"}}


class TrustWorld:
    """Three replicas, a Secret, two configurations, and everything that the API servers were told."""

    def __init__(self, schedule: bytes) -> None:
        self.choices = iter(schedule)
        self.cluster = ModelCluster()
        self.time = 0.0
        self.keepers = [self._keeper(number) for number in range(3)]
        self.looks: dict[int, Actor] = {}
        self.told: dict[str, list[tuple[float, frozenset[str]]]] = {kind.plural: [] for kind in WEBHOOK_CONFIGURATIONS}
        """By configuration: since when which bundle stands."""
        self.register()

    def _keeper(self, number: int) -> Keeper:
        return Keeper(
            self.cluster,
            namespace=NAMESPACE,
            secret=SECRET,
            configuration=CONFIGURATION,
            dns_names=["deviceshare.system.svc"],
            serve=lambda certificate, key: None,
            leading=lambda: number > 0,
            pace=PACE,
            clock=lambda: self.time,
            now=lambda: START + timedelta(seconds=self.time + CLOCKS[number]),
        )

    def run(self) -> None:
        """Takes every step of the schedule and looks after each whether all are believed."""
        try:
            while True:
                self.pick(MOVES)(self)
                self.listen()
                self.check()
        except StopIteration:
            pass
        finally:
            for look in self.looks.values():
                look.crash()

    def pick(self, options: Sequence[T]) -> T:
        return options[next(self.choices) % len(options)]

    # What happens.

    def step(self) -> None:
        """A replica goes to its next request."""
        number = self.pick(range(3))
        look = self.looks.get(number)
        if look is None:
            look = self.looks[number] = Actor("look", self.keepers[number].look())
        look.step()
        if look.over:
            del self.looks[number]

    def look(self) -> None:
        """A replica looks without being disturbed, three times."""
        number = self.pick(range(3))
        for _ in range(3):
            look = self.looks.pop(number, None) or Actor("look", self.keepers[number].look())
            look.finish()

    def give_up(self) -> None:
        """A look is cut off, by an error or a time-out; its replica goes on serving."""
        if look := self.looks.pop(self.pick(range(3)), None):
            look.crash()

    def restart(self) -> None:
        """A replica dies, and another takes its place, which knows nothing."""
        number = self.pick(range(3))
        if look := self.looks.pop(number, None):
            look.crash()
        self.keepers[number] = self._keeper(number)

    def wait(self) -> None:
        self.time += self.pick((1, 5, 20, 61, 100, 400, 800))

    def ask(self) -> None:
        """A person wants another authority."""
        if self.cluster.read(SECRETS, SECRET, NAMESPACE):
            asked = {"metadata": {"annotations": {keeper.ROTATE: "now"}}}
            self.cluster.edit(SECRETS, SECRET, asked, NAMESPACE)

    def delete(self) -> None:
        """A person deletes the Secret of a running installation; who does it within a look gets what they ask for."""
        if self.quiet():
            self.cluster.remove(SECRETS, SECRET, NAMESPACE)

    def spoil(self) -> None:
        """A person spoils one of its authorities."""
        if self.quiet() and self.cluster.read(SECRETS, SECRET, NAMESPACE) is not None:
            part = self.pick(("ca.crt", "ca.key", "next.key"))
            self.cluster.edit(SECRETS, SECRET, {"data": {part: "bm9pc2U="}}, NAMESPACE)

    def quiet(self) -> bool:
        return not self.looks and all(history[-1][1] for history in self.told.values())

    def apply_again(self) -> None:
        """A person replaces the configurations by those without a bundle, but not while the Secret is lost, too."""
        secret = self.cluster.read(SECRETS, SECRET, NAMESPACE)
        if secret is None or keeper.decode(secret).current is None:
            return
        self.register()

    def register(self) -> None:
        for kind in WEBHOOK_CONFIGURATIONS:
            self.cluster.put(kind, {"metadata": {"name": CONFIGURATION}, "webhooks": [WEBHOOK]})
        self.listen()

    # What is seen.

    def listen(self) -> None:
        for kind in WEBHOOK_CONFIGURATIONS:
            found = self.cluster.read(kind, CONFIGURATION)
            assert found is not None
            history, bundle = self.told[kind.plural], frozenset(Configuration(kind, found).certificates())
            if not history or history[-1][1] != bundle:
                history.append((self.time, bundle))

    def in_force(self) -> list[frozenset[str]]:
        """What an API server may go by. One that was told nothing asks nobody."""
        found = []
        for history in self.told.values():
            ends = [since for since, _ in history[1:]] + [self.time]
            lasting = zip(history, ends, strict=True)
            found += [bundle for (_, bundle), end in lasting if bundle and end >= self.time - LAG]
        return found

    def check(self) -> None:
        now = START + timedelta(seconds=self.time)
        for each in self.keepers:
            served = each.served
            if served is not None and served.validity.holds(now):
                assert all(served.issuer in bundle for bundle in self.in_force())


MOVES: Sequence[Callable[[TrustWorld], None]] = (
    *[TrustWorld.step] * 12,
    *[TrustWorld.look] * 3,
    *[TrustWorld.wait] * 3,
    TrustWorld.give_up,
    TrustWorld.restart,
    TrustWorld.ask,
    TrustWorld.delete,
    TrustWorld.spoil,
    TrustWorld.apply_again,
)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(min_size=200, max_size=240))
def test_whatever_happens_every_api_server_believes_every_replica(schedule: bytes) -> None:
    """While it shows a certificate that is valid at all."""
    TrustWorld(schedule).run()
