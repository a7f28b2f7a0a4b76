"""One HTTP GET, bounded in time and size, on a plain socket: http.client would cost a sidecar 8 MiB."""

import socket
import time
from collections.abc import Callable
from typing import Final, NamedTuple

LIMIT: Final = 16 << 20
"""Bytes of an answer that are taken; a longer one is an error."""
_SLICE: Final = 0.25
"""Seconds between two looks at whether to go on."""


class Answer(NamedTuple):
    """What came back: status, headers by their lower-case names, body."""

    status: int
    headers: dict[str, str]
    body: bytes


class Failed(Exception):  # noqa: N818 - it is raised as a sentence: Failed("connection refused")
    """There was no whole answer; the text says why in a few words."""


def get(host: str, port: int, path: str, timeout: float, go_on: Callable[[], bool], accept: str) -> Answer:  # noqa: PLR0913, PLR0917
    """Ask for a path; HTTP/1.0 and 1.1, by length, in chunks or up to the end of the connection.

    Args:
        host: name or address.
        port: TCP port.
        path: begins with `/`.
        timeout: seconds for all of it, however slowly the answer drips.
        go_on: asked about four times a second; False ends the attempt.
        accept: value of the header of this name.

    Raises:
        Failed: no answer in time, no HTTP, or too long.
    """
    deadline = time.monotonic() + timeout
    request = (
        f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nAccept: {accept}\r\n"
        "Accept-Encoding: identity\r\nUser-Agent: trialtap\r\nConnection: close\r\n\r\n"
    )
    try:
        with socket.create_connection((host, port), timeout=min(timeout, 1.0)) as connection:
            connection.settimeout(_SLICE)
            connection.sendall(request.encode())
            received = bytearray()
            while not _whole(received):
                if time.monotonic() > deadline:
                    raise Failed(f"no whole answer within {timeout:g} s")
                if not go_on():
                    raise Failed("no answer before the end")
                try:
                    piece = connection.recv(1 << 16)
                except TimeoutError:
                    continue
                if not piece:
                    break
                received += piece
                if len(received) > LIMIT:
                    raise Failed(f"an answer of more than {LIMIT >> 20} MiB")
    except TimeoutError:
        raise Failed("no connection within 1 s") from None
    except OSError as error:
        raise Failed(error.strerror or str(error)) from None
    return parse(bytes(received))


def parse(received: bytes) -> Answer:
    """Read an answer.

    Raises:
        Failed: it is no HTTP, or not whole.
    """
    head, blank, body = received.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ", 2)
    if not words[0].startswith("HTTP/1.") or len(words) < 2 or not words[1].isdigit() or not blank:
        what = f"{received[:40]!r}" if received else "the connection closed"
        raise Failed(f"no HTTP answer, but {what}")
    headers = {}
    for line in lines[1:]:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    if "chunked" in headers.get("transfer-encoding", "").lower():
        body = _unchunk(body)
    elif (length := headers.get("content-length", "")).isdigit():
        if len(body) < int(length):
            raise Failed(f"the connection closed after {len(body)} of {length} bytes")
        body = body[: int(length)]
    return Answer(int(words[1]), headers, body)


def _whole(received: bytearray) -> bool:
    """Say whether an answer that names its length, or its last chunk, is there; others end with the connection."""
    split = received.find(b"\r\n\r\n")
    if split < 0:
        return False
    head = bytes(received[:split]).decode("latin-1").lower()
    if "chunked" in head:
        return received.endswith(b"0\r\n\r\n")
    for line in head.split("\r\n")[1:]:
        name, _, value = line.partition(":")
        if name.strip() == "content-length" and value.strip().isdigit():
            return len(received) >= split + 4 + int(value)
    return False


def _unchunk(body: bytes) -> bytes:
    pieces: list[bytes] = []
    position = 0
    while True:
        end = body.find(b"\r\n", position)
        try:
            size = int(body[position:end].split(b";")[0], 16) if end >= 0 else -1
        except ValueError:
            size = -1
        if size < 0 or end + 2 + size > len(body):
            raise Failed("the connection closed within a chunk")
        if size == 0:
            return b"".join(pieces)
        pieces.append(body[end + 2 : end + 2 + size])
        position = end + 2 + size + 2
