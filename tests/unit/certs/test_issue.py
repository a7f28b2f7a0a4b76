"""Certificates as other implementations see them: OpenSSL's verifier, and TLS by Python's."""

import asyncio
import datetime as dt
import ssl
import subprocess
import sys
from base64 import b64encode
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st

from certs import issue, pem
from certs.issue import Pair

NOW = dt.datetime.now(dt.UTC)
SAMPLE = issue.authority(NOW)


def verify(folder: Path, roots: bytes, served: bytes, *more: str) -> subprocess.CompletedProcess[str]:
    """OpenSSL's opinion of a chain."""
    (folder / "roots.pem").write_bytes(roots)
    (folder / "served.pem").write_bytes(served)
    files = ["-CAfile", folder / "roots.pem", "-untrusted", folder / "served.pem", folder / "served.pem"]
    command = ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", *more, *files]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_openssl_verifies_strictly_every_name_of_a_service(tmp_path: Path) -> None:
    ca = issue.authority(NOW)
    names = issue.service_names("webhook", "metrics")
    served = issue.leaf(ca, names, NOW).certificate
    assert names == (
        "webhook",
        "webhook.metrics",
        "webhook.metrics.svc",
        "webhook.metrics.svc.cluster.local",
    )
    for name in names:
        done = verify(tmp_path, ca.certificate, served, "-verify_hostname", name)
        assert done.returncode == 0, done.stderr
    assert verify(tmp_path, ca.certificate, served, "-verify_hostname", "other").returncode != 0


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "10.0.0.7"])
def test_an_address_is_an_ip_san(tmp_path: Path, address: str) -> None:
    ca = issue.authority(NOW)
    done = verify(tmp_path, ca.certificate, issue.leaf(ca, [address], NOW).certificate, "-verify_ip", address)
    assert done.returncode == 0, done.stderr


def test_who_knows_only_a_ca_of_long_ago_trusts_by_the_chain(tmp_path: Path) -> None:
    first = old = issue.authority(NOW)
    chain = b""
    for _ in range(4):
        new = issue.authority(NOW)
        chain = issue.vouch(new, old) + chain
        old = new
    served = issue.leaf(old, ["localhost"], NOW, chain=chain).certificate
    done = verify(tmp_path, first.certificate, served)
    assert done.returncode == 0, done.stderr
    assert verify(tmp_path, issue.authority(NOW).certificate, served).returncode != 0


def test_a_bundle_of_old_and_new_trusts_both(tmp_path: Path) -> None:
    old, new = issue.authority(NOW), issue.authority(NOW)
    for ca in (old, new):
        served = issue.leaf(ca, ["localhost"], NOW).certificate
        assert verify(tmp_path, old.certificate + new.certificate, served).returncode == 0


def test_a_caller_whose_clock_is_a_day_late_takes_a_new_certificate(tmp_path: Path) -> None:
    ca = issue.authority(NOW)
    served = issue.leaf(ca, ["localhost"], NOW).certificate
    late = str(int((NOW - dt.timedelta(hours=23)).timestamp()))
    assert verify(tmp_path, ca.certificate, served, "-attime", late).returncode == 0


def test_a_leaf_never_outlives_its_ca() -> None:
    ca = issue.authority(NOW, dt.timedelta(days=10))
    leaf = issue.read(issue.leaf(ca, ["localhost"], NOW, dt.timedelta(days=90)).certificate)
    assert leaf.not_valid_after_utc == issue.read(ca.certificate).not_valid_after_utc


@pytest.mark.parametrize("names", [[], ["a b"], ["-"], ["a..b"], ["http://localhost"], ["*"]])
def test_what_is_no_name_is_refused(names: list[str]) -> None:
    with pytest.raises(ValueError, match="name"):
        issue.leaf(issue.authority(NOW), names, NOW)


def test_a_name_longer_than_a_common_name_is_served_by_its_san(tmp_path: Path) -> None:
    name = ".".join(["a" * 40] * 3)
    ca = issue.authority(NOW)
    done = verify(tmp_path, ca.certificate, issue.leaf(ca, [name], NOW).certificate, "-verify_hostname", name)
    assert done.returncode == 0, done.stderr


