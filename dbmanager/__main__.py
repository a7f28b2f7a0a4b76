"""`python -m dbmanager`: the DB manager's flags, and its parts put together."""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import uvicorn
from grpc_health.v1 import health

from dbmanager import operations, service
from dbmanager.auth import Anyone, Authenticator, ClusterReviewer, Tokens
from dbmanager.cluster import Reviews
from dbmanager.databases import url_from_environment
from dbmanager.rest import application
from dbmanager.rows import StoreError
from dbmanager.store import Store
from dbmanager.tls import Certificate
from trialtap import __version__
from trialtap.names import DB_PORT, TOKEN_AUDIENCE

log = logging.getLogger("dbmanager")
GRACE_SECONDS: Final = 20.0
"""How long requests in flight may take once we are told to stop; a pod has 30 s."""


def parser() -> argparse.ArgumentParser:
    """The flags."""
    made = argparse.ArgumentParser(
        prog="python -m dbmanager",
        description="Katib's DBManager over gRPC, REST and a page over HTTP, on SQLite, PostgreSQL or MySQL.",
        epilog="Without --database, Katib's variables are read: DB_NAME (mysql or postgres), DB_USER, DB_PASSWORD, "
        "KATIB_MYSQL_DB_HOST, _PORT, _DATABASE, KATIB_POSTGRESQL_DB_HOST, _PORT, _DATABASE, KATIB_POSTGRESQL_SSL_MODE.",
    )
    made.add_argument("--version", action="version", version=f"trialtap {__version__}")
    made.add_argument(
        "--listen",
        type=address,
        default=("0.0.0.0", DB_PORT),  # noqa: S104 - a service
        metavar="HOST:PORT",
        help="gRPC (default 0.0.0.0:6789); port 0 = any free one",
    )
    made.add_argument(
        "--listen-katib",
        type=address,
        metavar="HOST:PORT",
        help="a second gRPC port without TLS and tokens, for Katib's own programs; let a NetworkPolicy guard it",
    )
    made.add_argument(
        "--http",
        type=address,
        default=("0.0.0.0", 8080),  # noqa: S104 - a service
        metavar="HOST:PORT",
        help="REST, page, /metrics, /healthz, /readyz (default 0.0.0.0:8080)",
    )
    made.add_argument(
        "--database",
        metavar="URL",
        help="sqlite:////abs/file, postgresql://user:password@host/name, mysql://user:password@host/name; "
        "env TRIALTAP_DATABASE keeps a password off the command line",
    )
    made.add_argument(
        "--convert-character-set",
        action="store_true",
        help="convert a MySQL table that is not utf8mb4 at this start (copies the table)",
    )
    made.add_argument(
        "--auth",
        choices=("none", "token"),
        default="none",
        help="none: anybody may write, as in Katib; token: a service-account token opens its own namespace",
    )
    made.add_argument("--token-audience", default=TOKEN_AUDIENCE, metavar="NAME", help="default: %(default)s")
    made.add_argument("--kubeconfig", metavar="FILE", help="for TokenReviews outside a cluster")
    made.add_argument("--cert", type=Path, metavar="FILE", help="PEM chain: --listen then speaks TLS")
    made.add_argument("--key", type=Path, metavar="FILE", help="its private key")
    made.add_argument("--http-tls", action="store_true", help="--http speaks TLS with the same certificate")
    made.add_argument(
        "--keep-days",
        type=positive,
        metavar="DAYS",
        help="delete trials not written to for so long (default: keep for ever)",
    )
    made.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    return made


def address(text: str) -> tuple[str, int]:
    """HOST:PORT; an empty host is every address, brackets hold an IPv6 one."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104


def positive(text: str) -> float:
    """A number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0
    if not 0 < number < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of days above 0")
    return number


class HTTPServer(uvicorn.Server):
    """Uvicorn without its own signal handlers: stopping is ours, in one order for gRPC and HTTP."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Nothing is captured."""
        yield


