"""The reconciler of the CAs in their Secret, the bundles in the configurations, and this replica's certificate.

Every replica that serves webhooks reads them every few seconds and writes what is missing. The leader acts at once, the
others only on what has been missing for a while: the work is done once, and is done even where the leader can't do it
(in a rolling update from a release without a Keeper, new replicas would otherwise wait for each other).

Safety needs no leader. Each round reads the configurations first and the Secret after them, and each write carries the
version that was read. So whoever writes a bundle has read a Secret at least as new as any that went into the bundle
that it replaces: a delayed writer can't remove a newer CA from a bundle.
"""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import structlog
from msgspec import Struct

from deviceshare.certificates import ca_bundles, ca_secret, issuance
from deviceshare.certificates.ca_bundles import Configuration
from deviceshare.certificates.rotation import Authority, Lifetimes, Served, Trust, advance, signer
from deviceshare.loops.api_objects import find
from deviceshare.loops.kinds import SECRETS, Secret
from deviceshare.loops.ports import Cluster
from deviceshare.loops.queue import Later, Queue

log = structlog.get_logger(__name__)

NAME = "deviceshare-webhook"


class RenewalPace(Struct, frozen=True):
    """Seconds, by a monotonic clock; and lifetimes, by the wall clock."""

    look: float = 5.0
    """Between two rounds of three small reads."""
    first: float = 0.5
    """The same while this replica has no certificate yet."""
    settle: float = 60.0
    """A bundle unchanged for this long has reached every API server: they watch, and resume a lost watch."""
    standby: float = 30.0
    """What has been due for this long is done by a replica that doesn't lead."""
    lifetimes: Lifetimes = Lifetimes()


class ServerNames(Struct, frozen=True):
    """The names of the Secret and the configurations, and those by which clients reach this server."""

    namespace: str
    secret: str
    configuration: str
    """Of the mutating and the validating webhook configuration."""
    dns_names: Sequence[str]
    addresses: Sequence[str] = ()


