"""Engines for SQLite, PostgreSQL and MySQL, and the few places where the three differ."""

import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg
import pymysql
from pymysql.converters import escape_string
from sqlalchemy import (
    URL,
    ColumnElement,
    Connection,
    DateTime,
    Engine,
    Select,
    String,
    and_,
    cast,
    create_engine,
    event,
    func,
    literal,
    literal_column,
    make_url,
    text,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import SQLAlchemyError

from dbmanager.rows import NewRow, RefusedError, UnavailableError
from dbmanager.schema import INDEX, LOGS

DRIVERS: Final = {
    "sqlite": "sqlite",
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "mariadb": "mysql+pymysql",
}
"""First word of a URL -> SQLAlchemy's dialect and driver."""
READERS: Final = 16
"""Most connections that read at once; who comes later waits for one."""
CONNECT_SECONDS: Final = 5
ANSWER_SECONDS: Final = 60
"""A server that vanishes without a word must not hold a report for ever."""

COLUMNS: Final = "trial_name, time, metric_name, value, namespace, stream, step, ns"
_COPY = f"COPY observation_logs ({COLUMNS}) FROM STDIN"
_INSERT_MYSQL = f"INSERT INTO observation_logs ({COLUMNS}) VALUES "  # noqa: S608
_STATEMENT_CHARACTERS: Final = 256 * 1024
"""Of one INSERT to MySQL, so that it stays far under any `max_allowed_packet`."""
_NULL = "\\N"
_COPY_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
_UNKNOWN_NAMES = """
WITH RECURSIVE hop(name) AS (
  SELECT min(trial_name) FROM observation_logs
  UNION ALL
  SELECT (SELECT min(trial_name) FROM observation_logs WHERE trial_name > hop.name) FROM hop WHERE name IS NOT NULL
) SELECT name FROM hop WHERE name IS NOT NULL"""


@dataclass(frozen=True)
class Batch:
    """Rows of one trial and stream, as `Database.insert` takes them."""

    trial_name: str
    namespace: str | None
    stream: str | None
    rows: Sequence[NewRow]


@dataclass(frozen=True)
class Database:
    """A database that was connected to and whose tables are as wanted.

    Attributes:
        kind: `sqlite`, `postgresql` or `mysql` (MariaDB too).
        writers: the engine whose transactions write; one connection is in use.
        readers: the engine for everything else.
        codecs: Python codecs of text columns that do not hold all of Unicode, by column name (MySQL's
            latin1 and utf8mb3 tables); empty: everything fits.
        exact_names: names are compared byte by byte by the columns themselves.
    """

    kind: str
    writers: Engine
    readers: Engine
    codecs: Mapping[str, str] = field(default_factory=dict)
    exact_names: bool = True

    def time(self, value: str) -> ColumnElement[Any]:
        """A time as the tables have it, to compare the column `time` with."""
        bound = literal(value, String)
        return cast(bound, DateTime) if self.kind == "postgresql" else bound

    def insert(self, connection: Connection, batches: Iterable[Batch]) -> None:
        """Insert rows by the driver itself, inside the transaction of `connection`.

        SQLAlchemy's own executemany costs more per row than the rest of a report; PostgreSQL's COPY
        has no equal in it.
        """
        driver: Any = connection.connection.driver_connection
        if self.kind == "postgresql":
            with driver.cursor() as cursor, cursor.copy(_COPY) as copy:
                for batch in batches:
                    copy.write(_copy_lines(batch))
            return
        if self.kind == "mysql":
            with driver.cursor() as cursor:
                for statement in _mysql_inserts(batches):
                    cursor.execute(statement)
            return
        cursor = driver.cursor()
        for batch in batches:
            _sqlite_insert(cursor, batch)
        cursor.close()

    @property
    def orders_by_index(self) -> bool:
        """Whether `in_order` leaves rows of the same microsecond to the caller."""
        return self.kind == "mysql"

    def in_order(self, query: Select[Any]) -> Select[Any]:
        """The query's rows by (time, ns, id).

        SQLite and PostgreSQL sort by the index and then within equal times. MySQL knows no such sort: it
        would copy and sort the whole trial before the first row, so it gets (time, id), which is the index.
        """
        if self.orders_by_index:
            hint = f"FORCE INDEX ({INDEX})"
            query = query.with_hint(LOGS, hint, "mysql").with_hint(LOGS, hint, "mariadb")
            return query.order_by(LOGS.c.time, LOGS.c.id)
        return query.order_by(LOGS.c.time, func.coalesce(LOGS.c.ns, 0), LOGS.c.id)

    def abandon(self, connection: Connection) -> None:
        """Throw away a connection whose result was not read to its end, where the rest would be read first.

        PyMySQL reads what is left, maybe a million rows, when the cursor or the connection is closed.
        """
        if self.kind == "mysql":
            driver: Any = connection.connection.driver_connection
            result = getattr(driver, "_result", None)
            if result is not None:
                result.unbuffered_active = False
            connection.invalidate()

    def distinct_trial_names(self, connection: Connection) -> list[str]:
        """Every trial name among the rows, by hops through the index rather than a scan of it."""
        if self.kind != "mysql":
            query = _UNKNOWN_NAMES
        elif self.exact_names:
            query = "SELECT DISTINCT trial_name FROM observation_logs"
        else:  # a collation that takes `A` for `a` would hide one of them
            query = (
                "SELECT CONVERT(name USING utf8mb4) FROM (SELECT DISTINCT "
                "CAST(CONVERT(trial_name USING utf8mb4) AS BINARY) AS name FROM observation_logs) AS names"
            )
        return list(connection.execute(text(query)).scalars())

    def dispose(self) -> None:
        """Close the connections."""
        self.writers.dispose()
        self.readers.dispose()


def _copy_lines(batch: Batch) -> str:
    def escaped(value: str | None) -> str:
        return _NULL if value is None else value.translate(_COPY_ESCAPES)

    head = escaped(batch.trial_name)
    tail = f"{escaped(batch.namespace)}\t{escaped(batch.stream)}"
    return "".join(
        [
            f"{head}\t{at}\t{name.translate(_COPY_ESCAPES)}\t{value.translate(_COPY_ESCAPES)}\t{tail}\t"
            f"{_NULL if step is None else step}\t{ns}\n"
            for at, ns, name, value, step in batch.rows
        ]
    )


def _sqlite_values(count: int) -> str:
    """INSERT of `count` rows; ?1-?3 are the trial, namespace and stream of all."""
    values = ",".join(
        f"(?1,?{at},?{at + 2},?{at + 3},?2,?3,?{at + 4},?{at + 1})" for at in range(4, 4 + 5 * count, 5)
    )
    return f"INSERT INTO observation_logs ({COLUMNS}) VALUES {values}"  # noqa: S608


_INSERT_SQLITE: Final = {count: _sqlite_values(count) for count in (1, 2, 4, 8, 16, 32, 64, 128, 256)}


def _sqlite_insert(cursor: sqlite3.Cursor, batch: Batch) -> None:
    """Rows in statements of a power of two.

    Python's sqlite3 lets go of the GIL at each step, which executemany takes once a row; while the event
    loop is busy, getting it back costs more than the row.
    """
    rows = batch.rows
    count, at = 256, 0
    while at < len(rows):
        while count > len(rows) - at:
            count //= 2
        values: list[Any] = [batch.trial_name, batch.namespace, batch.stream]
        for row in rows[at : at + count]:
            values += row
        cursor.execute(_INSERT_SQLITE[count], values)
        at += count


def _mysql_inserts(batches: Iterable[Batch]) -> Iterator[str]:
    """INSERT statements of many rows.

    PyMySQL's executemany escapes each field through several calls, which costs more than the server takes.
    `escape_string` is right for the utf8mb4 connection and the sql_mode that `_session_mysql` sets.
    """

    def quoted(value: str | None) -> str:
        return "NULL" if value is None else f"'{escape_string(value)}'"

    parts: list[str] = []
    size = 0
    for batch in batches:
        head = quoted(batch.trial_name)
        tail = f"{quoted(batch.namespace)},{quoted(batch.stream)}"
        for at, ns, name, value, step in batch.rows:
            part = f"({head},'{at}',{quoted(name)},{quoted(value)},{tail},{'NULL' if step is None else step},{ns})"
            parts.append(part)
            size += len(part)
            if size > _STATEMENT_CHARACTERS:
                yield _INSERT_MYSQL + ",".join(parts)
                parts, size = [], 0
    if parts:
        yield _INSERT_MYSQL + ",".join(parts)


def same_text(database: Database, column: ColumnElement[Any], value: str) -> ColumnElement[bool]:
    """Whether a text column holds exactly these bytes.

    MySQL's collations take `A` for `a` and ignore trailing blanks: there the bytes are compared too
    (the plain comparison stays, for the index).
    """
    if database.kind != "mysql":
        return column == value
    as_utf8 = func.convert(column.op("USING")(literal_column("utf8mb4")))
    return and_(column == value, cast(as_utf8, mysql.BINARY) == cast(literal(value, String), mysql.BINARY))


def database_errors() -> tuple[type[Exception], ...]:
    """What SQLAlchemy and the three drivers raise."""
    return (SQLAlchemyError, sqlite3.Error, psycopg.Error, pymysql.MySQLError, OSError)


def driver_error(error: BaseException) -> BaseException:
    """The driver's own error inside SQLAlchemy's wrapping."""
    return getattr(error, "orig", None) or error


def unavailable(error: BaseException) -> UnavailableError:
    """The driver's error as one sentence for the caller."""
    original = driver_error(error)
    return UnavailableError(
        f"the database did not answer as it should: {error_text(original)}; send it again"
    )


def error_text(error: BaseException) -> str:
    """A driver's error on one line."""
    if isinstance(error, pymysql.MySQLError) and len(error.args) == 2:
        return f"{error.args[1]} ({error.args[0]})"
    return " ".join(str(error).split()) or type(error).__name__


def parse_url(url: str) -> URL:
    """The URL with the driver that we use, in SQLAlchemy's form.

    Raises:
        RefusedError: it is no database URL, or of a database that we do not know.
    """
    try:
        parsed = make_url(url)
    except SQLAlchemyError as error:
        raise RefusedError("--database", f"no database URL ({error_text(error)})") from error
    backend = parsed.drivername.partition("+")[0]
    if backend not in DRIVERS:
        raise RefusedError(
            "--database", f"unknown database {backend!r}: give a URL of sqlite, postgresql or mysql"
        )
    parsed = parsed.set(drivername=DRIVERS[backend])
    if backend == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise RefusedError("--database", "SQLite needs a file: sqlite:////absolute/path")
    return parsed


def url_from_environment(env: Mapping[str, str] = os.environ) -> str | None:
    """The URL that Katib's variables describe; None when `DB_NAME` is not set.

    Raises:
        RefusedError: `DB_NAME` is neither `mysql` nor `postgres`, or the port is no number.
    """
    driver = env.get("DB_NAME")
    if not driver:
        return None
    if driver not in ("mysql", "postgres"):
        raise RefusedError("DB_NAME", f"{driver!r} is neither mysql nor postgres")
    prefix, host, port, user = {
        "mysql": ("KATIB_MYSQL_DB", "katib-mysql", "3306", "root"),
        "postgres": ("KATIB_POSTGRESQL_DB", "katib-postgres", "5432", "katib"),
    }[driver]
    port = env.get(f"{prefix}_PORT") or port
    if not port.isdecimal():
        raise RefusedError(f"{prefix}_PORT", f"{port!r} is no port number")
    ssl = env.get("KATIB_POSTGRESQL_SSL_MODE") if driver == "postgres" else None
    return URL.create(
        DRIVERS[driver],
        username=env.get("DB_USER") or user,
        password=env.get("DB_PASSWORD") or env.get("DB_PASS"),
        host=env.get(f"{prefix}_HOST") or host,
        port=int(port),
        database=env.get(f"{prefix}_DATABASE") or "katib",
        query={"sslmode": ssl} if ssl else {},
    ).render_as_string(hide_password=False)


def engines(url: URL, patience: int | None = ANSWER_SECONDS) -> tuple[str, Engine, Engine]:
    """Kind, writing engine and reading engine; nothing is connected yet.

    Args:
        url: as `parse_url` gives it.
        patience: seconds after which a server that says nothing counts as gone; None = never, for
            statements that copy a table.
    """
    kind = url.get_backend_name()
    if kind == "sqlite":
        return kind, _sqlite(url, "IMMEDIATE", size=1), _sqlite(url, "DEFERRED", size=READERS)
    arguments: dict[str, Any] = {"connect_timeout": CONNECT_SECONDS}
    if kind == "mysql":
        arguments |= {"charset": "utf8mb4", "read_timeout": patience, "write_timeout": patience}
    else:
        arguments |= {"keepalives_idle": 20, "keepalives_interval": 5, "keepalives_count": 3}
        arguments["tcp_user_timeout"] = ANSWER_SECONDS * 1000
    made = [
        create_engine(
            url,
            connect_args=arguments,
            pool_size=size,
            max_overflow=0,
            pool_timeout=30,
            pool_pre_ping=pre_ping,
            pool_recycle=1800,
            hide_parameters=True,
        )
        for size, pre_ping in ((2, False), (READERS, True))
    ]
    for engine in made:
        event.listen(engine, "connect", _session_mysql if kind == "mysql" else _session_postgresql)
    return kind, made[0], made[1]


def _sqlite(url: URL, begin: str, size: int) -> Engine:
    path = Path(url.database or "")
    if not path.parent.is_dir():
        raise RefusedError("--database", f"the folder {path.parent} of the SQLite file does not exist")
    engine = create_engine(
        url,
        connect_args={"timeout": 30, "check_same_thread": False},
        pool_size=size,
        max_overflow=0,
        pool_timeout=30,
        hide_parameters=True,
    )

    @event.listens_for(engine, "connect")
    def session(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None  # BEGIN is ours: the module's own comes too late and is DEFERRED
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.close()

    @event.listens_for(engine, "begin")
    def start(connection: Connection) -> None:
        connection.exec_driver_sql(f"BEGIN {begin}")

    return engine


def _session_postgresql(connection: Any, _: object) -> None:
    autocommit, connection.autocommit = connection.autocommit, True
    with connection.cursor() as cursor:
        # An administrator's default of `off` would make 'acknowledged' mean less than durable.
        cursor.execute("SET datestyle = 'ISO, YMD'; SET TimeZone = 'UTC'; SET synchronous_commit = 'on'")
    connection.autocommit = autocommit


def _session_mysql(connection: Any, _: object) -> None:
    with connection.cursor() as cursor:
        # Strict: text too long is an error, not cut. READ COMMITTED: no gap locks, so that two reports of
        # new streams do not wait for each other.
        cursor.execute("SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'")
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
