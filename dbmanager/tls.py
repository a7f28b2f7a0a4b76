"""A serving certificate read from files, anew when they change."""

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Any, Final

import grpc

log = logging.getLogger(__name__)
LOOK_SECONDS: Final = 5.0


class Certificate:
    """`tls.crt` and `tls.key` as a mounted Secret has them; the kubelet swaps both when they rotate.

    The chain is sent as the file has it: during a change of the CA it holds the new CA's certificate
    signed by the old one, so that clients that know only the old CA go on trusting us.
    """

    def __init__(self, cert: Path, key: Path) -> None:
        self._cert = cert
        self._key = key
        self._contexts: list[ssl.SSLContext] = []
        self._pair = self._read()
        self._check(self._pair)

    def _read(self) -> tuple[bytes, bytes]:
        return self._cert.read_bytes(), self._key.read_bytes()

    def _check(self, _pair: tuple[bytes, bytes]) -> None:
        """Raises ssl.SSLError when certificate and key do not belong together."""
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._cert, self._key)

    def credentials(self) -> Any:
        """GRPC server credentials that are current at each handshake."""

        def configuration() -> Any:
            cert, key = self._pair
            return grpc.ssl_server_certificate_configuration([(key, cert)])

        return grpc.dynamic_ssl_server_credentials(
            configuration(), configuration, require_client_authentication=False
        )

    def context(self) -> ssl.SSLContext:
        """A context for HTTP, reloaded in place: new connections get the new certificate."""
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.load_cert_chain(self._cert, self._key)
        self._contexts.append(made)
        return made

    def reload(self) -> bool:
        """Read the files again; False when nothing changed or what is there cannot be used yet."""
        try:
            pair = self._read()
            if pair == self._pair:
                return False
            self._check(pair)
            for context in self._contexts:
                context.load_cert_chain(self._cert, self._key)
        except (OSError, ssl.SSLError) as error:
            log.warning("the certificate in %s is not usable, the one before stays: %s", self._cert, error)
            return False
        self._pair = pair
        log.info("the certificate in %s was renewed", self._cert)
        return True

    async def watch(self) -> None:
        """Look at the files for ever."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await asyncio.to_thread(self.reload)
