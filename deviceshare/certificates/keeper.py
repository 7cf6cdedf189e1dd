"""The keeper: certificates of the webhooks, the authority that signs them, and who is told of it."""

import base64
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime
from typing import Any, Final

import structlog
from msgspec import Struct

from deviceshare.certificates import issuance
from deviceshare.certificates.rotation import KeyPair, Lifetimes, Trust, advance, signer
from deviceshare.domain.contract import PREFIX
from deviceshare.loops.kinds import SECRETS, WEBHOOK_CONFIGURATIONS, Secret, WebhookConfiguration, find
from deviceshare.loops.ports import Cluster, Kind
from deviceshare.loops.queue import Later, Queue

# The `caBundle` of the webhook configurations: which CAs the API servers trust.
# https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#service-reference

log = structlog.get_logger(__name__)


class Configuration(Struct, frozen=True):
    """One configuration, as it was read."""

    kind: Kind[WebhookConfiguration]
    found: WebhookConfiguration

    @property
    def bundles(self) -> set[str]:
        """What its webhooks have, as base64."""
        return {webhook.get("clientConfig", {}).get("caBundle", "") for webhook in self.found.webhooks}

    def certificates(self) -> set[str]:
        """All certificates in its bundles, in PEM."""
        return {certificate for bundle in self.bundles for certificate in issuance.split(_decode(bundle))}


async def read(cluster: Cluster, name: str) -> list[Configuration]:
    """The mutating and the validating configuration of this name, as far as they exist."""
    # One that is missing is not installed, or not yet: no API server calls its webhooks.
    return [Configuration(kind, each) for kind in WEBHOOK_CONFIGURATIONS if (each := await find(cluster, kind, name))]


async def write(cluster: Cluster, configuration: Configuration, bundle: str) -> None:
    """Writes this bundle to all its webhooks, unless it has changed since it was read (raises Conflict)."""
    metadata = configuration.found.metadata
    body = {
        "metadata": {"resourceVersion": metadata.resource_version},
        "webhooks": [
            {**webhook, "clientConfig": {**webhook.get("clientConfig", {}), "caBundle": bundle}}
            for webhook in configuration.found.webhooks
        ],
    }
    await cluster.patch(configuration.kind, metadata.name, body)
    log.info("Wrote the CA bundle", configuration=configuration.kind.plural, name=metadata.name)


def _decode(bundle: str) -> str:
    try:
        return base64.b64decode(bundle).decode(errors="replace")
    except ValueError:
        return ""


