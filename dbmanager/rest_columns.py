"""Trials as columns of numbers, for the page: read in aggregate queries, then kept and added to.

A page asks again and again for other metrics, axes and ranges of the same trials. Their numbers stay here,
32 bytes a row and bounded; each look costs one query by id for what is new, and one that sees whether
the rows are still there.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection, String, and_, case, cast, func, or_, select

from dbmanager.databases import same_text
from dbmanager.rest_curves import Floats, Integers, numbers
from dbmanager.rows import Stream, TrialKey
from dbmanager.schema import LOGS, STREAMS
from dbmanager.store import Store

BYTES: Final = 128 << 20
"""Columns kept by default: four million rows."""
PIECE: Final = 1 << 16
"""Rows that are read at one go."""
LAG: Final = 20_000
"""With several writers a row may become visible after one of a greater id: so many ids back are read again."""
CATCH_UP: Final = 200_000
"""Ids that may have been given since columns were read; past it the trial is read anew."""
Indices = NDArray[np.int32]
NO_STEP: Final = np.iinfo(np.int64).min
_VALUE_CHARACTERS: Final = 64
"""No number is longer; what is cut off here is text."""
_AGGREGATES: Final = {"sqlite": func.json_group_array, "postgresql": func.json_agg}
"""MariaDB cuts its json_arrayagg at group_concat_max_len: rows are read there."""
_EPOCH_DAYS: Final = 719_468
"""Days from 0000-03-01 to 1970-01-01."""
_ARRAYS: Final = ("times", "steps", "values", "metric", "stream")


@dataclass(frozen=True)
class Columns:
    """The rows of a trial; arrays of one length in no order, `metric` and `stream` index the names.

    Attributes:
        metrics: name -> index.
        streams: id -> index; None (0) is the row without a stream.
        times: microseconds since 1970.
        steps: training steps; `NO_STEP` where none was told.
        values: nan where the value is no number.
        metric: which metric.
        stream: which stream.
    """

    metrics: dict[str, int] = field(default_factory=dict)
    streams: dict[str | None, int] = field(default_factory=lambda: {None: 0})
    times: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    steps: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    values: Floats = field(default_factory=lambda: np.empty(0))
    metric: Indices = field(default_factory=lambda: np.empty(0, np.int32))
    stream: Indices = field(default_factory=lambda: np.empty(0, np.int32))

    @property
    def nbytes(self) -> int:
        """Memory of the arrays."""
        return sum(getattr(self, name).nbytes for name in _ARRAYS)

    def plus(self, pieces: Sequence[dict[str, Any]]) -> "Columns":
        """These rows and those of pieces as `_arrays` makes them."""
        if not pieces:
            return self
        joined = {n: np.concatenate([getattr(self, n), *(piece[n] for piece in pieces)]) for n in _ARRAYS}
        return Columns(self.metrics, self.streams, **joined)


@dataclass
class _Kept:
    """A trial's columns between two looks.

    Attributes:
        columns: every row up to the id `settled`; later ones are read anew at each look.
        settled: nothing new will become visible up to here.
        first: a row's id, to see whether they are still there; None without rows.
    """

    columns: Columns
    settled: int
    first: int | None


class Holdings:
    """The streams of some trials: which namespaces hold them, whose pod and attempt a row is."""

    def __init__(self, streams: Sequence[Stream], *, strict: bool = False) -> None:
        self._strict = strict
        self.by_id = {stream.id: stream for stream in streams}
        self.namespaces: dict[str, set[str]] = {}
        for stream in streams:
            self.namespaces.setdefault(stream.trial_name, set()).add(stream.namespace)

    def takes_unnamed(self, key: TrialKey) -> bool:
        """Whether rows without a namespace are this trial's: no second namespace holds one of that name.

        `strict`, where readers must prove who they are: its own namespace must hold it. Else whoever names
        their namespace could read rows that nobody claims.
        """
        held = self.namespaces.get(key.name, set())
        if key.namespace is None:
            return True
        return held == {key.namespace} if self._strict else held <= {key.namespace}

    def belongs(self, key: TrialKey, namespace: str | None) -> bool:
        """Whether a row of that trial name is this trial's."""
        if namespace is None:
            return self.takes_unnamed(key)
        return key.namespace is None or namespace == key.namespace


def read_holdings(connection: Connection, names: Sequence[str], *, strict: bool = False) -> Holdings:
    """The living streams of the trials of these names."""
    wanted = set(names)
    found = connection.execute(
        select(STREAMS).where(STREAMS.c.trial_name.in_(wanted), STREAMS.c.deleted_at.is_(None))
    )
    # MySQL's collations take `A` for `a`.
    return Holdings([stream for row in found if (stream := Stream(*row)).trial_name in wanted], strict=strict)


