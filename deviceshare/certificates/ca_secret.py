"""The Secret that holds the certificate authorities.

    data:         ca.crt ca.key   next.crt next.key   previous.crt
    annotations:  deviceshare.io/previous-until   deviceshare.io/rotate (set by a person)
    label:        deviceshare.io/certificate-authority: ""

The label says that the Secret is deviceshare's to write: another Secret, named by mistake, is never written.
"""

import base64
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from deviceshare.certificates import issuance
from deviceshare.certificates.rotation import Authority, Trust
from deviceshare.domain.contract import PREFIX
from deviceshare.loops.kinds import Secret

log = structlog.get_logger(__name__)

OURS: Final = f"{PREFIX}certificate-authority"
ROTATE: Final = f"{PREFIX}rotate"
"""`kubectl annotate secret NAME deviceshare.io/rotate=now` requests a new CA; any value will do."""
PREVIOUS_UNTIL: Final = f"{PREFIX}previous-until"


def ours(secret: Secret) -> bool:
    return OURS in secret.metadata.labels


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


def create_body(name: str, trust: Trust) -> dict[str, Any]:
    """A new Secret with this content."""
    patch = patch_body("", trust)
    metadata = {"name": name, "labels": {OURS: ""}, "annotations": _present(patch["metadata"]["annotations"])}
    return {"metadata": metadata, "type": "Opaque", "data": _present(patch["data"])}


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
    encoded = {key: base64.b64encode(text.encode()).decode() if text else None for key, text in data.items()}
    return {"metadata": {"resourceVersion": version, "annotations": annotations}, "data": encoded}


def _authority(secret: Secret, part: str) -> Authority | None:
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
