"""The trial database: what may be asked of it, whatever database is behind.

    store = Store.open("sqlite:////var/lib/trialtap/trials.db")
    future = store.report(Report("trial-1", [NewRow(*database_time("2026-01-31T12:00:00.5Z"), "loss", "0.3")]))
    future.result()                                   # durable now
    for chunk in store.rows(Selection("trial-1")):    # lists of Row, memory stays flat
        ...

Everything here blocks (call it from a thread) but `report`, which answers a future. Errors: `RefusedError`,
`BehindError`, `AmbiguousError`, `UnavailableError` of dbmanager.rows; no database driver's error gets out.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Final

from sqlalchemy import ColumnElement, Connection, String, and_, cast, func, literal, not_, or_, select
from sqlalchemy import delete as delete_from
from sqlalchemy import update as update_of

from dbmanager.bus import Bus
from dbmanager.databases import Database, database_errors, same_text, unavailable
from dbmanager.migrate import connect
from dbmanager.rows import (
    AmbiguousError,
    MetricSummary,
    Outcome,
    Report,
    Row,
    Selection,
    Stream,
    TrialKey,
    split_time,
)
from dbmanager.schema import LOGS, STREAMS
from dbmanager.summary import Summary
from dbmanager.writer import Writer

CHUNK: Final = 2_000
"""Rows in one chunk of `Store.rows`."""
STREAM_KEPT: Final = 30 * 24 * 3600 * 1000
"""Milliseconds for which a stream without rows is remembered after it was last heard of."""


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class Store:
    """See the module. `bus` wakes live readers after each commit of this process."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.bus = Bus()
        self._writer = Writer(database, self.bus, now_ms)

    @classmethod
    def open(cls, url: str, *, migrate: bool = True, convert: bool = False) -> "Store":
        """Connect, bring the tables up to date (`migrate`), and start the writer.

        Args:
            url: a SQLAlchemy URL: `sqlite:////abs/path`, `postgresql://…`, `mysql://…`.
            migrate: create or alter the tables where needed; False: they must be as wanted.
            convert: also convert a MySQL table of another character set to utf8mb4.

        Raises:
            UnavailableError: the database cannot be reached.
            RefusedError: the tables cannot be used as they are; the text says what to do.
        """
        return cls(connect(url, migrate=migrate, convert=convert))

    def report(self, report: Report) -> "Future[Outcome]":
        """Store rows; the future's result is there once they are durable.

        Limits (names, values, NUL) are checked by `dbmanager.limits.check` before this.

        The future raises:
            BehindError: `origin.first` is ahead of what was stored, and no gap was declared.
            RefusedError: the stream is another trial's, or the database cannot hold the text.
            UnavailableError: the database did not do it; nothing of the report was stored.
        """
        return self._writer.submit(report)

    def rows(self, selection: Selection) -> Iterator[list[Row]]:
        """The rows selected in the order (time, ns, id), in chunks of at most `CHUNK`; none: no chunk.

        The database's cursor is read as the iterator goes on. Close the iterator when leaving early.

        Raises:
            AmbiguousError: no namespace given and several hold the trial.
            UnavailableError: the database cannot be read.
        """
        with self.reading(stream=True) as connection:
            query = (
                select(
                    LOGS.c.id,
                    cast(LOGS.c.time, String).label("time"),
                    func.coalesce(LOGS.c.ns, 0),
                    LOGS.c.metric_name,
                    LOGS.c.value,
                    LOGS.c.step,
                    LOGS.c.namespace,
                    LOGS.c.stream,
                )
                .where(self.belongs(connection, selection.trial_name, selection.namespace))
                .where(*self._conditions(selection))
                .limit(selection.limit)
            )
            query = query.order_by(LOGS.c.id) if selection.by_id else self.database.in_order(query)
            result = connection.execute(query.execution_options(yield_per=CHUNK))
            try:
                chunks = ([_row(*row) for row in chunk] for chunk in result.partitions())
                yield from chunks if selection.by_id or not self.database.orders_by_index else settled(chunks)
            except GeneratorExit:
                self.database.abandon(connection)
                raise

    def delete(self, trial_name: str, namespace: str | None = None) -> int:
        """Delete the trial's rows and leave tombstones of its streams, in one transaction; the rows deleted.

        Raises:
            AmbiguousError: no namespace given and several hold the trial: nothing is deleted.
            UnavailableError: the database did not do it.
        """

        def delete(connection: Connection) -> int:
            belongs = self.belongs(connection, trial_name, namespace)
            streams = and_(
                same_text(self.database, STREAMS.c.trial_name, trial_name), STREAMS.c.deleted_at.is_(None)
            )
            if namespace is not None:
                streams = and_(
                    streams, STREAMS.c.namespace.in_(self._owners(connection, trial_name, namespace))
                )
            # Tombstones first: their row locks make a report of the same streams wait.
            connection.execute(update_of(STREAMS).where(streams).values(deleted_at=now_ms()))
            return connection.execute(delete_from(LOGS).where(belongs)).rowcount

        deleted = self._writer.call(delete).result()
        self.bus.publish([trial_name])
        return deleted

    def trials(self, namespace: str | None = None) -> list[TrialKey]:
        """The trials that have rows or live streams, by namespace and name; `namespace` None = all.

        A trial whose rows have no namespace and whose streams have none either is `TrialKey(None, name)`;
        where exactly one namespace holds a trial of that name, rows without namespace count to it.
        """
        with self.reading() as connection:
            held = {
                TrialKey(found or None, name)
                for found, name in connection.execute(
                    select(STREAMS.c.namespace, STREAMS.c.trial_name)
                    .where(STREAMS.c.deleted_at.is_(None))
                    .distinct()
                )
            }
            known = {key.name for key in held}
            if namespace is not None:
                return sorted(key for key in held if key.namespace == namespace)
            names = self._names_with_rows(connection)
        held.update(TrialKey(None, name) for name in names if name not in known)
        return sorted(held, key=lambda key: (key.namespace or "", key.name))

    def namespaces(self, trial_name: str) -> list[str]:
        """The namespaces whose writers said that they hold a trial of that name, sorted."""
        with self.reading() as connection:
            return self._namespaces(connection, trial_name)

    def streams(self, trial_name: str, namespace: str | None = None) -> list[Stream]:
        """The trial's streams that are not tombstones, in the order of attempt, pod, id."""
        with self.reading() as connection:
            query = select(STREAMS).where(
                same_text(self.database, STREAMS.c.trial_name, trial_name), STREAMS.c.deleted_at.is_(None)
            )
            if namespace is not None:
                query = query.where(STREAMS.c.namespace.in_(self._owners(connection, trial_name, namespace)))
            found = [Stream(*row) for row in connection.execute(query)]
        return sorted(found, key=lambda stream: (stream.attempt, stream.pod, stream.id))

    def summary(self, trial_name: str, namespace: str | None = None) -> list[MetricSummary]:
        """Each metric's count, min, max and latest, by name; all attempts together.

        It reads every row of the trial; a `dbmanager.summary.Summary` kept by the caller and fed with the
        rows after the last id does the same step by step.

        Raises:
            AmbiguousError: no namespace given and several hold the trial.
            UnavailableError: the database cannot be read.
        """
        summary = Summary()
        for chunk in self.rows(Selection(trial_name, namespace)):
            summary.add(chunk)
        return summary.metrics()

    def ping(self) -> None:
        """Ask the database for an answer.

        Raises:
            UnavailableError: it gave none.
        """
        with self.reading() as connection:
            connection.execute(select(literal(1)))

    def purge(self, keep_days: float | None = None) -> tuple[int, int]:
        """Delete trials not written to for `keep_days` (None: none); forget streams unseen for 30 days without rows.

        Each trial goes in a transaction of its own, so that reports pass between them.

        Returns:
            How many rows and how many streams were deleted.

        Raises:
            UnavailableError: the database did not do it.
        """
        rows = self._purge_trials(now_ms() - int(keep_days * 86_400_000)) if keep_days is not None else 0
        cutoff = now_ms() - STREAM_KEPT

        def forget(connection: Connection) -> int:
            has_rows = (
                select(literal(1))
                .where(LOGS.c.trial_name == STREAMS.c.trial_name, LOGS.c.stream == STREAMS.c.id)
                .exists()
            )
            return connection.execute(
                delete_from(STREAMS).where(STREAMS.c.seen_at < cutoff, not_(has_rows))
            ).rowcount

        return rows, self._writer.call(forget).result()

    def waiting(self) -> int:
        """Reports that wait for the next transaction."""
        return self._writer.waiting()

    def close(self, timeout: float = 30) -> None:
        """Finish what was submitted, then close every connection."""
        self._writer.close(timeout)
        self.database.dispose()

    def _purge_trials(self, cutoff_ms: int) -> int:
        """A trial is old when its streams were last heard of, and its newest row written, before the cutoff."""
        cutoff, _ = split_time(cutoff_ms * 1_000_000)
        newest = func.max(LOGS.c.time)
        with self.reading() as connection:
            names = self.database.distinct_trial_names(connection)
        total = 0
        for name in names:

            def delete(connection: Connection, name: str = name) -> int:
                mine = same_text(self.database, LOGS.c.trial_name, name)
                streams = same_text(self.database, STREAMS.c.trial_name, name)
                heard = connection.execute(select(func.max(STREAMS.c.seen_at)).where(streams)).scalar()
                if heard is not None and heard >= cutoff_ms:
                    return 0
                if heard is None:  # rows of writers without streams have nothing but their own times
                    last = connection.execute(select(cast(newest, String)).where(mine)).scalar()
                    # Year 1 is the time of `unavailable`: it does not say when it was written.
                    if last is None or last >= cutoff or last.startswith("0001"):
                        return 0
                connection.execute(
                    update_of(STREAMS)
                    .where(streams, STREAMS.c.deleted_at.is_(None))
                    .values(deleted_at=now_ms())
                )
                return connection.execute(delete_from(LOGS).where(mine)).rowcount

            total += self._writer.call(delete).result()
        return total

    @contextmanager
    def reading(self, *, stream: bool = False) -> Iterator[Connection]:
        """A connection to read by; `stream`: results are fetched as they are read.

        Raises:
            UnavailableError: the database cannot be read.
        """
        try:
            with self.database.readers.connect() as connection:
                yield connection.execution_options(stream_results=stream)
        except database_errors() as error:
            raise unavailable(error) from error

    def _namespaces(self, connection: Connection, trial_name: str) -> list[str]:
        return sorted(
            set(
                connection.execute(
                    select(STREAMS.c.namespace).where(
                        same_text(self.database, STREAMS.c.trial_name, trial_name),
                        STREAMS.c.deleted_at.is_(None),
                        STREAMS.c.namespace != "",
                    )
                ).scalars()
            )
        )

    def _owners(self, connection: Connection, trial_name: str, namespace: str) -> list[str]:
        """Which streams' namespaces are meant: streams without one are the only namespace's that is known."""
        alone = set(self._namespaces(connection, trial_name)) <= {namespace}
        return [namespace, ""] if alone else [namespace]

    def belongs(self, connection: Connection, trial_name: str, namespace: str | None) -> ColumnElement[bool]:
        """Which rows are that trial's.

        Rows without a namespace are the trial's as long as no second namespace holds one of that name.
        """
        mine = same_text(self.database, LOGS.c.trial_name, trial_name)
        held = self._namespaces(connection, trial_name)
        if namespace is None:
            if len(held) > 1:
                raise AmbiguousError(trial_name, held)
            return mine
        named = same_text(self.database, LOGS.c.namespace, namespace)
        if set(held) <= {namespace}:
            return and_(mine, or_(named, LOGS.c.namespace.is_(None)))
        return and_(mine, named)

    def _conditions(self, wanted: Selection) -> Sequence[ColumnElement[bool]]:
        conditions: list[ColumnElement[bool]] = []
        if wanted.metrics:
            conditions.append(
                or_(*(same_text(self.database, LOGS.c.metric_name, name) for name in wanted.metrics))
            )
        ns = func.coalesce(LOGS.c.ns, 0)
        if wanted.start is not None:
            text, below = split_time(wanted.start)
            at = self.database.time(text)
            conditions += [LOGS.c.time >= at, not_(and_(LOGS.c.time == at, ns < below))]
        if wanted.end is not None:
            text, below = split_time(wanted.end)
            at = self.database.time(text)
            conditions += [LOGS.c.time <= at, not_(and_(LOGS.c.time == at, ns > below))]
        if wanted.first_step is not None:
            conditions.append(LOGS.c.step >= wanted.first_step)
        if wanted.last_step is not None:
            conditions.append(LOGS.c.step <= wanted.last_step)
        if wanted.streams:
            conditions.append(LOGS.c.stream.in_(wanted.streams))
        if wanted.after is not None:
            conditions.append(LOGS.c.id > wanted.after)
        return conditions

    def _names_with_rows(self, connection: Connection) -> list[str]:
        """Every trial name of the big table, by hops through its index instead of a scan of it."""
        return self.database.distinct_trial_names(connection)


