"""The one thread that writes: whatever waits when a commit ends goes into the next transaction together."""

import hashlib
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar, cast

import psycopg
import pymysql
from sqlalchemy import Connection, Executable, bindparam, select, update
from sqlalchemy.dialects import mysql, postgresql, sqlite

from dbmanager.bus import Bus
from dbmanager.databases import Batch, Database, database_errors, driver_error, error_text, unavailable
from dbmanager.rows import (
    BehindError,
    NewRow,
    Origin,
    Outcome,
    RefusedError,
    Report,
    StoreError,
    Stream,
    UnavailableError,
)
from dbmanager.schema import STREAMS

log = logging.getLogger(__name__)
Answer = TypeVar("Answer")

GROUP_ROWS: Final = 20_000
"""A transaction takes no more reports once it has so many rows."""
GROUP_REPORTS: Final = 500

_SELECT = select(STREAMS).where(STREAMS.c.id.in_(bindparam("ids", expanding=True))).order_by(STREAMS.c.id)
_UPDATE = (
    update(STREAMS)
    .where(STREAMS.c.id == bindparam("stream"))
    .values({name: bindparam(f"new_{name}") for name in ("next", "ended_at", "seen_at", "deleted_at")})
)
_INSERT_ABSENT: Final[dict[str, Executable]] = {
    "sqlite": sqlite.insert(STREAMS).on_conflict_do_nothing(),
    "postgresql": postgresql.insert(STREAMS).on_conflict_do_nothing(),
    "mysql": mysql.insert(STREAMS).on_duplicate_key_update(id=STREAMS.c.id),
}


class _Job(NamedTuple):
    """A report, or a function of its own transaction."""

    future: "Future[Any]"
    report: Report | None = None
    function: Callable[[Connection], Any] | None = None


