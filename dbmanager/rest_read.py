"""What REST reads of the store: lists, points, summaries and curves, as its models."""

import base64
import binascii
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np
import orjson
from sqlalchemy import case, func, select

from dbmanager import rest_models as models
from dbmanager.databases import same_text
from dbmanager.records import Record, record
from dbmanager.rest_columns import NO_STEP, ColumnCache, Columns, Holdings, read_holdings
from dbmanager.rest_curves import Curve, Floats, curve
from dbmanager.rest_scope import ApiError, Scope
from dbmanager.rows import Row, Selection, Stream, TrialKey
from dbmanager.schema import LOGS, STREAMS
from dbmanager.store import Store, now_ms
from dbmanager.summary import Summary
from trialtap.points import format_time, parse_time

LIVE_MS: Final = 60_000
"""A stream that was heard of within so many milliseconds and has not ended is live."""


def encode_cursor(*parts: Any) -> str:
    """Where a page ended, as text for a URL."""
    return base64.urlsafe_b64encode(orjson.dumps(parts)).decode().rstrip("=")


def decode_cursor(cursor: str | None, *kinds: type | tuple[type, ...]) -> list[Any] | None:
    """What `encode_cursor` was given.

    Raises:
        ApiError: 422, it is none of ours.
    """
    if cursor is None:
        return None
    try:
        parts = orjson.loads(base64.urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4)))
    except (ValueError, binascii.Error):
        parts = None
    if not isinstance(parts, list) or len(parts) != len(kinds) or not all(map(isinstance, parts, kinds)):
        raise ApiError(
            422, "cursor: is none that this API gave; begin without one and pass on `next` unchanged"
        )
    return parts


def list_trials(  # noqa: PLR0913, PLR0917 - the query's parameters
    store: Store, scope: Scope, namespace: str | None, prefix: str, limit: int, cursor: str | None
) -> models.Trials:
    """A page of the trials that the caller may read.

    Raises:
        ApiError: 403 for another's namespace, 422 for a strange cursor.
    """
    scope.check(namespace)
    after = decode_cursor(cursor, (str, type(None)), str)
    keys = [
        key
        for key in store.trials(namespace)
        if scope.covers(key.namespace) and key.name.startswith(prefix)
        if after is None or (key.namespace or "", key.name) > (after[0] or "", after[1])
    ]
    page = keys[:limit]
    seen = _stream_counts(store) if page else {}
    return models.Trials(
        trials=[_trial(key, seen) for key in page],
        next=encode_cursor(*page[-1]) if len(keys) > limit else None,
    )


def _stream_counts(store: Store) -> dict[TrialKey, tuple[int, int, int, int]]:
    """Attempts, pods, when last heard of and when last heard of an open stream, by trial."""
    open_seen = func.max(case((STREAMS.c.ended_at.is_(None), STREAMS.c.seen_at), else_=0))
    query = (
        select(
            STREAMS.c.namespace,
            STREAMS.c.trial_name,
            func.count(STREAMS.c.attempt.distinct()),
            func.count(STREAMS.c.pod.distinct()),
            func.max(STREAMS.c.seen_at),
            open_seen,
        )
        .where(STREAMS.c.deleted_at.is_(None))
        .group_by(STREAMS.c.namespace, STREAMS.c.trial_name)
    )
    with store.reading() as connection:
        return {
            TrialKey(ns, name): (a, p, seen, live or 0)
            for ns, name, a, p, seen, live in connection.execute(query)
        }


def _trial(key: TrialKey, seen: dict[TrialKey, tuple[int, int, int, int]]) -> models.Trial:
    attempts, pods, last, live = seen.get(key, (0, 0, 0, 0))
    return models.Trial(
        namespace=key.namespace,
        name=key.name,
        live=now_ms() - live < LIVE_MS,
        attempts=attempts,
        pods=pods,
        last_seen=format_time(last * 1_000_000) if last else None,
    )


