"""New certificate authorities, certificates signed by them, and PEM read back.

Keys are ECDSA on P-256, which every client of Kubernetes accepts and which take a fraction of a millisecond to create.
Authorities have unique names and key identifiers (RFC 5280, 4.2.1.1 and 4.2.1.2), so that a verifier that trusts
several, as during a rotation, finds the right one.
"""

import ipaddress
import re
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from deviceshare.certificates.rotation import KeyPair, Validity

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


class UnreadableCertificate(Exception):
    """This is not a certificate and its key; the text says why."""


def new_authority(name: str, *, now: datetime, lifetime: timedelta, skew: timedelta) -> KeyPair:
    """A new CA, valid from `skew` before `now`. A random part is added to its name."""
    validity = Validity((now - skew).replace(microsecond=0), (now + lifetime).replace(microsecond=0))
    return _signed(_name(f"{name}-{secrets.token_hex(4)}"), validity)


def issue(
    authority: KeyPair,
    name: str,
    *,
    dns_names: Sequence[str] = (),
    addresses: Sequence[str] = (),
    organization: str = "",
    now: datetime,
    lifetime: timedelta,
    skew: timedelta,
    for_client: bool = False,
) -> KeyPair:
    """A certificate for a server of these names and IP addresses, or for a client; never outlives its authority."""
    validity = Validity(
        max(now - skew, authority.validity.not_before).replace(microsecond=0),
        min(now + lifetime, authority.validity.not_after).replace(microsecond=0),
    )
    alternatives = [
        *(x509.DNSName(dns_name) for dns_name in dns_names),
        *(x509.IPAddress(ipaddress.ip_address(address)) for address in addresses),
    ]
    purpose = ExtendedKeyUsageOID.CLIENT_AUTH if for_client else ExtendedKeyUsageOID.SERVER_AUTH
    extensions: list[x509.ExtensionType] = [x509.ExtendedKeyUsage([purpose])]
    if alternatives:
        extensions.append(x509.SubjectAlternativeName(alternatives))
    return _signed(_name(name, organization), validity, authority, extensions)


def read_authority(certificate: str, key: str) -> KeyPair:
    """An authority as `new_authority` made it; raises UnreadableCertificate for anything else."""
    loaded, signing_key = _load(certificate, key)
    if loaded.public_key() != signing_key.public_key():
        raise UnreadableCertificate("the key is another certificate's")
    try:
        is_authority = loaded.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        loaded.verify_directly_issued_by(loaded)
    except (x509.ExtensionNotFound, InvalidSignature, TypeError, ValueError) as error:
        raise UnreadableCertificate(
            f"not a certificate authority's own certificate: {str(error) or type(error).__name__}"
        ) from error
    if not is_authority:
        raise UnreadableCertificate("the certificate is not an authority's")
    return KeyPair(_pem(loaded), key, Validity(loaded.not_valid_before_utc, loaded.not_valid_after_utc))


def split(bundle: str) -> tuple[str, ...]:
    """The certificates of a PEM bundle, one by one; anything else is left out."""
    found = []
    for part in _PEM.findall(bundle):
        try:
            found.append(_pem(x509.load_pem_x509_certificate(part.encode())))
        except ValueError:
            continue
    return tuple(found)


def new_key_pem(key: ec.EllipticCurvePrivateKey | None = None) -> str:
    """A private key in PEM; a new one unless given."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    form = serialization.PrivateFormat.TraditionalOpenSSL
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


def _load(certificate: str, key: str) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        loaded = x509.load_pem_x509_certificate(certificate.encode())
        signing_key = serialization.load_pem_private_key(key.encode(), password=None)
    except (ValueError, TypeError) as error:
        raise UnreadableCertificate(f"not PEM: {error}") from error
    if not isinstance(signing_key, ec.EllipticCurvePrivateKey):
        raise UnreadableCertificate("the key is not an elliptic curve's")
    return loaded, signing_key


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _name(common_name: str, organization: str = "") -> x509.Name:
    names = {NameOID.ORGANIZATION_NAME: organization, NameOID.COMMON_NAME: common_name}
    return x509.Name([x509.NameAttribute(oid, name) for oid, name in names.items() if name])


def _signed(
    subject: x509.Name,
    validity: Validity,
    authority: KeyPair | None = None,
    extensions: Sequence[x509.ExtensionType] = (),
) -> KeyPair:
    """A certificate and its new key; an authority's own where no other signs it."""
    new, ca = ec.generate_private_key(ec.SECP256R1()), authority is None
    key, issuer, signing_key = new.public_key(), subject, new
    if authority is not None:
        signer, signing_key = _load(authority.certificate, authority.key)
        issuer = signer.subject
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=ca,
        crl_sign=ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(validity.not_before)
        .not_valid_after(validity.not_after)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()), critical=False)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True)
        .add_extension(usage, critical=True)
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    signed = _pem(builder.sign(signing_key, hashes.SHA256()))
    return KeyPair(signed, new_key_pem(new), validity, authority.certificate if authority else "")
