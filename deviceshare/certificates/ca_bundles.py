"""The `caBundle` of the webhook configurations: which CAs the API servers trust.

https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#service-reference
"""

import base64
import binascii
from collections.abc import Sequence
from typing import Any

import structlog
from msgspec import Struct

from deviceshare.certificates import issuance
from deviceshare.loops.api_objects import find
from deviceshare.loops.kinds import WEBHOOK_CONFIGURATIONS, WebhookConfiguration
from deviceshare.loops.ports import Cluster, Kind

log = structlog.get_logger(__name__)


class Configuration(Struct, frozen=True):
    """One configuration, as it was read."""

    kind: Kind[WebhookConfiguration]
    found: WebhookConfiguration

    def holds(self, bundle: str) -> bool:
        """Whether each of its webhooks has exactly this bundle, as base64."""
        return all(webhook.get("clientConfig", {}).get("caBundle", "") == bundle for webhook in self.found.webhooks)

    def certificates(self) -> set[str]:
        """All certificates in its bundles, in PEM."""
        bundles = {webhook.get("clientConfig", {}).get("caBundle", "") for webhook in self.found.webhooks}
        return {certificate for bundle in bundles for certificate in issuance.split(_decode(bundle))}

    @property
    def version(self) -> str:
        return self.found.metadata.resource_version


def encode(authorities: Sequence[str]) -> str:
    """A bundle as a configuration has it."""
    return base64.b64encode("".join(authorities).encode()).decode()


async def read(cluster: Cluster, name: str) -> list[Configuration]:
    """The mutating and the validating configuration of this name, as far as they exist."""
    # One that is missing is not installed, or not yet: no API server calls its webhooks.
    return [Configuration(kind, each) for kind in WEBHOOK_CONFIGURATIONS if (each := await find(cluster, kind, name))]


async def write(cluster: Cluster, configuration: Configuration, bundle: str) -> None:
    """Writes this bundle to all its webhooks, unless it has changed since it was read (raises Conflict)."""
    metadata = configuration.found.metadata
    body = {
        "metadata": {"resourceVersion": metadata.resource_version},
        "webhooks": [_with_bundle(webhook, bundle) for webhook in configuration.found.webhooks],
    }
    await cluster.patch(configuration.kind, metadata.name, body)
    log.info("Wrote the CA bundle", configuration=configuration.kind.plural, name=metadata.name)


def _with_bundle(webhook: dict[str, Any], bundle: str) -> dict[str, Any]:
    return {**webhook, "clientConfig": {**webhook.get("clientConfig", {}), "caBundle": bundle}}


def _decode(bundle: str) -> str:
    try:
        return base64.b64decode(bundle).decode(errors="replace")
    except (binascii.Error, ValueError):
        return ""