class PointReader:
    """Points of one trial, by time.

    Raises in the constructor:
        ApiError: 422 for a strange cursor.
    """

    def __init__(
        self,
        store: Store,
        selection: Selection,
        attempt: int | None = None,
        pod: str | None = None,
        cursor: str | None = None,
    ) -> None:
        self._ordinals = first_ordinals(store, selection, self._all(selection, attempt, pod))
        self._trial = selection.trial_name
        self._streams = {s.id: s for s in store.streams(selection.trial_name, selection.namespace)}
        self._wanted = attempt, pod
        self._after = decode_cursor(cursor, str, int, int)
        start = selection.start
        if self._after is not None:
            at, ns, _ = self._after
            resumed = _nanoseconds(at, ns)
            start = resumed if start is None else max(start, resumed)
        self._selection = Selection(**(asdict(selection) | {"start": start}))
        self._store = store

    def chunks(self) -> Iterator[list[Record]]:
        """Records in lists of bounded length."""
        for chunk in self._store.rows(self._selection):
            records = [
                record(self._trial, row, self._streams, self._ordinal(row))
                for row in chunk
                if self._passes(row)
            ]
            if records:
                yield records

    @staticmethod
    def _all(selection: Selection, attempt: int | None, pod: str | None) -> bool:
        """Whether every row is read in the order of storing, so that rows can be numbered by counting."""
        whole = Selection(selection.trial_name, selection.namespace, after=selection.after, by_id=True)
        return selection == whole and attempt is None and pod is None

    def _ordinal(self, row: Row) -> int | None:
        found = self._ordinals.get(row.stream) if row.stream is not None else None
        if found is not None and row.stream is not None:
            self._ordinals[row.stream] = found + 1
        return found

    def page(self, limit: int) -> models.Points:
        """At most `limit` of them."""
        points: list[Row] = []
        for chunk in self._store.rows(self._selection):
            points += [row for row in chunk if self._passes(row)]
            if len(points) > limit:
                break
        page = points[:limit]
        return models.Points(
            points=[_point(record(self._trial, row, self._streams)) for row in page],
            next=encode_cursor(page[-1].time, page[-1].ns, page[-1].id) if len(points) > limit else None,
        )

    def _passes(self, row: Row) -> bool:
        if self._after is not None and (row.time, row.ns, row.id) <= tuple(self._after):
            return False
        attempt, pod = self._wanted
        if attempt is None and pod is None:
            return True
        stream = self._streams.get(row.stream) if row.stream is not None else None
        if stream is None:
            return attempt in (None, 0) and pod is None
        return attempt in (None, stream.attempt) and pod in (None, stream.pod)


def first_ordinals(store: Store, selection: Selection, wanted: bool = True) -> dict[str, int]:
    """The ordinal of the first row after `selection.after` of each of the trial's streams.

    The last row of a stream stands before `next`, and rows lost before it leave no mark, so it is counted
    from the end.
    """
    if not wanted:
        return {}
    query = (
        # One statement, one snapshot: the trial may be growing.
        select(STREAMS.c.id, STREAMS.c.next, func.count(LOGS.c.id))
        .join(LOGS, (LOGS.c.stream == STREAMS.c.id) & (LOGS.c.trial_name == STREAMS.c.trial_name))
        .where(same_text(store.database, STREAMS.c.trial_name, selection.trial_name))
        .where(STREAMS.c.deleted_at.is_(None), LOGS.c.id > (selection.after or 0))
        .group_by(STREAMS.c.id, STREAMS.c.next)
    )
    with store.reading() as connection:
        return {stream: max(after - count, 0) for stream, after, count in connection.execute(query)}


def _nanoseconds(at: str, ns: int) -> int:
    try:
        return parse_time(at) + ns
    except ValueError as error:
        raise ApiError(422, f"cursor: {error}; begin without one") from error


def _point(found: Record) -> models.Point:
    fields = found._asdict()
    del fields["ordinal"]
    return models.Point.model_construct(**fields)


def summarize(store: Store, key: TrialKey) -> models.Summary:
    """Each attempt's metrics; rows without a stream count to the first attempt."""
    streams = {stream.id: stream for stream in store.streams(key.name, key.namespace)}
    attempts: dict[int, Summary] = {}
    for chunk in store.rows(Selection(key.name, key.namespace)):
        for attempt, rows in _by_attempt(chunk, streams).items():
            attempts.setdefault(attempt, Summary()).add(rows)
    answers = [
        models.Attempt(
            attempt=number,
            pods=sorted({stream.pod for stream in streams.values() if stream.attempt == number}),
            metrics=[models.Metric(**asdict(metric)) for metric in attempts[number].metrics()],
        )
        for number in sorted(attempts)
    ]
    return models.Summary(
        trial=key.name,
        namespace=key.namespace,
        metrics=answers[-1].metrics if answers else [],
        attempts=answers,
    )


def _by_attempt(rows: Sequence[Row], streams: dict[str, Stream]) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = {}
    for row in rows:
        stream = streams.get(row.stream) if row.stream is not None else None
        found.setdefault(stream.attempt if stream else 0, []).append(row)
    return found


