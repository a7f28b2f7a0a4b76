"""EarlyStopping over TLS, by a certificate that may change under it."""

import ssl
from pathlib import Path
from typing import Any

import grpc


def credentials(cert: Path, key: Path) -> Any:
    """GRPC server credentials from two PEM files that are looked at anew at each handshake.

    A pair that cannot be read or does not belong together leaves the one before in use.

    Raises:
        OSError: a file cannot be read at the start.
        ssl.SSLError: certificate and key do not belong together at the start.
    """
    held = _read(cert, key)

    def renewed() -> Any:
        nonlocal held
        try:
            found = _read(cert, key)
        except (OSError, ssl.SSLError):
            return None
        if found == held:
            return None
        held = found
        return _configuration(found)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(held), renewed, require_client_authentication=False
    )


def _read(cert: Path, key: Path) -> tuple[bytes, bytes]:
    pair = key.read_bytes(), cert.read_bytes()
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    return pair


def _configuration(pair: tuple[bytes, bytes]) -> Any:
    return grpc.ssl_server_certificate_configuration([pair])
