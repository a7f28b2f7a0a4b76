"""A server's TLS context whose certificate changes under it, without dropping a connection.

OpenSSL reads a context's certificate at each handshake, so that a pair loaded into the live context
serves from the next connection on; those that stand keep theirs.
"""

import asyncio
import datetime as dt
import os
import ssl
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from cryptography import x509

POLL_SECONDS: Final = 2.0
"""How often files are looked at: less than the kubelet needs to renew a mounted Secret."""


class Pair(NamedTuple):
    """A certificate chain and its private key, both PEM."""

    certificate: bytes
    key: bytes


class Source(Protocol):
    """Where a pair comes from and when there is a new one."""

    async def changed(self) -> Pair:
        """Wait for a pair other than the last one given out."""


class UnusablePair(ValueError):  # noqa: N818 - said of data
    """Certificate and key cannot be served; the message says why."""


class Serving:
    """The TLS context of a server, TLS 1.2 and newer."""

    def __init__(self) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.expires: dt.datetime | None = None
        """notAfter of the certificate that is served; None before the first."""

    def use(self, pair: Pair) -> None:
        """Serve this pair from the next connection on.

        Raises:
            UnusablePair: they cannot be read or do not belong together; what was served goes on being served.
        """
        try:
            expires = x509.load_pem_x509_certificate(pair.certificate).not_valid_after_utc
            _load(
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), pair
            )  # tried first on a context that serves nobody
            _load(self.context, pair)
        except (ValueError, ssl.SSLError) as error:
            raise UnusablePair(f"certificate and key cannot be served: {error}") from None
        self.expires = expires

    def fault(self, now: dt.datetime) -> str:
        """Why clients will refuse what is served now; "" when they will not."""
        if self.expires is None:
            return "no certificate yet"
        return f"certificate expired at {self.expires.isoformat()}" if now >= self.expires else ""

    async def follow(self, source: Source, log: Callable[[str], None]) -> None:
        """Serve each new pair of a source, for ever."""
        while True:
            pair = await source.changed()
            try:
                self.use(pair)
            except UnusablePair as error:
                log(f"{error}; the certificate before it is served on")
            else:
                log(f"certificate loaded, valid until {self.expires}")


def _load(context: ssl.SSLContext, pair: Pair) -> None:
    """`load_cert_chain` takes files only: a private one that lives as long as the call."""
    descriptor, path = tempfile.mkstemp()  # mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(pair.key + b"\n" + pair.certificate)
        context.load_cert_chain(path)
    finally:
        Path(path).unlink()


class Files:
    """A pair in two files, looked at every two seconds; a mounted Secret changes by renaming a link."""

    def __init__(self, certificate: Path, key: Path, poll_seconds: float = POLL_SECONDS) -> None:
        self._paths = (certificate, key)
        self._poll_seconds = poll_seconds
        self._last: Pair | None = None

    def read(self) -> Pair:
        """The pair as the files hold it now.

        Raises:
            OSError: a file cannot be read.
        """
        self._last = Pair(*(path.read_bytes() for path in self._paths))
        return self._last

    async def changed(self) -> Pair:
        """See `Source`. A file that is away for a moment is waited for."""
        while True:
            await asyncio.sleep(self._poll_seconds)
            last = self._last
            try:
                if self.read() != last:
                    return self._last or self.read()
            except OSError:
                self._last = last
