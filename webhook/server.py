"""Runs the application over HTTPS, and the metrics beside it."""

import signal
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

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


class Server(uvicorn.Server):
    """uvicorn that calls back once it listens."""

    def __init__(self, config: uvicorn.Config, listening: Callable[[Address], None]) -> None:
        super().__init__(config)
        self._listening = listening

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