def settled(chunks: Iterable[list[Row]]) -> Iterator[list[Row]]:
    """Rows in the order (time, id) brought into the order (time, ns, id).

    Only rows of the same microsecond may change places, so that only the last of them wait for the next chunk.
    """
    held: list[Row] = []
    for chunk in chunks:
        held += chunk
        last = held[-1].time
        if held[0].time == last:
            continue
        cut = next(index for index in range(len(held) - 1, -1, -1) if held[index].time != last) + 1
        yield from _slices(sorted(held[:cut], key=_moment))
        held = held[cut:]
    yield from _slices(sorted(held, key=_moment))


def _slices(rows: list[Row]) -> Iterator[list[Row]]:
    return (rows[at : at + CHUNK] for at in range(0, len(rows), CHUNK))


def _moment(row: Row) -> tuple[str, int, int]:
    return row.time, row.ns, row.id


def _row(  # noqa: PLR0913, PLR0917 - a row's columns
    id_: int,
    at: str | None,
    ns: int,
    name: str,
    value: str,
    step: int | None,
    namespace: str | None,
    stream: str | None,
) -> Row:
    if at is None:
        at = "0001-01-01 00:00:00.000000"
    elif len(at) != 26:  # PostgreSQL leaves out trailing zeros
        at = f"{at[:19]}.{at[20:].ljust(6, '0')}"
    return Row(id_, at, ns, name, value, step, namespace, stream)