class _State:
    """A stream inside a transaction: as it was locked, moved on by the reports of the group."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.next = stream.next
        self.ended_at = stream.ended_at
        self.deleted_at = stream.deleted_at
        self.dirty = False


class Writer:
    """Takes reports from any thread and stores them in the order in which they came.

    Group commit: with one client a transaction holds one report; with two hundred, the reports that
    arrived during the last commit share the next one, so that the total does not fall with their number.
    The locks of streams are taken in the order of their ids, so that several processes cannot deadlock.
    """

    def __init__(self, database: Database, bus: Bus, clock: Callable[[], int]) -> None:
        self._database = database
        self._bus = bus
        self._clock = clock
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._connection: Connection | None = None
        self._committing = False
        self._closed = False
        self._select = _SELECT if database.kind == "sqlite" else _SELECT.with_for_update()
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def submit(self, report: Report) -> "Future[Outcome]":
        """See `Store.report`."""
        return self._put(_Job(Future(), report=report))

    def call(self, function: Callable[[Connection], Answer]) -> "Future[Answer]":
        """Run a function in a transaction of its own, after what was submitted before it."""
        return self._put(_Job(Future(), function=function))

    def close(self, timeout: float) -> None:
        """Finish what was submitted, at most `timeout` seconds."""
        self._closed = True
        self._queue.put(None)
        self._thread.join(timeout)

    def waiting(self) -> int:
        """Reports not yet taken into a transaction."""
        return self._queue.qsize()

    def _put(self, job: _Job) -> "Future[Any]":
        if self._closed:
            job.future.set_exception(UnavailableError("the DB manager is stopping; send it again"))
        else:
            self._queue.put(job)
        return job.future

    def _run(self) -> None:
        left: _Job | None = None
        while True:
            job = left or self._queue.get()
            left = None
            if job is None:
                break
            if job.function is not None:
                self._finish_call(job)
                continue
            group, left, stop = self._gather(job)
            self._finish_group(group)
            if stop:
                break
        self._disconnect()

    def _gather(self, first: _Job) -> tuple[list[_Job], _Job | None, bool]:
        """The first report and those waiting behind it; a job that must come after; whether to stop."""
        group = [first]
        rows = len(first.report.rows) if first.report else 0
        while rows < GROUP_ROWS and len(group) < GROUP_REPORTS:
            try:
                job = self._queue.get_nowait()
            except queue.Empty:
                break
            if job is None:
                return group, None, True
            if job.report is None:
                return group, job, False
            group.append(job)
            rows += len(job.report.rows)
        return group, None, False

    def _finish_call(self, job: _Job) -> None:
        assert job.function is not None  # noqa: S101 - the caller looked
        try:
            _answer(job, self._transaction(job.function))
        except StoreError as error:
            _fail(job, error)
        except database_errors() as error:
            _fail(job, unavailable(error))
        except Exception as error:
            log.exception("a transaction failed")
            _fail(job, UnavailableError(f"internal error: {type(error).__name__}; see the DB manager's log"))

    def _finish_group(self, group: Sequence[_Job]) -> None:
        reports = [job.report for job in group if job.report is not None]
        try:
            outcomes = self._transaction(lambda connection: self._store(connection, reports))
        except database_errors() as error:
            if len(group) > 1 and _is_data_error(error):
                for job in group:  # one row that the database cannot hold must not fail its neighbours
                    self._finish_group([job])
                return
            failure = _refused(error) if _is_data_error(error) else unavailable(error)
            log.warning("%d report(s) were not stored: %s", len(group), failure)
            for job in group:
                _fail(job, failure)
            return
        except Exception as error:
            log.exception("%d report(s) were not stored", len(group))
            for job in group:
                _fail(
                    job, UnavailableError(f"internal error: {type(error).__name__}; see the DB manager's log")
                )
            return
        stored = set()
        for job, report, outcome in zip(group, reports, outcomes, strict=True):
            if isinstance(outcome, StoreError):
                _fail(job, outcome)
            else:
                _answer(job, outcome)
                if outcome.stored:
                    stored.add(report.trial_name)
        self._bus.publish(stored)

    def _transaction(self, function: Callable[[Connection], Answer]) -> Answer:
        """Run and commit; once more on a fresh connection when the failure came before COMMIT was sent.

        Before COMMIT nothing can have been stored, so that trying again cannot store it twice; a failed
        COMMIT leaves that open, and the writer's ordinals settle it.
        """
        for last in (False, True):
            self._committing = False
            try:
                connection = self._connect()
                with connection.begin():
                    answer = function(connection)
                    self._committing = True
                return answer
            except StoreError:
                raise  # the transaction was rolled back
            except database_errors() as error:
                # Whatever state the connection is in, the next transaction gets another.
                self._disconnect()
                again = not (last or self._committing or _is_data_error(error))
                if not again or self._database.kind == "sqlite":
                    raise
            except Exception:
                self._disconnect()
                raise
        raise AssertionError  # the loop returns or raises

    def _connect(self) -> Connection:
        if self._connection is None or self._connection.closed or self._connection.invalidated:
            self._disconnect()
            self._connection = self._database.writers.connect()
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(*database_errors()):
                connection.invalidate()
            with suppress(*database_errors()):
                connection.close()

    def _store(self, connection: Connection, reports: Sequence[Report]) -> list[Outcome | StoreError]:
        now = self._clock()
        states = self._lock(connection, reports, now)
        batches: list[Batch] = []
        outcomes: list[Outcome | StoreError] = []
        for report in reports:
            origin = origin_of(report)
            if origin is None:
                rows = present(report, report.rows)
                outcomes.append(Outcome(len(rows), 0))
            elif report.origin is None:
                rows = append(states[origin.stream], report, now)
                outcomes.append(Outcome(len(rows), 0))
            else:
                outcome, rows = advance(states[origin.stream], report, origin, now)
                outcomes.append(outcome)
            if rows:
                namespace, stream = (origin.namespace or None, origin.stream) if origin else (None, None)
                batches.append(Batch(report.trial_name, namespace, stream, rows))
        if batches:
            self._database.insert(connection, batches)
        changed = [
            {
                "stream": state.stream.id,
                "new_next": state.next,
                "new_ended_at": state.ended_at,
                "new_seen_at": now,
                "new_deleted_at": state.deleted_at,
            }
            for state in states.values()
            if state.dirty
        ]
        if changed:
            connection.execute(_UPDATE, changed)
        return outcomes

    def _lock(self, connection: Connection, reports: Sequence[Report], now: int) -> dict[str, _State]:
        """The streams of the reports, locked; those absent are inserted first."""
        origins: dict[str, tuple[Origin, str]] = {}
        for report in reports:
            origin = origin_of(report)
            if origin is not None:
                origins[origin.stream] = (origin, report.trial_name)
        if not origins:
            return {}
        ids = sorted(origins)
        states = self._select_streams(connection, ids)
        absent = [stream for stream in ids if stream not in states]
        if absent:
            rows = [
                {
                    "id": stream,
                    "namespace": origin.namespace,
                    "trial_name": trial_name,
                    "pod": origin.pod,
                    "attempt": origin.attempt,
                    "next": 0,
                    "seen_at": now,
                }
                for stream in absent
                for origin, trial_name in (origins[stream],)
            ]
            connection.execute(_INSERT_ABSENT[self._database.kind], rows)
            states |= self._select_streams(connection, absent)
        return states

    def _select_streams(self, connection: Connection, ids: Sequence[str]) -> dict[str, _State]:
        found = connection.execute(self._select, {"ids": ids})
        return {row[0]: _State(Stream(*row)) for row in found}


def origin_of(report: Report) -> Origin | None:
    """The report's origin; for a writer without one whose token named its namespace, one of our making.

    Such a stream is what tells that this namespace holds the trial.
    """
    if report.origin is not None or report.namespace is None:
        return report.origin
    digest = hashlib.sha256(f"{report.namespace}/{report.trial_name}".encode()).hexdigest()
    return Origin(report.namespace, "", f"push-{digest}")


def append(state: _State, report: Report, now: int) -> Sequence[NewRow]:
    """Rows of a writer without ordinals: all are new, also after a delete, and none are waited for."""
    rows = present(report, report.rows)
    state.next += len(rows)
    state.ended_at = now
    state.deleted_at = None
    state.dirty = True
    return rows


def present(report: Report, rows: Sequence[NewRow | None]) -> Sequence[NewRow]:
    """The rows without those that have no time."""
    if not report.skipped:
        return cast("Sequence[NewRow]", rows)
    return [row for row in rows if row is not None]


def advance(
    state: _State, report: Report, origin: Origin, now: int
) -> tuple[Outcome | StoreError, Sequence[NewRow]]:
    """What a report does to its stream, and which of its rows are new.

    A tombstone swallows everything and says OK: a late flush must not raise the dead. Rows before the
    ordinal expected were stored already. A report ahead of it is answered `BehindError`, unless it
    declares the rows between lost.
    """
    stream = state.stream
    if (stream.namespace, stream.trial_name) != (origin.namespace, report.trial_name):
        return RefusedError(
            "origin.stream",
            f"{stream.id} belongs to trial {stream.trial_name} of namespace {stream.namespace}",
        ), ()
    if stream.deleted_at is not None:
        return Outcome(0, max(state.next, origin.first + len(report.rows)), tombstone=True), ()
    lost = 0
    if origin.first > state.next:
        if not origin.gap:
            return BehindError(stream.id, origin.first, state.next), ()
        lost = origin.first - state.next
        state.next = origin.first
    rows = present(report, report.rows[state.next - origin.first :])
    state.next = max(state.next, origin.first + len(report.rows))
    state.dirty = True
    if origin.end and state.ended_at is None:
        state.ended_at = now
    return Outcome(len(rows), state.next, lost=lost), rows


def _is_data_error(error: BaseException) -> bool:
    """The database answered, and would answer the same again: this row cannot be stored."""
    original = driver_error(error)
    return isinstance(original, psycopg.DataError | pymysql.err.DataError) or (
        # MySQL files 'incorrect string value' (1366) under OperationalError.
        isinstance(original, pymysql.err.OperationalError) and original.args[:1] == (1366,)
    )


def _refused(error: BaseException) -> RefusedError:
    return RefusedError("observation_log", f"the database cannot hold it: {error_text(driver_error(error))}")


def _answer(job: _Job, answer: Any) -> None:
    with suppress(InvalidStateError):  # its caller went away
        job.future.set_result(answer)


def _fail(job: _Job, error: StoreError) -> None:
    with suppress(InvalidStateError):
        job.future.set_exception(error)