class ColumnCache:
    """Columns of the trials last looked at, up to a number of bytes. Safe to use from any thread."""

    def __init__(self, store: Store, limit: int = BYTES, threads: int = 2, *, strict: bool = False) -> None:
        self._store = store
        self._strict = strict
        self._limit = limit
        self._lock = Lock()
        self._kept: OrderedDict[TrialKey, _Kept] = OrderedDict()
        self._pool = ThreadPoolExecutor(threads, "columns")

    def read(self, keys: Sequence[TrialKey]) -> tuple[dict[TrialKey, Columns], Holdings, int]:
        """The trials' columns as they are now, their streams, and the greatest id that is in them.

        A live reader that goes on after that id misses nothing.

        Raises:
            UnavailableError: the database cannot be read.
        """
        with self._lock:
            with self._store.reading() as connection:
                newest = connection.execute(select(func.max(LOGS.c.id))).scalar() or 0
                holdings = read_holdings(connection, [key.name for key in keys], strict=self._strict)
                self._drop(connection, newest)
            settled = newest if self._store.database.kind == "sqlite" else max(newest - LAG, 0)
            missing = [key for key in keys if key not in self._kept]
            loaded = self._pool.map(lambda key: self._load(key, holdings, settled), missing)
            self._kept.update(zip(missing, loaded, strict=True))
            found = self._caught_up(keys, holdings, settled, newest)
            for key in keys:
                self._kept.move_to_end(key)
            self._evict()
        return found, holdings, newest

    def _evict(self) -> None:
        size = sum(kept.columns.nbytes for kept in self._kept.values())
        while size > self._limit and self._kept:
            size -= self._kept.popitem(last=False)[1].columns.nbytes

    def _drop(self, connection: Connection, newest: int) -> None:
        """Forget what was deleted (a trial is deleted as a whole, so one row tells) or is far behind."""
        first = {kept.first for kept in self._kept.values()} - {None}
        there: set[int] = set()
        if first:
            there.update(connection.execute(select(LOGS.c.id).where(LOGS.c.id.in_(first))).scalars())
        for key, kept in list(self._kept.items()):
            if kept.first not in there or newest - kept.settled > CATCH_UP:
                del self._kept[key]

    def _caught_up(
        self, keys: Sequence[TrialKey], holdings: Holdings, settled: int, newest: int
    ) -> dict[TrialKey, Columns]:
        """Columns with the rows after each trial's `settled`; what is settled by now is kept."""
        oldest = min((self._kept[key].settled for key in keys), default=newest)
        fresh: dict[str, list[Any]] = {key.name: [] for key in keys}
        if oldest < newest:
            with self._store.reading() as connection:
                for row in connection.execute(rows_after(oldest, list(fresh)).where(LOGS.c.id <= newest)):
                    if row.trial_name in fresh:
                        fresh[row.trial_name].append(row)
        found = {}
        for key in keys:
            kept = self._kept[key]
            rows = [r for r in fresh[key.name] if r.id > kept.settled and holdings.belongs(key, r.namespace)]
            kept.columns = kept.columns.plus(_pieces(kept.columns, [r for r in rows if r.id <= settled]))
            kept.settled = settled
            if kept.first is None and rows:
                kept.first = rows[0].id
            found[key] = kept.columns.plus(_pieces(kept.columns, [r for r in rows if r.id > settled]))
        return found

    def _load(self, key: TrialKey, holdings: Holdings, settled: int) -> _Kept:
        """Read a trial up to the id `settled`: at one go when it is small, else in pieces by (time, id)."""
        columns = Columns()
        mine = and_(_belongs(self._store, key, holdings), LOGS.c.id <= settled)
        streams = [
            s
            for s in holdings.by_id.values()
            if s.trial_name == key.name and key.namespace in (None, s.namespace)
        ]
        pieces: list[dict[str, Any]] = []
        first: int | None = None
        with self._store.reading() as connection:
            array = _AGGREGATES.get(self._store.database.kind)
            if array and len(streams) == 1 and streams[0].next <= PIECE:
                piece = self._small(connection, mine, array, columns, streams[0].id)
                if piece is not None:
                    return _Kept(columns.plus([piece[1]]), settled, piece[0])
            for rows in self._pages(connection, mine):
                first = rows[0].id if first is None else first
                pieces += _pieces(columns, rows)
        return _Kept(columns.plus(pieces), settled, first)

    def _small(
        self, connection: Connection, mine: ColumnElement[bool], array: Any, columns: Columns, stream: str
    ) -> tuple[int | None, dict[str, Any]] | None:
        """A trial of one stream by four JSON arrays, a third of the cost of its rows; None: it has other rows too."""
        sqlite = self._store.database.kind == "sqlite"  # text there, and a cast costs as much as the array
        first, count, of_stream, names, values, steps, times = connection.execute(
            select(
                func.min(LOGS.c.id),
                func.count(),
                func.count(case((LOGS.c.stream == stream, 1))),
                cast(array(LOGS.c.metric_name), String),
                cast(array(case((func.length(LOGS.c.value) <= _VALUE_CHARACTERS, LOGS.c.value))), String),
                cast(array(LOGS.c.step), String),
                cast(array(LOGS.c.time if sqlite else cast(LOGS.c.time, String)), String),
            ).where(mine)
        ).one()
        if count == 0 or of_stream != count:
            return None
        columns.streams[stream] = index = len(columns.streams)
        return first, {
            "times": _times_of_json(times, count),
            "steps": _steps(orjson.loads(steps)),
            "values": numbers(orjson.loads(values)),
            "metric": _indices(columns.metrics, orjson.loads(names)),
            "stream": np.full(count, index, np.int32),
        }

    def _pages(self, connection: Connection, mine: ColumnElement[bool]) -> Iterator[list[Any]]:
        query = select(
            LOGS.c.id,
            LOGS.c.metric_name,
            func.substr(LOGS.c.value, 1, _VALUE_CHARACTERS).label("value"),
            LOGS.c.step,
            LOGS.c.stream,
            cast(LOGS.c.time, String).label("time"),
        ).where(mine)
        result = connection.execute(query.execution_options(stream_results=True, yield_per=PIECE))
        for rows in result.partitions():
            yield list(rows)