def test_no_key_is_ever_printed() -> None:
    pair = issue.authority(NOW)
    assert "PRIVATE" not in f"{pair} {pair!r} {[pair]}"


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A folder that `python -m certs issue` filled."""
    out = tmp_path / "made"
    command = [sys.executable, "-m", "certs", "issue", "--out", str(out), "--name", "localhost"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(out / name) for name in ("ca.crt", "tls.crt", "tls.key")]
    return out


async def test_python_speaks_tls_with_what_the_command_wrote(made: Path) -> None:
    assert (made / "tls.key").stat().st_mode & 0o777 == 0o600
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(made / "tls.crt", made / "tls.key")

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    trust = ssl.create_default_context(cafile=made / "ca.crt")
    trust.verify_flags |= ssl.VERIFY_X509_STRICT
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust, server_hostname="localhost")
    assert await reader.read() == b"hello"
    writer.close()
    server.close()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["issue", "--out", "{out}", "--name", "a b"], "'a b' is neither an IP address nor a DNS name"),
        (["issue", "--out", "/dev/null/x", "--name", "a"], "/dev/null"),
        (["issue", "--out", "{out}", "--name", "a", "--days", "0"], "'0' is not a number of days"),
        (["serve", "--out", "{out}", "--kubeconfig", "{out}"], "give --service or --name"),
        (["serve", "--out", "{out}", "--name", "a", "--ca-days", "10", "--leaf-days", "5"], "a third of"),
        (["serve", "--out", "{out}", "--name", "a", "--kubeconfig", "{out}/none"], "give --kubeconfig"),
    ],
)
def test_a_command_that_cannot_do_its_work_says_why_in_one_line(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    given = [argument.format(out=tmp_path / "out") for argument in arguments]
    done = subprocess.run(
        [sys.executable, "-m", "certs", *given], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode != 0
    assert words in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "text", [b"", b"rubbish", b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----"]
)
def test_rubbish_reads_as_nothing(text: bytes) -> None:
    assert pem.authorities(text) == ()
    assert pem.fingerprint(text) == ""
    assert pem.authority_pair(text, text, NOW) is None


def test_the_good_among_rubbish_is_found() -> None:
    one, other = issue.authority(NOW), issue.authority(NOW)
    cut = other.certificate[: len(other.certificate) // 2]
    text = b"# comment\n" + cut + b"\n" + one.certificate + b"\xff" + one.certificate
    assert [a.fingerprint for a in pem.authorities(text)] == [pem.fingerprint(one.certificate)]


def test_a_serving_certificate_is_no_ca() -> None:
    ca = issue.authority(NOW)
    served = issue.leaf(ca, ["localhost"], NOW)
    assert pem.authorities(served.certificate) == ()
    assert pem.authority_pair(served.certificate, served.key, NOW) is None
    other = issue.authority(NOW)
    assert pem.serving_pair(served.certificate, served.key, other, NOW) is None
    assert pem.serving_pair(served.certificate, other.key, ca, NOW) is None
    assert pem.serving_pair(served.certificate, served.key, ca, NOW) is not None
    assert isinstance(issue.read(served.certificate), x509.Certificate)


@given(st.integers(min_value=0), st.integers(0, 255))
def test_a_certificate_with_any_byte_changed_is_read_or_left_out(where: int, byte: int) -> None:
    der = bytearray(issue.read(SAMPLE.certificate).public_bytes(serialization.Encoding.DER))
    der[where % len(der)] = byte
    text = b"-----BEGIN CERTIFICATE-----\n" + b64encode(der) + b"\n-----END CERTIFICATE-----\n"
    for authority in pem.authorities(text):
        assert pem.issued(issue.read(SAMPLE.certificate), Pair(authority.pem, b"")) in {True, False}
    pem.authority_pair(text, SAMPLE.key, NOW)
    pem.serving_pair(text, SAMPLE.key, SAMPLE, NOW)


def test_a_ca_that_we_cannot_sign_with_is_no_ca_of_ours(tmp_path: Path) -> None:
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=rsa", "-days", "9"]
    files = ["-keyout", tmp_path / "key", "-out", tmp_path / "certificate"]
    assert subprocess.run([*command, *files], capture_output=True, check=False).returncode == 0
    certificate, key = (tmp_path / "certificate").read_bytes(), (tmp_path / "key").read_bytes()
    assert len(pem.authorities(certificate)) == 1
    assert pem.authority_pair(certificate, key, NOW + dt.timedelta(minutes=1)) is None