def _encode(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


# The Secret that holds the certificate authorities.
#     data:         ca.crt ca.key   next.crt next.key   previous.crt
#     annotations:  deviceshare.io/previous-until   deviceshare.io/rotate (set by a person)
#     label:        deviceshare.io/certificate-authority: ""
# The label says that the Secret is deviceshare's to write: another Secret, named by mistake, is never written.

OURS: Final = f"{PREFIX}certificate-authority"
ROTATE: Final = f"{PREFIX}rotate"
"""`kubectl annotate secret NAME deviceshare.io/rotate=now` requests a new CA; any value will do."""
PREVIOUS_UNTIL: Final = f"{PREFIX}previous-until"


def decode(secret: Secret) -> Trust:
    """The Secret's content. A part that can't be read is logged and counts as missing."""
    annotations = secret.metadata.annotations
    return Trust(
        current=_authority(secret, "ca"),
        next=_authority(secret, "next"),
        previous=issuance.split(_text(secret, "previous.crt")),
        previous_until=_time(annotations.get(PREVIOUS_UNTIL, "")),
        requested=ROTATE in annotations,
    )


def patch_body(version: str, trust: Trust) -> dict[str, Any]:
    """The merge patch that writes this content into the Secret of this resourceVersion."""
    until = trust.previous_until.isoformat(timespec="seconds") if trust.previous_until else None
    annotations: dict[str, str | None] = {PREVIOUS_UNTIL: until}
    if not trust.requested:
        annotations[ROTATE] = None
    data = {
        "ca.crt": trust.current and trust.current.certificate,
        "ca.key": trust.current and trust.current.key,
        "next.crt": trust.next and trust.next.certificate,
        "next.key": trust.next and trust.next.key,
        "previous.crt": "".join(trust.previous),
    }
    encoded = {key: _encode(text) if text else None for key, text in data.items()}
    return {"metadata": {"resourceVersion": version, "annotations": annotations}, "data": encoded}


def _authority(secret: Secret, part: str) -> KeyPair | None:
    certificate, key = _text(secret, f"{part}.crt"), _text(secret, f"{part}.key")
    if not certificate and not key:
        return None
    try:
        return issuance.read_authority(certificate, key)
    except issuance.UnreadableCertificate as error:
        log.error("Found an unreadable certificate authority", secret=secret.metadata.key, part=part, error=str(error))
        return None


def _text(secret: Secret, key: str) -> str:
    return secret.data.get(key, b"").decode(errors="replace")


def _time(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _present(values: Mapping[str, str | None]) -> dict[str, str]:
    return {key: value for key, value in values.items() if value is not None}


# The reconciler of the CAs in their Secret, the bundles in the configurations, and this replica's certificate.

NAME = "deviceshare-webhook"


class RenewalPace(Struct, frozen=True):
    """Seconds, by a monotonic clock; and lifetimes, by the wall clock."""

    look: float = 5.0
    """Between two rounds of three small reads."""
    first: float = 0.5
    """Between two rounds while this replica has no certificate yet."""
    settle: float = 60.0
    """A bundle unchanged for this long has reached every API server: they watch, and resume a lost watch."""
    standby: float = 30.0
    """What has been due for this long is done by a replica that doesn't lead."""
    lifetimes: Lifetimes = Lifetimes()


@dataclass(eq=False)
class Keeper:
    """Reconciles while `run` runs, and passes each new certificate and key, in PEM, to `serve`."""

    cluster: Cluster
    _: KW_ONLY
    namespace: str
    secret: str
    """The name of the Secret."""
    configuration: str
    """Of the mutating and the validating webhook configuration."""
    dns_names: Sequence[str]
    """By which clients reach this server."""
    addresses: Sequence[str] = ()
    serve: Callable[[str, str], None]
    leading: Callable[[], bool]
    pace: RenewalPace = RenewalPace()  # noqa: RUF009 it is frozen
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    def __post_init__(self) -> None:
        self.served: KeyPair | None = None
        """The certificate that this replica presents in TLS handshakes, without its key: only the server needs that."""
        self._trust = Trust()
        self._seen: object = None
        self._seen_since = 0.0
        self._why = "the certificate authority has not been read yet"
        self._queue: Queue[str] = Queue("trust", self._reconcile, clock=self.clock)
        self._queue.add(self.secret)
        self.run = self._queue.run

    def fault(self) -> str:
        """Why no API server could trust this replica now, or ""."""
        if self.served is None:
            return self._why
        if self.served.validity.holds(self.now()):
            return ""
        return f"the certificate has expired; {self._why or 'the API server has not answered since then'}"

    def expiries(self) -> dict[str, float]:
        """When this replica's certificate and its CA expire, in seconds since 1970."""
        found = {"serving": self.served, "authority": self._trust.current}
        return {name: each.validity.not_after.timestamp() for name, each in found.items() if each}

    async def look(self) -> float:
        """One round, with at most one write to each object; returns after how many seconds the next is due."""
        configurations = await read(self.cluster, self.configuration)
        secret = await find(self.cluster, SECRETS, self.secret, self.namespace)
        if secret is not None and OURS not in secret.metadata.labels:
            self._report_foreign(secret)
            return self.pace.look
        self._trust = trust = decode(secret) if secret else Trust()
        self._renew(trust)
        if await self._keep(trust, secret, configurations):
            return 0.0
        return self.pace.look if self.served else self.pace.first

    async def _reconcile(self, _: str) -> None:
        raise Later(await self.look())

    async def _keep(self, trust: Trust, secret: Secret | None, configurations: Sequence[Configuration]) -> bool:
        """Writes what is due; returns whether the Secret has changed, so that everything has to be read again."""
        now, lifetimes = self.now(), self.pace.lifetimes
        patience = 0.0 if self.leading() else self.pace.standby
        bundle = _encode("".join(trust.bundle))
        incomplete = [configuration for configuration in configurations if configuration.bundles - {bundle}]
        steady = self._steady(secret, configurations)
        wanted = advance(
            trust,
            trusted={each for configuration in configurations for each in configuration.certificates()},
            settled=not incomplete and steady >= self.pace.settle + patience,
            now=now,
            new=lambda: issuance.new_authority(
                "deviceshare-ca", now=now, lifetime=lifetimes.authority, skew=lifetimes.skew
            ),
            lifetimes=lifetimes,
        )
        if steady < patience:
            return False
        if wanted != trust:
            await self._write_secret(secret, wanted)
            return True
        for configuration in incomplete:
            await write(self.cluster, configuration, bundle)
        return False

    def _steady(self, secret: Secret | None, configurations: Sequence[Configuration]) -> float:
        """For how many seconds neither the Secret nor the configurations have changed."""
        version = secret.metadata.resource_version if secret else ""
        seen = (version, [each.found.metadata.resource_version for each in configurations])
        if seen != self._seen:
            self._seen, self._seen_since = seen, self.clock()
        return self.clock() - self._seen_since

    def _renew(self, trust: Trust) -> None:
        """Has a certificate signed when one is due. No await: the CA that signs is the one that has just been read."""
        now, lifetimes = self.now(), self.pace.lifetimes
        self._why = _why(trust, now)
        authority = signer(trust, self.served, now)
        if authority is None:
            return
        issued = issuance.issue(
            authority,
            NAME,
            dns_names=self.dns_names,
            addresses=self.addresses,
            now=now,
            lifetime=lifetimes.certificate,
            skew=lifetimes.skew,
        )
        self.serve(issued.certificate, issued.key)
        self.served = issued._replace(key="")
        log.info("Renewed the certificate", notAfter=issued.validity.not_after.isoformat())

    async def _write_secret(self, secret: Secret | None, trust: Trust) -> None:
        name, namespace = self.secret, self.namespace
        body = patch_body(secret.metadata.resource_version if secret else "", trust)
        if secret is None:
            annotations = _present(body["metadata"]["annotations"])
            metadata = {"name": name, "labels": {OURS: ""}, "annotations": annotations}
            new = {"metadata": metadata, "type": "Opaque", "data": _present(body["data"])}
            await self.cluster.create(SECRETS, new, namespace)
        else:
            await self.cluster.patch(SECRETS, name, body, namespace=namespace)
        log.info(
            "Wrote the certificate authorities",
            secret=f"{namespace}/{name}",
            current=trust.current is not None,
            next=trust.next is not None,
            previous=len(trust.previous),
        )

    def _report_foreign(self, secret: Secret) -> None:
        why = (
            f"Secret {secret.metadata.key} is not deviceshare's: it lacks the label {OURS};"
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
            f" is right, run kubectl annotate secret NAME {ROTATE}=now"
        )
    return ""
