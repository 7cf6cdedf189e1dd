"""X.509 as clients meet it."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from deviceshare.certificates import issuance
from deviceshare.certificates.issuance import UnreadableCertificate
from deviceshare.certificates.rotation import KeyPair, Validity

NOW = datetime.now(UTC).replace(microsecond=0)
DAY, HOUR = timedelta(days=1), timedelta(hours=1)


def an_authority(lifetime: timedelta = 30 * DAY) -> KeyPair:
    return issuance.new_authority("test", now=NOW, lifetime=lifetime, skew=HOUR)


def a_certificate(authority: KeyPair) -> KeyPair:
    return issuance.issue(authority, "leaf", dns_names=["a.b.svc"], now=NOW, lifetime=DAY, skew=HOUR)


def verify(issued: KeyPair, believed: list[str], name: str = "a.b.svc") -> None:
    """As a strict client does; raises VerificationError."""
    store = Store([x509.load_pem_x509_certificate(each.encode()) for each in believed])
    verifier = PolicyBuilder().store(store).time(NOW).build_server_verifier(x509.DNSName(name))
    verifier.verify(x509.load_pem_x509_certificate(issued.certificate.encode()), [])


def test_a_certificate_is_believed_by_who_believes_its_authority() -> None:
    """Among others, under its own name only."""
    ours, theirs = an_authority(), an_authority()
    issued = a_certificate(ours)

    verify(issued, [theirs.certificate, ours.certificate])
    with pytest.raises(VerificationError):
        verify(issued, [theirs.certificate])
    with pytest.raises(VerificationError):
        verify(issued, [ours.certificate], "other.b.svc")


def test_a_certificate_does_not_outlive_its_authority() -> None:
    """It would fail before it is renewed."""
    authority = an_authority(lifetime=2 * HOUR)

    assert a_certificate(authority).validity == Validity(NOW - HOUR, NOW + 2 * HOUR)


def test_a_client_is_a_user_of_a_group_and_no_server() -> None:
    """Kubernetes reads the user from the common name and the group from the organization."""
    authority = an_authority()
    issued = issuance.issue(
        authority, "user", organization="system:masters", for_client=True, now=NOW, lifetime=DAY, skew=HOUR
    )
    certificate = x509.load_pem_x509_certificate(issued.certificate.encode())
    assert certificate.subject.rfc4514_string() == "CN=user,O=system:masters"
    with pytest.raises(x509.ExtensionNotFound):
        certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    with pytest.raises(VerificationError):
        verify(issued, [authority.certificate])


def test_an_authority_is_read_back_as_it_was_made() -> None:
    """From what a Secret holds of it."""
    authority = an_authority()

    assert issuance.read_authority(authority.certificate, authority.key) == authority


SPOILED: dict[str, Callable[[KeyPair, KeyPair], tuple[str, str]]] = {
    "nothing": lambda ours, theirs: ("", ""),
    "noise": lambda ours, theirs: ("noise", ours.key),
    "cut off": lambda ours, theirs: (ours.certificate[:200], ours.key),
    "no key": lambda ours, theirs: (ours.certificate, ""),
    "another's key": lambda ours, theirs: (ours.certificate, theirs.key),
    "no authority": lambda ours, theirs: a_certificate(ours)[:2],
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_what_is_no_authority_is_not_read_as_one(spoil: Callable[[KeyPair, KeyPair], tuple[str, str]]) -> None:
    """Signing by it would convince nobody."""
    with pytest.raises(UnreadableCertificate):
        issuance.read_authority(*spoil(an_authority(), an_authority()))


def test_a_bundle_is_taken_apart_into_what_is_readable_in_it() -> None:
    """People paste comments, and half certificates, into bundles."""
    first, second = an_authority().certificate, an_authority().certificate
    broken = first.replace("M", "*")

    assert issuance.split(f"# ours\n{first.strip()}\n{broken}\n\n{second}") == (first, second)