class Keeper:
    """Reconciles while `run` runs, and passes each new certificate and key, in PEM, to `serve`."""

    def __init__(
        self,
        cluster: Cluster,
        names: ServerNames,
        *,
        serve: Callable[[str, str], None],
        leading: Callable[[], bool],
        pace: RenewalPace = RenewalPace(),  # noqa: B008 it is frozen
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.served: Served | None = None
        """The certificate that this replica presents in TLS handshakes."""
        self._cluster = cluster
        self._names = names
        self._serve = serve
        self._leading = leading
        self._pace = pace
        self._clock = clock
        self._now = now
        self._trust = Trust()
        self._seen: object = None
        self._seen_since = 0.0
        self._why = "the certificate authority has not been read yet"
        self._queue: Queue[str] = Queue("trust", self._reconcile, clock=clock)
        self._queue.add(names.secret)
        self.run = self._queue.run

    def fault(self) -> str:
        """Why no API server could trust this replica now, or ""."""
        if self.served is None:
            return self._why
        if self.served.validity.holds(self._now()):
            return ""
        return f"the certificate has expired; {self._why or 'the API server has not answered since then'}"

    def expiries(self) -> dict[str, float]:
        """When this replica's certificate and its CA expire, in seconds since 1970."""
        found = {"serving": self.served, "authority": self._trust.current}
        return {name: each.validity.not_after.timestamp() for name, each in found.items() if each}

    async def look(self) -> float:
        """One round, with at most one write to each object; returns after how many seconds the next is due."""
        configurations = await ca_bundles.read(self._cluster, self._names.configuration)
        secret = await find(self._cluster, SECRETS, self._names.secret, self._names.namespace)
        if secret is not None and not ca_secret.ours(secret):
            self._report_foreign(secret)
            return self._pace.look
        self._trust = trust = ca_secret.decode(secret) if secret else Trust()
        self._renew(trust)
        if await self._keep(trust, secret, configurations):
            return 0.0
        return self._pace.look if self.served else self._pace.first

    async def _reconcile(self, _: str) -> None:
        raise Later(await self.look())

    async def _keep(self, trust: Trust, secret: Secret | None, configurations: Sequence[Configuration]) -> bool:
        """Writes what is due; returns whether the Secret has changed, so that everything has to be read again."""
        patience = 0.0 if self._leading() else self._pace.standby
        bundle = ca_bundles.encode(trust.bundle)
        complete = all(configuration.holds(bundle) for configuration in configurations)
        steady = self._steady(secret, configurations)
        wanted = advance(
            trust,
            trusted={each for configuration in configurations for each in configuration.certificates()},
            settled=complete and steady >= self._pace.settle + patience,
            now=self._now(),
            new=self._new_authority,
            lifetimes=self._pace.lifetimes,
        )
        if steady < patience:
            return False
        if wanted != trust:
            await self._write_secret(secret, wanted)
            return True
        for configuration in configurations:
            if not configuration.holds(bundle):
                await ca_bundles.write(self._cluster, configuration, bundle)
        return False

    def _steady(self, secret: Secret | None, configurations: Sequence[Configuration]) -> float:
        """For how many seconds neither the Secret nor the configurations have changed."""
        version = secret.metadata.resource_version if secret else ""
        seen = (version, [configuration.version for configuration in configurations])
        if seen != self._seen:
            self._seen, self._seen_since = seen, self._clock()
        return self._clock() - self._seen_since

    def _renew(self, trust: Trust) -> None:
        """Has a certificate signed when one is due. No await: the CA that signs is the one that has just been read."""
        now, lifetimes = self._now(), self._pace.lifetimes
        self._why = _why(trust, now)
        authority = signer(trust, self.served, now)
        if authority is None:
            return
        issued = issuance.issue(
            authority,
            NAME,
            dns_names=self._names.dns_names,
            addresses=self._names.addresses,
            now=now,
            lifetime=lifetimes.certificate,
            skew=lifetimes.skew,
        )
        self._serve(issued.certificate, issued.key)
        self.served = Served(authority.certificate, issued.validity)
        log.info("Renewed the certificate", notAfter=issued.validity.not_after.isoformat())

    def _new_authority(self) -> Authority:
        lifetimes = self._pace.lifetimes
        return issuance.new_authority(
            "deviceshare-ca", now=self._now(), lifetime=lifetimes.authority, skew=lifetimes.skew
        )

    async def _write_secret(self, secret: Secret | None, trust: Trust) -> None:
        name, namespace = self._names.secret, self._names.namespace
        if secret is None:
            await self._cluster.create(SECRETS, ca_secret.create_body(name, trust), namespace)
        else:
            body = ca_secret.patch_body(secret.metadata.resource_version, trust)
            await self._cluster.patch(SECRETS, name, body, namespace=namespace)
        log.info(
            "Wrote the certificate authorities",
            secret=f"{namespace}/{name}",
            current=trust.current is not None,
            next=trust.next is not None,
            previous=len(trust.previous),
        )

    def _report_foreign(self, secret: Secret) -> None:
        why = (
            f"Secret {secret.metadata.key} is not deviceshare's: it lacks the label {ca_secret.OURS};"
            " delete it, or name another one with --ca-secret"
        )
        if self._why != why:
            log.error("Found a Secret that is not deviceshare's", secret=secret.metadata.key, error=why)
        self._why = why


def _why(trust: Trust, now: datetime) -> str:
    if trust.current is None:
        return "the certificate authority was lost and is being replaced; not every API server trusts the new one yet"
    if not trust.current.validity.holds(now):
        validity = trust.current.validity
        return (
            f"by this machine's clock it is {now:%Y-%m-%d %H:%M} UTC, but the certificate authority is valid from"
            f" {validity.not_before:%Y-%m-%d %H:%M} to {validity.not_after:%Y-%m-%d %H:%M}: set the clock; if the clock"
            f" is right, run kubectl annotate secret NAME {ca_secret.ROTATE}=now"
        )
    return ""
