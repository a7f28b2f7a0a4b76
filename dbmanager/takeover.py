"""What must be done to a database before our programs can use it, as SQL statements; pure but for `observe`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sqlalchemy import Connection, inspect, text

from dbmanager.schema import ADDED_COLUMNS, INDEX, VERSION_TABLE

REVISION: Final = "0001"
"""The Alembic revision that the statements amount to."""

# MySQL's name of a character set -> Python's codec of it, for those that Katib's tables were made in.
CODECS: Final = {
    "latin1": "cp1252",
    "utf8": "utf8mb3",
    "utf8mb3": "utf8mb3",
    "ascii": "ascii",
    "utf8mb4": None,
}
_TYPES: Final = {
    "sqlite": {"name": "VARCHAR(255)", "big": "BIGINT", "int": "INTEGER"},
    "postgresql": {"name": "VARCHAR(255)", "big": "BIGINT", "int": "INTEGER"},
    "mysql": {"name": "VARCHAR(255)", "big": "BIGINT", "int": "INT"},
}
_ADDED: Final = {"namespace": "name", "stream": "name", "step": "big", "ns": "int"}
_FRESH: Final = {
    "sqlite": "id INTEGER PRIMARY KEY AUTOINCREMENT, time DATETIME",
    "postgresql": "id BIGSERIAL PRIMARY KEY, time TIMESTAMP(6)",
    "mysql": "id BIGINT AUTO_INCREMENT PRIMARY KEY, time DATETIME(6)",
}


@dataclass(frozen=True)
class Observed:
    """A database as it was found.

    Attributes:
        kind: `sqlite`, `postgresql` or `mysql`.
        columns: of observation_logs, name -> type in lower case as the database says it; None: no such table.
        charsets: of its text columns (MySQL).
        collations: of its text columns (MySQL).
        has_index: on (trial_name, time, id).
        has_streams: the table `streams` is there.
        sequence: what feeds `id` (PostgreSQL), and whether it ends at 32 bits.
        narrow_sequence: see sequence.
        collation: what compares byte by byte here (MySQL and MariaDB name it differently).
        revision: what Alembic's version table says; None: no table.
    """

    kind: str
    columns: Mapping[str, str] | None = None
    charsets: Mapping[str, str] = field(default_factory=dict)
    collations: Mapping[str, str] = field(default_factory=dict)
    has_index: bool = False
    has_streams: bool = False
    sequence: str | None = None
    narrow_sequence: bool = False
    collation: str = ""
    revision: str | None = None


def plan(seen: Observed, *, convert: bool = False) -> list[str]:
    """The statements that make the tables usable; none when they are already.

    A table of Katib's keeps its rows, and Katib's own INSERT, which names its four columns, goes on
    working on it.
    """
    statements = []
    tail = f" CHARACTER SET utf8mb4 COLLATE {seen.collation}" if seen.kind == "mysql" else ""
    if seen.columns is None:
        added = ", ".join(f"{name} {_TYPES[seen.kind][_ADDED[name]]}" for name in ADDED_COLUMNS)
        statements.append(
            f"CREATE TABLE observation_logs (trial_name VARCHAR(255) NOT NULL, {_FRESH[seen.kind]}, "
            f"metric_name VARCHAR(255) NOT NULL, value TEXT NOT NULL, {added}){tail}"
        )
    else:
        statements += _alterations(seen)
        if convert and seen.kind == "mysql" and set(seen.charsets.values()) - {"utf8mb4"}:
            statements.append(
                f"ALTER TABLE observation_logs CONVERT TO CHARACTER SET utf8mb4 COLLATE {seen.collation}"
            )
    if not seen.has_index:
        statements.append(f"CREATE INDEX {INDEX} ON observation_logs (trial_name, time, id)")
    if not seen.has_streams:
        statements += [
            "CREATE TABLE streams (id VARCHAR(255) NOT NULL PRIMARY KEY, namespace VARCHAR(255) NOT NULL, "
            "trial_name VARCHAR(255) NOT NULL, pod VARCHAR(255) NOT NULL, attempt BIGINT NOT NULL, "
            "next BIGINT NOT NULL, ended_at BIGINT, seen_at BIGINT NOT NULL, deleted_at BIGINT)" + tail,
            "CREATE INDEX streams_trial_name ON streams (trial_name)",
        ]
    return statements


def version_statements(seen: Observed) -> list[str]:
    """What to run by hand beside `plan`, so that the next start finds nothing to do."""
    if seen.revision is not None:
        return []
    return [
        f"CREATE TABLE {VERSION_TABLE} (version_num VARCHAR(32) NOT NULL PRIMARY KEY)",
        f"INSERT INTO {VERSION_TABLE} (version_num) VALUES ('{REVISION}')",  # noqa: S608 - a constant
    ]


def codecs(seen: Observed) -> dict[str, str]:
    """Python codecs of the text columns that do not hold all of Unicode."""
    found = {name: CODECS.get(charset, charset) for name, charset in seen.charsets.items()}
    return {name: codec for name, codec in found.items() if codec is not None}


def _alterations(seen: Observed) -> list[str]:
    """Column changes in one ALTER TABLE, since each may copy the whole table."""
    assert seen.columns is not None  # noqa: S101 - the caller looked
    types = _TYPES[seen.kind]
    charset = " CHARACTER SET utf8mb4" if seen.kind == "mysql" else ""
    changes = [
        f"ADD COLUMN {name} {types[_ADDED[name]]}{charset if _ADDED[name] == 'name' else ''}"
        for name in ADDED_COLUMNS
        if name not in seen.columns
    ]
    identity, moment = seen.columns.get("id", ""), seen.columns.get("time", "")
    if seen.kind == "mysql":
        if not identity.startswith("bigint"):
            changes.append("MODIFY COLUMN id BIGINT NOT NULL AUTO_INCREMENT")
        if moment.startswith("datetime") and moment != "datetime(6)":
            changes.append("MODIFY COLUMN time DATETIME(6)")
    elif seen.kind == "postgresql" and identity != "bigint":
        changes.append("ALTER COLUMN id TYPE BIGINT")
    if seen.kind == "sqlite":  # it adds one column a statement, and its INTEGER has 64 bits
        return [f"ALTER TABLE observation_logs {change}" for change in changes]
    statements = [f"ALTER TABLE observation_logs {', '.join(changes)}"] if changes else []
    if seen.sequence is not None and seen.narrow_sequence:
        statements.append(f"ALTER SEQUENCE {seen.sequence} AS BIGINT")
    return statements


def observe(connection: Connection) -> Observed:
    """Look at the database; changes nothing."""
    inspector = inspect(connection)
    kind = connection.dialect.name
    kind = "mysql" if kind == "mariadb" else kind
    tables = set(inspector.get_table_names())
    revision = None
    if VERSION_TABLE in tables:
        revision = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar() or ""  # noqa: S608
    seen = Observed(kind=kind, has_streams="streams" in tables, revision=revision)
    details = {"sqlite": _sqlite, "postgresql": _postgresql, "mysql": _mysql}[kind](connection)
    if "observation_logs" in tables:
        # By its name, since queries to MySQL name it.
        details["has_index"] = any(
            index["name"] == INDEX for index in inspector.get_indexes("observation_logs")
        )
    else:
        details["columns"] = None
    return Observed(**{**seen.__dict__, **details})


def _sqlite(connection: Connection) -> dict[str, object]:
    found = connection.execute(text("SELECT name, lower(type) FROM pragma_table_info('observation_logs')"))
    return {"columns": dict(found.all())}


def _postgresql(connection: Connection) -> dict[str, object]:
    columns: dict[str, str] = dict(
        connection.execute(
            text(
                "SELECT column_name, data_type FROM information_schema.columns "
                "WHERE table_name = 'observation_logs' AND table_schema = current_schema()"
            )
        ).all()
    )
    sequence = None
    narrow = False
    if "id" in columns:
        sequence = connection.execute(
            text("SELECT pg_get_serial_sequence('observation_logs', 'id')")
        ).scalar()
    if sequence is not None:
        narrow = (
            connection.execute(
                text(
                    "SELECT seqtypid::regtype::text FROM pg_sequence WHERE seqrelid = CAST(:name AS regclass)"
                ),
                {"name": sequence},
            ).scalar()
            != "bigint"
        )
    return {"columns": columns, "sequence": sequence, "narrow_sequence": narrow}


def _mysql(connection: Connection) -> dict[str, object]:
    found = connection.execute(
        text(
            "SELECT column_name, column_type, character_set_name, collation_name "
            "FROM information_schema.columns "
            "WHERE table_name = 'observation_logs' AND table_schema = database()"
        )
    ).all()
    known = set(
        connection.execute(
            text(
                "SELECT collation_name FROM information_schema.collations WHERE collation_name LIKE 'utf8mb4%bin'"
            )
        ).scalars()
    )
    # With PAD SPACE (utf8mb4_bin) `a` equals `a `: the others compare every byte.
    exact = next((name for name in ("utf8mb4_nopad_bin", "utf8mb4_0900_bin") if name in known), "utf8mb4_bin")
    return {
        "columns": {name: str(type_).lower() for name, type_, _, _ in found},
        "charsets": {name: charset for name, _, charset, _ in found if charset is not None},
        "collations": {name: collation for name, _, _, collation in found if collation is not None},
        "collation": exact,
    }
