"""Reading PEM that anybody may have written: what is of use is taken, the rest is nothing, no input raises."""

import datetime as dt
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from certs.issue import Pair

_BLOCK: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


_UNREADABLE: Final = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)


@dataclass(frozen=True)
class Authority:
    """A CA certificate that something may be trusted by."""

    fingerprint: str
    """SHA-256 of the certificate, hex."""
    pem: bytes


def certificates(pem: bytes) -> tuple[x509.Certificate, ...]:
    """The certificates of a PEM text in order; blocks that cannot be read are left out."""
    return tuple(found for block in _BLOCK.findall(pem) if (found := _certificate(block)) is not None)


def authorities(pem: bytes) -> tuple[Authority, ...]:
    """The CA certificates of a PEM text, each once, in order."""
    found = (_authority(c) for c in certificates(pem) if _is_authority(c))
    return tuple({authority.fingerprint: authority for authority in found}.values())


def bundle(several: Iterable[Authority]) -> bytes:
    """CA certificates as one PEM text, each once."""
    return b"".join({authority.fingerprint: authority.pem for authority in several}.values())


def authority_pair(certificate: bytes, key: bytes, now: dt.datetime) -> Pair | None:
    """A CA that can sign at `now`, or None: no CA, not its key, none on an elliptic curve, out of date."""
    found = next(iter(certificates(certificate)), None)
    if found is None or not isinstance(found.public_key(), ec.EllipticCurvePublicKey):
        return None
    if not _is_authority(found) or not _current(found, now) or not _fits(found, key):
        return None
    return Pair(_pem(found), key)


def serving_pair(certificate: bytes, key: bytes, ca: Pair, now: dt.datetime) -> Pair | None:
    """A serving certificate that `ca` issued and that can be served at `now`, or None."""
    found = next(iter(certificates(certificate)), None)
    if found is None or not _current(found, now) or not _fits(found, key) or not issued(found, ca):
        return None
    return Pair(certificate, key)


def issued(certificate: x509.Certificate, ca: Pair) -> bool:
    """Whether `ca`'s key signed the certificate."""
    try:
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(ca.certificate))
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def fingerprint(pem: bytes) -> str:
    """SHA-256 of the first certificate of a PEM text, hex; "" where there is none."""
    found = next(iter(certificates(pem)), None)
    return "" if found is None else found.fingerprint(hashes.SHA256()).hex()


def renewal(certificate: x509.Certificate) -> dt.datetime:
    """When two thirds of a certificate's life are over."""
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return begin + (end - begin) * 2 / 3


def names(certificate: x509.Certificate) -> frozenset[str]:
    """The DNS names and IP addresses that a certificate is for."""
    try:
        sans = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return frozenset()
    return frozenset(str(san.value) for san in sans if isinstance(san, x509.DNSName | x509.IPAddress))


@lru_cache(maxsize=256)
def _certificate(block: bytes) -> x509.Certificate | None:
    try:
        certificate = x509.load_pem_x509_certificate(block)
        # Parts are parsed when first asked for: whatever cannot be is found out here.
        _ = certificate.extensions, certificate.public_key(), certificate.subject, certificate.issuer
        _ = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    except _UNREADABLE:
        return None
    return certificate


def _authority(certificate: x509.Certificate) -> Authority:
    return Authority(certificate.fingerprint(hashes.SHA256()).hex(), _pem(certificate))


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, ValueError):
        return False


def _current(certificate: x509.Certificate, now: dt.datetime) -> bool:
    return certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc


@lru_cache(maxsize=64)
def _fits(certificate: x509.Certificate, key: bytes) -> bool:
    try:
        private = serialization.load_pem_private_key(key, password=None)
        ours = private.public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False
    form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    return ours.public_bytes(*form) == certificate.public_key().public_bytes(*form)
