"""Certificate files that readers always find whole: written under another name, then renamed.

The private key is readable by its owner only: in a pod every container runs as the same user.
"""

import os
import tempfile
from pathlib import Path
from typing import Final

CA: Final = "ca.crt"
CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"


def write(directory: Path, *, ca: bytes, certificate: bytes, key: bytes) -> None:
    """Put `ca.crt`, `tls.crt` and `tls.key` (0600) into `directory`, made when absent.

    The key is renamed into place first and the certificate last: a reader that reloads when
    `tls.crt` changes finds the key that belongs to it, and one that meets the moment between finds
    a pair that does not match, which it must answer by keeping what it has.

    Raises:
        OSError: the directory cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for name, content, mode in ((CA, ca, 0o644), (KEY, key, 0o600), (CERTIFICATE, certificate, 0o644)):
        _replace(directory / name, content, mode)


def _replace(path: Path, content: bytes, mode: int) -> None:
    if path.is_file() and path.read_bytes() == content:
        return
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
