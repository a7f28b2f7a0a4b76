"""A store on each database, and a DB manager as a process."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Servers of databases are started as another user, for which Python forks; gRPC's fork handlers do not survive
# that beside hundreds of threads with channels. It reads this when it is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc
import pytest

from dbmanager.schema import METADATA
from dbmanager.store import Store
from tests.support.databases import database
from trialtap.messages import Method

KINDS = [
    "sqlite",
    pytest.param("postgresql", marks=pytest.mark.postgresql),
    pytest.param("mysql", marks=pytest.mark.mysql),
]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Each database in turn."""
    return str(request.param)


def server_url(kind: str) -> str:
    """The server that tests of this kind use; skips without one."""
    name = f"TRIALTAP_TEST_{kind.upper()}"
    server = os.environ.get(name)
    if server is None:
        pytest.skip(f"{name} is not set: run `.ci/databases pytest …`")
    return server


@pytest.fixture
def database_url(kind: str, tmp_path: Path) -> Iterator[str]:
    """An empty database of that kind, without tables."""
    if kind == "sqlite":
        yield f"sqlite:///{tmp_path}/trials.db"
        return
    with database(server_url(kind)) as url:
        yield url


@pytest.fixture(scope="session")
def shared() -> Iterator[Callable[[str], str]]:
    """One database for each kind of server, which tests clear instead of making their own."""
    with contextlib.ExitStack() as stack:
        urls: dict[str, str] = {}

        def url(kind: str) -> str:
            if kind not in urls:
                urls[kind] = stack.enter_context(database(server_url(kind)))
            return urls[kind]

        yield url


@pytest.fixture
def store(kind: str, shared: Callable[[str], str], tmp_path: Path) -> Iterator[Store]:
    """A store with empty tables."""
    made = Store.open(f"sqlite:///{tmp_path}/trials.db" if kind == "sqlite" else shared(kind))
    if kind != "sqlite":
        with made.database.readers.begin() as connection:
            for table in METADATA.tables.values():
                connection.execute(table.delete())
    yield made
    made.close()


class Process:
    """`python -m dbmanager` and a channel to it."""

    def __init__(self, url: str, *flags: str, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "dbmanager", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"),
                *("--database", url, *flags),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )
        assert self.process.stdout is not None
        ready = self.process.stdout.readline()
        if not ready:
            raise AssertionError(self.process.communicate(timeout=10)[1])
        self.ports = dict(re.findall(r"(\w+)=(\S+)", ready))
        self.channel = grpc.insecure_channel(self.ports["grpc"])

    def call(self, method: Method, request: Any, timeout: float = 20, **options: Any) -> Any:
        """One call."""
        return self.channel.unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.reply.FromString,
        )(request, timeout=timeout, **options)

    def kill(self) -> None:
        """SIGKILL."""
        self.channel.close()
        self.process.kill()
        self.process.communicate(timeout=10)

    def stop(self) -> tuple[int, str]:
        """SIGTERM; exit status and what it wrote to stderr."""
        self.process.send_signal(signal.SIGTERM)
        _, errors = self.process.communicate(timeout=40)
        self.channel.close()
        return self.process.returncode, errors


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    """Starts DB managers, and ends those that still run."""
    started: list[Process] = []

    def start(url: str, *flags: str, **options: Any) -> Process:
        started.append(Process(url, *flags, **options))
        return started[-1]

    yield start
    for process in started:
        if process.process.poll() is None:
            process.kill()
