"""Private PostgreSQL and MariaDB servers on free loopback ports, which tests may kill and start again.

As a script, `python -m tests.support.databases COMMAND…` starts both, runs the command with their URLs as
TRIALTAP_TEST_POSTGRESQL and TRIALTAP_TEST_MYSQL, and ends them after it. Both servers refuse to run as
root: started by root they run as the users of their Debian packages.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import NullPool, create_engine, make_url, text

START_SECONDS = 60


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _find(program: str, *folders: str) -> str | None:
    for folder in folders:
        top, _, pattern = folder.partition("*")
        found = sorted(Path(top).glob(f"*{pattern}/{program}" if pattern else program), reverse=True)
        if found:
            return str(found[0])
    return shutil.which(program)


class Server:
    """A database server with its files in a folder of its own.

    Attributes:
        url: SQLAlchemy URL of an administrator without a database of its own.
    """

    account = ""
    programs: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"trialtap-{self.account}-"))
        self.port = _free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.user: dict[str, Any] = {}
        if os.getuid() == 0:
            entry = pwd.getpwnam(self.account)
            self.user = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
            os.chown(self.folder, entry.pw_uid, entry.pw_gid)
        self.log = (self.folder / "log").open("ab")
        self.initialise()
        self.start()

    @classmethod
    def missing(cls) -> str | None:
        """The program that is not installed, if any."""
        return next((name for name in cls.programs if _find(name, *cls.folders()) is None), None)

    @classmethod
    def folders(cls) -> tuple[str, ...]:
        """Where its programs may be beside PATH."""
        return ()

    def initialise(self) -> None:
        """Make the data directory."""
        raise NotImplementedError

    def command(self) -> list[str]:
        """What runs the server in the foreground."""
        raise NotImplementedError

    @property
    def url(self) -> str:
        """See the class."""
        raise NotImplementedError

    def run(self, *arguments: str) -> None:
        """Run a program of the server's to its end, as its user."""
        subprocess.run(
            arguments,
            check=True,
            stdout=self.log,
            stderr=self.log,
            cwd=self.folder,
            timeout=START_SECONDS,
            **self.user,
        )

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.process = subprocess.Popen(
            self.command(),
            stdout=self.log,
            stderr=self.log,
            stdin=subprocess.DEVNULL,
            cwd=self.folder,
            **self.user,
        )
        deadline = time.monotonic() + START_SECONDS
        while failure := unanswered(self.url):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(
                    f"{self.command()[0]} does not start ({failure}):\n{(self.folder / 'log').read_text()[-3000:]}"
                )
            time.sleep(0.1)

    def kill(self) -> None:
        """End it as a machine that loses its power would."""
        if self.process is not None:
            self._kill()
            self.process.wait(30)
            self.process = None

    def _kill(self) -> None:
        assert self.process is not None
        self.process.kill()

    def restart(self) -> None:
        """Kill and start again."""
        self.kill()
        self.start()

    def stop(self) -> None:
        """End it and remove its folder."""
        self.kill()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class PostgreSQL(Server):
    """See Server."""

    account = "postgres"
    programs = ("initdb", "postgres")

    @classmethod
    def folders(cls) -> tuple[str, ...]:
        """Debian keeps the programs of each version out of PATH."""
        return ("/usr/lib/postgresql/*/bin",)

    def initialise(self) -> None:
        """A cluster of UTF-8 and the C locale, trusting loopback."""
        self.run(
            _find("initdb", *self.folders()) or "initdb",
            *("-D", f"{self.folder}/data", "-U", "trialtap", "-A", "trust", "-E", "UTF8", "--locale=C", "-N"),
        )

    def command(self) -> list[str]:
        """Durable as by default: fsync and synchronous_commit are on."""
        return [
            _find("postgres", *self.folders()) or "postgres",
            *("-D", f"{self.folder}/data", "-p", str(self.port), "-k", str(self.folder)),
            *("-c", "listen_addresses=127.0.0.1", "-c", "max_connections=100"),
        ]

    def _kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGQUIT)  # at once, recovering at the next start; leaves no orphans

    @property
    def url(self) -> str:
        """See Server."""
        return f"postgresql+psycopg://trialtap@127.0.0.1:{self.port}/postgres"


class MariaDB(Server):
    """See Server."""

    account = "mysql"
    programs = ("mariadb-install-db", "mariadbd")

    @classmethod
    def folders(cls) -> tuple[str, ...]:
        """Outside PATH of ordinary users."""
        return ("/usr/sbin", "/usr/bin")

    def initialise(self) -> None:
        """A data directory, and an administrator who may come over TCP."""
        (self.folder / "init.sql").write_text(
            "CREATE USER IF NOT EXISTS 'trialtap'@'%' IDENTIFIED BY 'trialtap';\n"
            "GRANT ALL ON *.* TO 'trialtap'@'%' WITH GRANT OPTION;\n"
        )
        self.run(
            _find("mariadb-install-db", *self.folders()) or "mariadb-install-db",
            *("--no-defaults", f"--datadir={self.folder}/data", "--auth-root-authentication-method=normal"),
            *("--skip-test-db", "--innodb-log-file-size=16M", "--innodb-buffer-pool-size=64M"),
        )

    def command(self) -> list[str]:
        """Durable as by default: innodb_flush_log_at_trx_commit is 1."""
        return [
            _find("mariadbd", *self.folders()) or "mariadbd",
            *(
                "--no-defaults",
                f"--datadir={self.folder}/data",
                f"--port={self.port}",
                "--bind-address=127.0.0.1",
            ),
            *(
                f"--socket={self.folder}/sock",
                f"--pid-file={self.folder}/pid",
                f"--init-file={self.folder}/init.sql",
            ),
            *("--innodb-log-file-size=16M", "--innodb-buffer-pool-size=64M", "--skip-name-resolve"),
        ]

    @property
    def url(self) -> str:
        """See Server."""
        return f"mysql+pymysql://trialtap:trialtap@127.0.0.1:{self.port}/mysql"


def unanswered(url: str) -> str:
    """Why a server does not answer; empty when it does."""
    patience = {"connect_timeout": 5}
    if make_url(url).get_backend_name() == "mysql":
        patience["read_timeout"] = 5
    engine = create_engine(url, poolclass=NullPool, connect_args=patience)
    try:
        with engine.connect() as connection:
            connection.execute(text("SELECT 1"))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


@contextmanager
def database(server_url: str, options: str = "") -> Iterator[str]:
    """A new database on a server, dropped at the end; its URL.

    Args:
        server_url: of somebody who may create databases.
        options: what follows CREATE DATABASE name.
    """
    name = f"trialtap_{uuid.uuid4().hex[:12]}"
    url = make_url(server_url)
    engine = create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    force = " WITH (FORCE)" if url.get_backend_name() == "postgresql" else ""
    try:
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name} {options}"))
        yield url.set(database=name).render_as_string(hide_password=False)
    finally:
        with engine.connect() as connection:
            connection.execute(text(f"DROP DATABASE IF EXISTS {name}{force}"))
        engine.dispose()


def main(command: list[str]) -> int:
    """See the module."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are ended then too
    servers: list[Server] = []
    env = dict(os.environ)
    made: dict[str, Callable[[], Server]] = {
        "TRIALTAP_TEST_POSTGRESQL": PostgreSQL,
        "TRIALTAP_TEST_MYSQL": MariaDB,
    }
    try:
        for name, start in made.items():
            server = start()
            servers.append(server)
            env[name] = server.url
            print(f"{name}={server.url}", flush=True)
        return subprocess.run(command, env=env, check=False).returncode
    finally:
        for server in servers:
            server.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
