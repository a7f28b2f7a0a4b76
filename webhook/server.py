"""Runs the application over HTTPS, and the metrics beside it."""

import signal
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, NamedTuple

import uvicorn
from prometheus_client import start_http_server


class Address(NamedTuple):
    """HOST:PORT to listen on; port 0 takes any free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Read `HOST:PORT`, `[::1]:8443` and `:8443` (all addresses).

        Raises:
            ValueError: it is none of these.
        """
        host, separator, port = text.rpartition(":")
        if not separator or not port.isdigit() or int(port) > 65535:
            raise ValueError(f"{text!r}: write HOST:PORT")
        return cls(host.removeprefix("[").removesuffix("]") or "0.0.0.0", int(port))  # noqa: S104

    def __str__(self) -> str:
        """`HOST:PORT`, brackets around IPv6."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


DRAIN_SECONDS: Final = 4.0
"""After TERM: until then each answer asks its caller to close the connection, then what is idle is closed."""


class Server(uvicorn.Server):
    """uvicorn that calls back once it listens, and lets its callers go before it ends.

    A connection that is closed while idle may just have been chosen for the next request, and the API
    server does not repeat that: told by `Connection: close` it never comes to this.
    """

    def __init__(self, config: uvicorn.Config, listening: Callable[[Address], None]) -> None:
        super().__init__(config)
        self._listening = listening
        self._drained: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal lets callers go, a second one ends the server."""
        if self._drained is not None:
            super().handle_exit(sig, frame)
            return
        self._drained = time.monotonic() + DRAIN_SECONDS
        self.config.encoded_headers.append((b"connection", b"close"))
        self.server_state.default_headers = self.config.encoded_headers

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: whether to end."""
        if self._drained is not None and (
            not self.server_state.connections or time.monotonic() >= self._drained
        ):
            self.should_exit = True
        return await super().on_tick(counter)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """TERM and INT end the server in good order, with exit status 0 (uvicorn would die of them again)."""
        before = {
            number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: Any = None) -> None:
        """Listen, then say where."""
        await super().startup(sockets)
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        self._listening(Address(host, port))


def https(
    app: Any, address: Address, context: ssl.SSLContext, listening: Callable[[Address], None]
) -> Server:
    """A server of `app` on `address` with a live TLS context."""
    return Server(
        uvicorn.Config(
            app,
            host=address.host,
            port=address.port,
            ssl_context_factory=lambda _config, _default: context,
            access_log=False,
            log_level="warning",
            lifespan="off",
            server_header=False,
            date_header=False,
            ws="none",
            timeout_keep_alive=120,  # the API server keeps its connections; opening one costs a handshake
            timeout_graceful_shutdown=10,
        ),
        listening,
    )


def serve_metrics(address: Address) -> tuple[Address, Callable[[], None]]:
    """Serve Prometheus metrics over plain HTTP in a thread; returns where, and how to stop.

    Raises:
        OSError: the address cannot be listened on.
    """
    server, thread = start_http_server(address.port, addr=address.host)

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return Address(address.host, server.server_port), stop
