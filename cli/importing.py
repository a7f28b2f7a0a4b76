"""`trialtap db import`: records of files into a database or a DB manager, each once however often it is run."""

import csv
import io
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import orjson

from cli.readers import CommandError, Reader, StoreReader
from dbmanager.limits import check
from dbmanager.records import FIELDS, Record
from dbmanager.rows import BehindError, NewRow, Origin, RefusedError, Report, StoreError, database_time

BATCH: Final = 2_000
"""Rows in one report."""
WAITING: Final = 200_000
"""Rows kept in memory at most before they are reported."""
_NEEDED: Final = ("trial", "name", "value", "time")


class Sink(Protocol):
    """Takes reports."""

    def report(self, report: Report) -> int:
        """Store; how many rows were new.

        Raises:
            BehindError: rows before the first are missing.
            RefusedError: a row that cannot be stored.
            CommandError: it did not work.
        """


class StoreSink:
    """A database, written directly."""

    def __init__(self, reader: StoreReader) -> None:
        self._store = reader.store

    def report(self, report: Report) -> int:
        """See Sink."""
        check(report, self._store.database.codecs)
        try:
            return self._store.report(report).result().stored
        except (BehindError, RefusedError):
            raise
        except StoreError as error:
            raise CommandError(str(error)) from error


class GrpcSink:
    """A DB manager, by Katib's API with trialtap's origin."""

    def __init__(self, address: str, channel: Any) -> None:
        from trialtap import messages  # noqa: PLC0415 - protobuf is loaded only where it is needed

        self._address = address
        self._messages = messages
        self._call = channel.unary_unary(
            messages.REPORT.path,
            request_serializer=messages.REPORT.request.SerializeToString,
            response_deserializer=messages.REPORT.reply.FromString,
        )
        self._next: dict[str, int] = {}

    def report(self, report: Report) -> int:
        """See Sink. What was new is what the stream's `next` went on by."""
        import grpc  # noqa: PLC0415

        if report.origin is not None and report.origin.stream not in self._next:
            # A report without rows changes nothing and tells what is stored already.
            self._next[report.origin.stream] = 0
            self.report(report._replace(rows=[], origin=report.origin._replace(first=0, gap=False)))
        m = self._messages
        request = m.ReportObservationLogRequest(trial_name=report.trial_name)
        for row in report.rows:
            if row is None:  # without a time it takes an ordinal and is not stored
                request.observation_log.metric_logs.add().metric.name = "-"
                continue
            log = request.observation_log.metric_logs.add(
                time_stamp=f"{row.time[:10]}T{row.time[11:]}{row.ns:03d}Z"
            )
            log.metric.name, log.metric.value = row.name, row.value
            if row.step is not None:
                log.step = row.step
        origin = report.origin
        if origin is not None:
            for name in ("namespace", "pod", "stream", "first", "attempt", "gap"):
                setattr(request.origin, name, getattr(origin, name))
        try:
            reply = self._call(request, timeout=60)
        except grpc.RpcError as error:
            expected = dict(error.trailing_metadata() or ()).get(m.NEXT_METADATA)
            if origin is not None and expected is not None:
                raise BehindError(origin.stream, origin.first, int(expected)) from error
            if error.code() == grpc.StatusCode.INVALID_ARGUMENT:
                raise RefusedError("the DB manager", str(error.details())) from error
            raise CommandError(f"{self._address}: {error.details() or error.code().name}") from error
        if origin is None:
            return len(report.rows)
        if reply.next < origin.first + len(report.rows):
            raise CommandError(
                f"{self._address}: this DB manager knows no streams, so rows of a second import would be doubled; "
                "give one of trialtap, or the database itself"
            )
        before, self._next[origin.stream] = self._next[origin.stream], reply.next
        return min(len(report.rows), max(0, int(reply.next) - max(before, origin.first)))


@dataclass
class Tally:
    """What an import did."""

    stored: int = 0
    known: int = 0
    skipped: int = 0
    """Lines that are no record."""
    refused: int = 0
    """Records that no database of ours takes."""
    first_refusal: str = ""
    trials: set[str] = field(default_factory=set)


def parse(lines: Iterable[str], tally: Tally) -> Iterator[Record]:
    """Records of NDJSON with any other lines between, or of CSV with a line of names first."""
    lines = iter(lines)
    for line in lines:
        if line.startswith(FIELDS[0] + ","):
            yield from _parse_csv(line, lines, tally)
            return
        begin = line.find('{"')  # `kubectl logs --timestamps` puts a time before it
        if begin < 0:
            tally.skipped += bool(line.strip())
            continue
        try:
            found = orjson.loads(line[begin:])
        except ValueError:
            tally.skipped += 1
            continue
        record = _record(found)
        if record is None:
            tally.skipped += 1
        else:
            yield record


def _parse_csv(head: str, lines: Iterator[str], tally: Tally) -> Iterator[Record]:
    for row in csv.DictReader(lines, fieldnames=next(csv.reader(io.StringIO(head)))):
        found: dict[str, Any] = {name: value or None for name, value in row.items() if isinstance(name, str)}
        found |= {name: row.get(name) or "" for name in _NEEDED}
        try:
            found |= {
                name: int(found[name]) for name in ("step", "ordinal", "attempt", "id") if found.get(name)
            }
        except ValueError:
            tally.skipped += 1
            continue
        record = _record(found)
        if record is None:
            tally.skipped += 1
        else:
            yield record