async def serve(args: argparse.Namespace, store: Store, certificate: Certificate | None) -> None:
    """Serve until SIGTERM or SIGINT, then finish what is in flight."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    reviews = Reviews(args.kubeconfig)
    authenticator: Authenticator = Anyone()
    if args.auth == "token":
        authenticator = Tokens(ClusterReviewer(reviews.create), args.token_audience)
    health_servicer = health.aio.HealthServicer()
    watch = operations.Watch(store, health_servicer)
    await watch.look()

    main = service.server(store, authenticator, health_servicer)
    servers = [main]
    ports = {"grpc": _bind(main, args.listen, certificate)}
    if args.listen_katib is not None:
        katib = service.server(store, Anyone(), health_servicer)
        ports["katib"] = _bind(katib, args.listen_katib, None)
        servers.append(katib)
    app = application(store, authenticator)
    app.include_router(operations.router(watch))
    listener = _socket(args.http)
    ports["http"] = (args.http[0], listener.getsockname()[1])
    http = HTTPServer(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=5,
            ssl_context_factory=(lambda *_: certificate.context()) if certificate and args.http_tls else None,
        )
    )
    for server in servers:
        await server.start()
    tasks = [
        asyncio.create_task(watch.run()),
        asyncio.create_task(operations.retain(store, args.keep_days)),
    ]
    if certificate is not None:
        tasks.append(asyncio.create_task(certificate.watch()))
    serving = asyncio.create_task(http.serve(sockets=[listener]))
    while not http.started and not serving.done():  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    words = " ".join(f"{name}={_shown(host)}:{port}" for name, (host, port) in ports.items())
    print(f"dbmanager ready {words}", flush=True)

    await asyncio.wait([asyncio.create_task(stop.wait()), serving], return_when=asyncio.FIRST_COMPLETED)
    log.info("stopping: requests in flight are finished")
    await health_servicer.enter_graceful_shutdown()
    app.state.stopping.set()  # live streams end
    http.should_exit = True
    await asyncio.gather(*(server.stop(GRACE_SECONDS) for server in servers))
    await serving
    for task in tasks:
        task.cancel()
    await reviews.close()


def _bind(server: Any, where: tuple[str, int], certificate: Certificate | None) -> tuple[str, int]:
    host, port = where
    target = f"{_shown(host)}:{port}"
    if certificate is None:
        return host, server.add_insecure_port(target)
    return host, server.add_secure_port(target, certificate.credentials())


def _socket(where: tuple[str, int]) -> socket.socket:
    family = socket.AF_INET6 if ":" in where[0] else socket.AF_INET
    made = socket.socket(family)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind(where)
    except OSError as error:
        raise OSError(f"--http {_shown(where[0])}:{where[1]}: {error.strerror}") from None
    return made


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def main(argv: Sequence[str] | None = None) -> int:
    """Open the database and serve; the exit status: 2 for flags or a database that cannot be used."""
    options = parser()
    args = options.parse_args(argv)
    logging.basicConfig(
        level=args.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    # The writer thread lets go of the GIL at each statement: with the default of 5 ms it would wait so long
    # for it each time that the event loop is busy.
    sys.setswitchinterval(0.0005)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    if bool(args.cert) != bool(args.key):
        options.error("--cert and --key go together")
    if args.http_tls and not args.cert:
        options.error("--http-tls needs --cert and --key")
    try:
        certificate = Certificate(args.cert, args.key) if args.cert else None
    except (OSError, ssl.SSLError) as error:
        text = f"{error.filename}: {error.strerror}" if isinstance(error, FileNotFoundError) else str(error)
        options.error(f"--cert: {text}")
    try:
        url = args.database or os.environ.get("TRIALTAP_DATABASE") or url_from_environment()
        if url is None:
            options.error("--database: give a URL, for instance sqlite:////var/lib/trialtap/trials.db")
        store = Store.open(url, convert=args.convert_character_set)
    except StoreError as error:
        print(f"dbmanager: {error}", file=sys.stderr)
        return 2
    try:
        asyncio.run(serve(args, store, certificate))
    except (OSError, RuntimeError) as error:  # gRPC answers a port that is taken with RuntimeError
        print(f"dbmanager: cannot serve: {error}", file=sys.stderr)
        return 1
    finally:
        store.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