def rows_after(id_: int, names: Sequence[str]) -> Any:
    """The newer rows of any of these trials: id, trial_name, metric_name, value, step, namespace, stream, time, ns.

    `coalesce` keeps the planner from walking through the whole of each trial: what is new is few rows
    at the end of the table. MySQL may give rows of a name that differs in case only.
    """
    return (
        select(
            LOGS.c.id,
            LOGS.c.trial_name,
            LOGS.c.metric_name,
            LOGS.c.value,
            LOGS.c.step,
            LOGS.c.namespace,
            LOGS.c.stream,
            cast(LOGS.c.time, String).label("time"),
            func.coalesce(LOGS.c.ns, 0).label("ns"),
        )
        .where(LOGS.c.id > id_, func.coalesce(LOGS.c.trial_name, "").in_(names))
        .order_by(LOGS.c.id)
    )


def _belongs(store: Store, key: TrialKey, holdings: Holdings) -> ColumnElement[bool]:
    mine = same_text(store.database, LOGS.c.trial_name, key.name)
    if key.namespace is None:
        return mine
    named = same_text(store.database, LOGS.c.namespace, key.namespace)
    return and_(mine, or_(named, LOGS.c.namespace.is_(None)) if holdings.takes_unnamed(key) else named)


def _pieces(columns: Columns, rows: Sequence[Any]) -> list[dict[str, Any]]:
    """Rows as arrays; their names are added to the columns' own."""
    if not rows:
        return []
    return [
        {
            "times": microseconds([row.time for row in rows]),
            "steps": _steps([row.step for row in rows]),
            "values": numbers([row.value for row in rows]),
            "metric": _indices(columns.metrics, [row.metric_name for row in rows]),
            "stream": _indices(columns.streams, [row.stream for row in rows]),
        }
    ]


def _steps(steps: list[int | None]) -> Integers:
    try:
        return np.array(steps, np.int64)
    except TypeError:  # some are None
        return np.array([NO_STEP if step is None else step for step in steps], np.int64)


def _indices(known: dict[Any, int], names: Sequence[Any]) -> Indices:
    for name in dict.fromkeys(names):
        known.setdefault(name, len(known))
    return np.array(list(map(known.__getitem__, names)), np.int32)


def _times_of_json(text: str, count: int) -> Integers:
    """A JSON array of times; where each is of full length, no string need be made of it."""
    if len(text) == 29 * count + 1:
        digits = np.frombuffer(text.encode("ascii"), np.uint8)[: 29 * count].reshape(-1, 29)[:, 2:28]
        return _microseconds(digits)
    return microseconds(orjson.loads(text))


def microseconds(times: Sequence[str | None]) -> Integers:
    """`YYYY-MM-DD HH:MM:SS[.ffffff]` in UTC as microseconds since 1970; None is the year 1.

    All at once on their digits, with the civil-calendar formula: `datetime` costs a second a million.
    """
    text = "".join([t if t and len(t) == 26 else _padded(t) for t in times])
    return _microseconds(np.frombuffer(text.encode("ascii"), np.uint8).reshape(-1, 26))


def _microseconds(text: NDArray[np.uint8]) -> Integers:
    def read(begin: int, end: int) -> Integers:
        number = np.zeros(len(text), np.int64)
        for position in range(begin, end):
            number = number * 10 + (text[:, position] & 15)  # ASCII digits
        return number

    year, month, day = read(0, 4), read(5, 7), read(8, 10)
    year = year - (month <= 2)
    era = year // 400
    year_of_era = year - era * 400
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    days = (
        era * 146_097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - _EPOCH_DAYS
    )
    seconds = days * 86_400 + read(11, 13) * 3600 + read(14, 16) * 60 + read(17, 19)
    result: Integers = seconds * 1_000_000 + read(20, 26)
    return result


def _padded(time: str | None) -> str:
    if time is None:
        return "0001-01-01 00:00:00.000000"
    return f"{time[:19]}.{time[20:26].ljust(6, '0')}"