def draw(store: Store, cache: ColumnCache, scope: Scope, asked: models.CurvesRequest) -> bytes:
    """The curves asked for, as the JSON of `models.Curves`.

    Raises:
        UnavailableError: the database cannot be read.
    """
    with store.reading() as connection:
        holdings = read_holdings(connection, [ref.name for ref in asked.trials])
    chosen = {
        (ref.name, ref.namespace): scope.choose(ref.name, ref.namespace, holdings) for ref in asked.trials
    }
    keys = list(dict.fromkeys(key for key in chosen.values() if key is not None))
    columns, holdings, newest = cache.read(keys)
    there = {key: found for key, found in columns.items() if found.values.size}
    counts = Counter(name for found in there.values() for name in found.metrics)
    metric = asked.metric or min(counts, key=lambda name: (-counts[name], name), default=None)
    drawn: list[dict[str, Any]] = []
    for key, found in there.items():
        if metric in found.metrics:
            drawn += _draw_trial(key, found, found.metrics[metric], holdings, asked)
    answer = {
        "metric": metric,
        "metrics": sorted(counts),
        "curves": drawn,
        "missing": [
            {"name": name, "namespace": namespace}
            for (name, namespace), key in chosen.items()
            # A trial whose collector is there but has no point yet is not missing.
            if key not in there
            and (key is None or key.namespace not in holdings.namespaces.get(key.name, set()))
        ],
        "cursor": newest,
    }
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


def _draw_trial(
    key: TrialKey, columns: Columns, metric: int, holdings: Holdings, asked: models.CurvesRequest
) -> list[dict[str, Any]]:
    """A curve for each pod of each attempt, or one of the last attempt."""
    names = list(columns.streams)
    groups: dict[tuple[int, str | None], list[int]] = {}
    rows = np.flatnonzero(columns.metric == metric)
    for index in np.unique(columns.stream[rows]):
        stream = holdings.by_id.get(names[index] or "")
        attempt = stream.attempt if stream else 0
        pod = (stream.pod if stream else None) if asked.apart else None
        groups.setdefault((attempt, pod), []).append(int(index))
    if not asked.apart:
        groups = dict([max(groups.items())])
    answers = []
    for (attempt, pod), streams in sorted(groups.items(), key=lambda item: (item[0][0], item[0][1] or "")):
        mine = (
            rows
            if len(groups) == 1 and len(streams) == columns.stream.max()
            else rows[np.isin(columns.stream[rows], streams)]
        )
        known = any(names[index] in holdings.by_id for index in streams)
        head = {
            "namespace": key.namespace,
            "trial": key.name,
            "attempt": attempt if known else None,
            "pod": pod,
        }
        answers.append(head | _draw_rows(columns, mine, asked))
    return answers


def _draw_rows(columns: Columns, rows: Any, asked: models.CurvesRequest) -> dict[str, Any]:
    """`rows` are indices of the columns; they are put in the order of time first."""
    times = columns.times[rows]
    if np.any(times[1:] < times[:-1]):
        rows = rows[np.argsort(times, kind="stable")]
        times = columns.times[rows]
    steps, values = columns.steps[rows], columns.values[rows]
    if asked.x == "time":
        x_is, x = "time", times / 1e6
    elif asked.x == "elapsed":
        x_is, x = "elapsed", (times - times[0]) / 1e6
    elif np.any(steps == NO_STEP):
        x_is, x = "report", np.arange(1.0, rows.size + 1)
    else:
        x_is, x = "step", steps.astype(np.float64)
    line = curve(x, values, asked.buckets, asked.first, asked.last)
    return {"xIs": x_is, "start": times[0] / 1e6} | _line(line, x, values, steps, times)


def _short(means: Floats) -> Any:
    """Half the digits, since a mean is no measured value; where they fit the smaller float's range."""
    fits = bool(np.all(np.abs(means) < np.finfo(np.float32).max))
    return means.astype(np.float32) if fits else means


def _line(line: Curve, x: Floats, values: Floats, steps: Any, times: Any) -> dict[str, Any]:
    def extreme(index: int | None) -> dict[str, Any] | None:
        if index is None:
            return None
        return {
            "value": values[index],
            "x": x[index],
            "step": None if steps[index] == NO_STEP else steps[index],
            "time": format_time(int(times[index]) * 1000),
        }

    return {
        "x": line.x,
        "y": line.y,
        "meansX": line.means_x,
        "means": _short(line.means),
        "weights": line.weights,
        "leastBefore": line.least_before,
        "greatestBefore": line.greatest_before,
        "count": line.count,
        "nonfinite": line.nonfinite,
        "firstNonfinite": None if line.first_nonfinite is None else x[line.first_nonfinite],
        "least": extreme(line.least),
        "greatest": extreme(line.greatest),
        "latest": extreme(line.latest),
    }
