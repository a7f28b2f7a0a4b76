"""The two tables as SQLAlchemy Core has them, for the statements; migrations/ creates and alters them."""

from typing import Final

from sqlalchemy import BigInteger, Column, DateTime, Index, Integer, MetaData, String, Table, Text

METADATA: Final = MetaData()

INDEX: Final = "observation_logs_trial_time_id"

LOGS: Final = Table(
    "observation_logs",
    METADATA,
    # Katib's columns, in its order; Katib's own writer names the four that it fills.
    Column("trial_name", String(255), nullable=False),
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("time", DateTime),
    Column("metric_name", String(255), nullable=False),
    Column("value", Text, nullable=False),
    # Ours, nullable, so that Katib's INSERT goes on working.
    Column("namespace", String(255)),
    Column("stream", String(255)),
    Column("step", BigInteger),
    Column("ns", Integer),
    Index(INDEX, "trial_name", "time", "id"),
)
"""Katib's table with four columns more. `ns`: the nanoseconds of `time` below a microsecond."""

STREAMS: Final = Table(
    "streams",
    METADATA,
    Column("id", String(255), primary_key=True),
    Column("namespace", String(255), nullable=False),
    Column("trial_name", String(255), nullable=False),
    Column("pod", String(255), nullable=False),
    Column("attempt", BigInteger, nullable=False),
    Column("next", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Column("seen_at", BigInteger, nullable=False),
    Column("deleted_at", BigInteger),
    Index("streams_trial_name", "trial_name"),
)
"""One row a stream, kept as a tombstone after its rows are deleted. Times: milliseconds since 1970."""

ADDED_COLUMNS: Final = ("namespace", "stream", "step", "ns")
VERSION_TABLE: Final = "trialtap_alembic_version"
"""Alembic's version table, named so that it is nobody else's."""
