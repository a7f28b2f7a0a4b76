"""Brings a database's tables up to date before anything uses them, one process at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psycopg
import pymysql
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine, text

from dbmanager.databases import (
    Database,
    database_errors,
    driver_error,
    engines,
    error_text,
    parse_url,
    unavailable,
)
from dbmanager.rows import RefusedError
from dbmanager.takeover import REVISION, Observed, codecs, observe, plan, version_statements

LOCK: Final = 0x7472_6961_6C74_6170
"""PostgreSQL's advisory lock of whoever migrates (`trialtap` in ASCII)."""
LOCK_SECONDS: Final = 600
_NO_RIGHT: Final = {1044, 1142, 1143, 1227, 1370}
"""MySQL's errors for 'this user may not'."""


def connect(url: str, *, migrate: bool = True, convert: bool = False) -> Database:
    """Engines on a database whose tables are as wanted. See `Store.open` for arguments and errors."""
    kind, writers, readers = engines(parse_url(url))
    try:
        seen = _look(writers)
        if plan(seen, convert=convert) or seen.revision != REVISION:
            if not migrate:
                raise RefusedError("--database", by_hand("its tables are not as wanted", seen, convert))
            patient = engines(parse_url(url), patience=None)[1]
            try:
                _migrate(patient, convert=convert)
            finally:
                patient.dispose()
            seen = _look(writers)
    except database_errors() as error:
        writers.dispose()
        readers.dispose()
        raise unavailable(error) from error
    collations = seen.collations.get("trial_name", "") + seen.collations.get("metric_name", "")
    return Database(
        kind=kind,
        writers=writers,
        readers=readers,
        codecs=codecs(seen),
        exact_names=kind != "mysql" or collations in (2 * "utf8mb4_nopad_bin", 2 * "utf8mb4_0900_bin"),
    )


def by_hand(reason: str, seen: Observed, convert: bool) -> str:
    """The message for an administrator who must run the statements, as one script."""
    statements = plan(seen, convert=convert) + version_statements(seen)
    script = "\n".join(f"  {statement};" for statement in statements)
    return f"{reason}; have someone with the right to do so run these statements, then start again:\n{script}"


def _look(engine: Engine) -> Observed:
    with engine.connect() as connection:
        return observe(connection)


def _migrate(engine: Engine, *, convert: bool) -> None:
    with engine.connect() as connection, _alone(connection):
        seen = observe(connection)  # again: another process may have been here meanwhile
        if connection.in_transaction():
            connection.commit()
        if seen.revision not in (None, "", REVISION):
            raise RefusedError(
                "--database",
                f"was migrated by a newer DB manager (revision {seen.revision}, this one knows {REVISION}); "
                "run that version or newer",
            )
        try:
            if seen.revision != REVISION:
                _alembic(connection, convert=convert)
            else:  # the version table is there, but someone took columns away, or conversion is asked for
                with connection.begin():
                    for statement in plan(seen, convert=convert):
                        connection.execute(text(statement))
        except database_errors() as error:
            original = driver_error(error)
            if _lacks_right(original):
                reason = f"this user may not change its tables ({error_text(original)})"
                raise RefusedError("--database", by_hand(reason, seen, convert)) from error
            raise


def _alembic(connection: Connection, *, convert: bool) -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    config.attributes["convert"] = convert
    with connection.begin():
        command.upgrade(config, "head")


@contextmanager
def _alone(connection: Connection) -> Iterator[None]:
    """Hold off other processes that would migrate; SQLite's transaction does that by itself."""
    kind = connection.dialect.name
    if kind == "postgresql":
        connection.execute(text(f"SELECT pg_advisory_lock({LOCK})"))
        connection.commit()
    elif kind in ("mysql", "mariadb"):
        connection.execute(text(f"SELECT GET_LOCK('trialtap', {LOCK_SECONDS})"))
        connection.commit()
    try:
        yield
    finally:
        if kind != "sqlite":
            # The lock is the session's: a session that is thrown away cannot keep it.
            connection.invalidate()


def _lacks_right(error: BaseException) -> bool:
    if isinstance(error, pymysql.MySQLError):
        return bool(error.args) and error.args[0] in _NO_RIGHT
    return isinstance(error, psycopg.errors.InsufficientPrivilege)
