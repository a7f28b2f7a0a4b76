"""A stored row as one self-contained record: a line of NDJSON, a line of CSV, an object of REST."""

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import orjson

from dbmanager.rows import Row, Stream


class Record(NamedTuple):
    """A point and everything that says where it came from. The names of the fields are those of the files.

    Attributes:
        trial: the Trial's name.
        namespace: None when its writer did not say.
        name: the metric.
        value: text, usually a number.
        time: RFC 3339 in UTC, up to nine fraction digits.
        step: training step or None.
        pod: None when its writer did not say; `stream` and `attempt` likewise.
        stream: id of the source of that pod.
        ordinal: number of the row in its stream, from 0; None where the row has none.
        attempt: number of the trial's attempt, from 0.
        id: the row's key in the database it was read from; None elsewhere.
    """

    trial: str
    namespace: str | None
    name: str
    value: str
    time: str
    step: int | None
    pod: str | None
    stream: str | None
    ordinal: int | None
    attempt: int | None
    id: int | None = None


FIELDS: Final = Record._fields


def record(trial: str, row: Row, streams: Mapping[str, Stream], ordinal: int | None = None) -> Record:
    """The row with its stream's pod and attempt."""
    stream = streams.get(row.stream) if row.stream is not None else None
    return Record(
        trial,
        row.namespace,
        row.name,
        row.value,
        row.rfc3339,
        row.step,
        stream.pod if stream else None,
        row.stream,
        ordinal,
        stream.attempt if stream else None,
        row.id,
    )


def ndjson(records: Iterable[Record]) -> bytes:
    """One JSON object a line."""
    return b"".join(
        orjson.dumps(dict(zip(FIELDS, record, strict=True)), option=orjson.OPT_APPEND_NEWLINE)
        for record in records
    )


def csv_head() -> bytes:
    """The line of column names."""
    return (",".join(FIELDS) + "\r\n").encode()


def csv_lines(records: Iterable[Record]) -> bytes:
    """RFC 4180 lines, None as the empty field."""
    text = io.StringIO()
    csv.writer(text).writerows(records)
    return text.getvalue().encode()