def _record(found: Any) -> Record | None:
    """The record that an object is; None when it is something else that was logged."""
    if not isinstance(found, dict) or not all(isinstance(found.get(name), str) for name in _NEEDED):
        return None
    kinds: dict[str, tuple[type, ...]] = dict.fromkeys(FIELDS, (str,)) | dict.fromkeys(
        ("step", "ordinal", "attempt", "id"), (int,)
    )
    if any(found.get(name) is not None and type(found[name]) not in kinds[name] for name in FIELDS):
        return None
    values: list[Any] = [found.get(name) for name in FIELDS]
    return Record(*values)


class Importer:
    """Feeds records to a sink.

    Rows of a stream are told by their ordinal: what is stored already is known. Rows without one are
    compared with what the trial holds. Rows that leave a hole wait until every file is read.
    """

    def __init__(self, sink: Sink, reader: Reader, namespace: str | None, tally: Tally) -> None:
        self._sink = sink
        self._reader = reader
        self._namespace = namespace
        self._tally = tally
        self._pending: defaultdict[str, list[Record]] = defaultdict(list)
        self._held: defaultdict[str, list[Record]] = defaultdict(list)
        self._plain: defaultdict[tuple[str, str | None], list[Record]] = defaultdict(list)
        self._there: dict[tuple[str, str | None], Counter[tuple[object, ...]]] = {}
        self._bad: set[Record] = set()
        self._waiting = 0

    def feed(self, records: Iterable[Record]) -> None:
        """Take records in.

        Raises:
            CommandError: the sink did not do it; running the import again goes on from there.
        """
        for found in records:
            record = found._replace(namespace=found.namespace or self._namespace)
            self._tally.trials.add(record.trial)
            if record.stream is not None and record.ordinal is not None and record.namespace:
                self._pending[record.stream].append(record)
                if len(self._pending[record.stream]) >= BATCH:
                    self._flush(record.stream)
            else:
                self._plain[record.trial, record.namespace].append(record)
            self._waiting += 1
            if self._waiting >= WAITING:
                self._flush_all()

    def finish(self) -> None:
        """Report what waits; holes are declared lost. Raises like `feed`."""
        self._flush_all()
        for stream, held in self._held.items():
            for run in _runs(held):
                self._report(stream, run, gap=True)
        self._held.clear()

    def _flush_all(self) -> None:
        for stream in list(self._pending):
            self._flush(stream)
        for (trial, namespace), records in self._plain.items():
            self._report_plain(trial, namespace, records)
        self._plain.clear()
        self._waiting = 0

    def _flush(self, stream: str) -> None:
        for run in _runs(self._pending.pop(stream, [])):
            self._report(stream, run, gap=False)

    def _report(self, stream: str, records: list[Record], *, gap: bool) -> None:
        first = records[0]
        rows = [self._row(record) for record in records]
        good = len(rows) - rows.count(None)
        origin = Origin(
            first.namespace or "", first.pod or "", stream, first.ordinal or 0, False, first.attempt or 0, gap
        )
        try:
            stored = self._sink.report(Report(first.trial, rows, origin, skipped=len(rows) - good))
        except BehindError:
            self._held[stream] += records
            return
        except RefusedError as error:
            self._refuse(str(error), good)
            return
        self._tally.stored += stored
        self._tally.known += good - stored

    def _report_plain(self, trial: str, namespace: str | None, records: list[Record]) -> None:
        key = trial, namespace
        if key not in self._there:
            self._there[key] = Counter(map(_content, self._reader.records(trial, namespace)))
        there, fresh = self._there[key], []
        for record in records:
            if there[_content(record)] > 0:
                there[_content(record)] -= 1
                self._tally.known += 1
            elif (row := self._row(record)) is not None:
                fresh.append(row)
        for begin in range(0, len(fresh), BATCH):
            batch = fresh[begin : begin + BATCH]
            try:
                self._tally.stored += self._sink.report(Report(trial, batch, None, namespace))
            except RefusedError as error:
                self._refuse(str(error), len(batch))

    def _row(self, record: Record) -> NewRow | None:
        """The row to store; None, counted once, where no database takes it (it keeps its ordinal)."""
        try:
            row = NewRow(*database_time(record.time), record.name, record.value, record.step)
            check(Report(record.trial, [row]), {})
        except (ValueError, RefusedError) as error:
            if record not in self._bad:
                self._bad.add(record)
                self._refuse(str(error), 1)
            return None
        return row

    def _refuse(self, reason: str, count: int) -> None:
        self._tally.refused += count
        self._tally.first_refusal = self._tally.first_refusal or reason


def _runs(records: list[Record]) -> Iterator[list[Record]]:
    """The records of one stream in the order of their ordinals, in runs without holes; each ordinal once."""
    run: list[Record] = []
    for record in sorted(records, key=lambda record: record.ordinal or 0):
        if run and record.ordinal == run[-1].ordinal:
            continue
        if run and (record.ordinal != (run[-1].ordinal or 0) + 1 or len(run) >= BATCH):
            yield run
            run = []
        run.append(record)
    if run:
        yield run


def _content(record: Record) -> tuple[object, ...]:
    """What makes two rows without ordinal the same."""
    return record.name, record.value, database_time(record.time), record.step
