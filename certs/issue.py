"""Certificates from keys, names and a time: a CA, a CA vouched for by the one before it, a serving certificate.

Pure but for the randomness of keys and serial numbers: the time is an argument, nothing is read or
written. ECDSA on P-256 with SHA-256, the pair that every TLS library of the field verifies quickly.
"""

import datetime as dt
import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

BACKDATE: Final = dt.timedelta(days=1)
"""notBefore lies this far in the past, so that a reader whose clock is late takes the certificate."""
CA_LIFE: Final = dt.timedelta(days=3 * 365)
LEAF_LIFE: Final = dt.timedelta(days=90)
_COMMON_NAME_LIMIT: Final = 64  # characters, RFC 5280's ub-common-name


@dataclass(frozen=True)
class Pair:
    """A certificate with its private key, both PEM.

    `certificate` is one certificate for a CA; for a serving certificate it may go on with the chain
    that a server sends along.
    """

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        """Without the key: a log must not hold it."""
        return f"Pair({len(self.certificate)} bytes of PEM)"


def authority(now: dt.datetime, life: dt.timedelta = CA_LIFE) -> Pair:
    """A new self-signed CA, valid from a day before `now` until `now + life`.

    Its subject is like no other CA's, so that a bundle of several is never ambiguous.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    itself = _Party(_name(f"trialtap CA {serial:x}"[:24]), key.public_key())
    builder = _authority_builder(itself, itself, now - BACKDATE, now + life).serial_number(serial)
    return Pair(_pem(builder.sign(key, hashes.SHA256())), _key_pem(key))


def vouch(new: Pair, old: Pair) -> bytes:
    """A certificate of the CA `new` signed by the CA `old`, as PEM.

    A server that sends it behind its own certificate is trusted by those who know only `old`. It is
    valid while both are.

    Raises:
        ValueError: one of them is no CA, or their validities do not overlap.
    """
    subject, issuer = read(new.certificate), read(old.certificate)
    begin = max(subject.not_valid_before_utc, issuer.not_valid_before_utc)
    end = min(subject.not_valid_after_utc, issuer.not_valid_after_utc)
    builder = _authority_builder(
        _Party(subject.subject, _public(subject)), _Party(issuer.subject, _public(issuer)), begin, end
    ).serial_number(x509.random_serial_number())
    return _pem(builder.sign(_load_key(old.key), hashes.SHA256()))


def leaf(
    ca: Pair, names: Iterable[str], now: dt.datetime, life: dt.timedelta = LEAF_LIFE, chain: bytes = b""
) -> Pair:
    """A serving certificate for `names`, signed by `ca`, with `chain` (PEM) behind it.

    A name that reads as an IP address becomes an IP SAN, every other one a DNS SAN; DNS names may
    begin with `*.`. It never outlives its CA.

    Raises:
        ValueError: no name at all, or a name that is neither an address nor a DNS name.
    """
    sans = [alternative_name(name) for name in dict.fromkeys(names)]
    if not sans:
        raise ValueError("a serving certificate needs at least one name: give a DNS name or an IP address")
    issuer = read(ca.certificate)
    key = ec.generate_private_key(ec.SECP256R1())
    common = str(sans[0].value)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(_name(common) if len(common) <= _COMMON_NAME_LIMIT else x509.Name([]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(max(now - BACKDATE, issuer.not_valid_before_utc))
        .not_valid_after(min(now + life, issuer.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(sans), critical=len(common) > _COMMON_NAME_LIMIT)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(_public(issuer)), critical=False)
        .sign(_load_key(ca.key), hashes.SHA256())
    )
    return Pair(_pem(certificate) + chain, _key_pem(key))


def service_names(service: str, namespace: str) -> tuple[str, ...]:
    """The names by which a cluster's programs reach a Service, shortest first."""
    return (
        service,
        f"{service}.{namespace}",
        f"{service}.{namespace}.svc",
        f"{service}.{namespace}.svc.cluster.local",
    )


def read(pem: bytes) -> x509.Certificate:
    """The first certificate of a PEM text.

    Raises:
        ValueError: there is none.
    """
    return x509.load_pem_x509_certificate(pem)


class _Party(NamedTuple):
    """Who a certificate is for, or by."""

    name: x509.Name
    public: ec.EllipticCurvePublicKey


def _authority_builder(
    subject: _Party, issuer: _Party, begin: dt.datetime, end: dt.datetime
) -> x509.CertificateBuilder:
    # No path length: one CA vouches for the next, and a sidecar may know one that is several back.
    usage = _usage(digital_signature=True, key_cert_sign=True, crl_sign=True)
    key_id = x509.SubjectKeyIdentifier.from_public_key(subject.public)
    issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public)
    return (
        x509.CertificateBuilder()
        .subject_name(subject.name)
        .issuer_name(issuer.name)
        .public_key(subject.public)
        .not_valid_before(begin)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(key_id, critical=False)
        .add_extension(issuer_id, critical=False)
    )


def _usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def alternative_name(name: str) -> x509.DNSName | x509.IPAddress:
    """A name as a certificate has it.

    Raises:
        ValueError: it is neither an address nor a DNS name.
    """
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    labels = name.removeprefix("*.").rstrip(".").split(".")
    if not all(_DNS_LABEL.fullmatch(label) for label in labels):
        raise ValueError(f"{name!r} is neither an IP address nor a DNS name (letters, digits, '-', '.')")
    return x509.DNSName(name.rstrip("."))


_DNS_LABEL: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")


def _public(certificate: x509.Certificate) -> ec.EllipticCurvePublicKey:
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError("the CA's key is not an elliptic-curve key")
    return key


def _load_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("the private key is not an elliptic-curve key")
    return key


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
