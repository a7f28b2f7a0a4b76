"""Trials as columns of numbers, for the page: read in aggregate queries, then kept and added to.

A page asks again and again for other metrics, axes and ranges of the same trials. Their numbers stay here,
40 bytes a row and bounded; each look costs one query by id for what is new, and one that sees whether
the rows are still there.
"""

from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection, String, and_, cast, func, or_, select, tuple_

from dbmanager.databases import same_text
from dbmanager.rest_curves import Floats, Integers, numbers
from dbmanager.rows import Stream, TrialKey
from dbmanager.schema import LOGS, STREAMS
from dbmanager.store import Store

BYTES: Final = 128 << 20
"""Columns kept by default: three million rows."""
PIECE: Final = 1 << 16
"""Rows in one aggregate query."""
LAG: Final = 20_000
"""With several writers a row may become visible after one of a greater id: so many ids back are read again."""
CATCH_UP: Final = 200_000
"""Ids that may have been given since columns were read; past it the trial is read anew."""
NO_STEP: Final = np.iinfo(np.int64).min
_VALUE_CHARACTERS: Final = 64
"""No number is longer; what is cut off here is text."""
_AGGREGATES: Final = {"sqlite": func.json_group_array, "postgresql": func.json_agg}
"""MariaDB cuts its json_arrayagg at group_concat_max_len: rows there."""
_EPOCH_DAYS: Final = 719_468
"""Days from 0000-03-01 to 1970-01-01."""
_ARRAYS: Final = ("ids", "times", "steps", "values", "metric", "stream")


@dataclass
class Columns:
    """The rows of a trial by id; arrays of one length, `metric` and `stream` index the names.

    Attributes:
        metrics: name -> index.
        streams: id -> index; None (0) is the row without a stream.
        ids: the rows' keys.
        times: microseconds since 1970.
        steps: training steps; `NO_STEP` where none was told.
        values: nan where the value is no number.
        metric: which metric.
        stream: which stream.
        settled: nothing new will appear up to this id.
    """

    metrics: dict[str, int] = field(default_factory=dict)
    streams: dict[str | None, int] = field(default_factory=lambda: {None: 0})
    ids: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    times: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    steps: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    values: Floats = field(default_factory=lambda: np.empty(0))
    metric: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    stream: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    settled: int = 0

    @property
    def nbytes(self) -> int:
        """Memory of the arrays."""
        return sum(getattr(self, name).nbytes for name in _ARRAYS)

    def cut(self) -> None:
        """Forget the rows after `settled`."""
        size = int(np.searchsorted(self.ids, self.settled, "right"))
        for name in _ARRAYS:
            setattr(self, name, getattr(self, name)[:size])

    def add(self, pieces: Sequence[dict[str, Any]]) -> None:
        """Append pieces as `_arrays` gives them, and order everything by id."""
        if not pieces:
            return
        joined = {n: np.concatenate([getattr(self, n), *(piece[n] for piece in pieces)]) for n in _ARRAYS}
        order = np.argsort(joined["ids"], kind="stable")
        for name, array in joined.items():
            setattr(self, name, array[order])


class Holdings:
    """The streams of some trials: which namespaces hold them, whose pod and attempt a row is."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        self.by_id = {stream.id: stream for stream in streams}
        self.namespaces: dict[str, set[str]] = {}
        for stream in streams:
            self.namespaces.setdefault(stream.trial_name, set()).add(stream.namespace)

    def takes_unnamed(self, key: TrialKey) -> bool:
        """Whether rows without a namespace are this trial's: no second namespace holds one of that name."""
        return key.namespace is None or self.namespaces.get(key.name, set()) <= {key.namespace}

    def belongs(self, key: TrialKey, namespace: str | None) -> bool:
        """Whether a row of that trial name is this trial's."""
        if namespace is None:
            return self.takes_unnamed(key)
        return key.namespace is None or namespace == key.namespace


def read_holdings(connection: Connection, names: Sequence[str]) -> Holdings:
    """The living streams of the trials of these names."""
    wanted = set(names)
    found = connection.execute(
        select(STREAMS).where(STREAMS.c.trial_name.in_(wanted), STREAMS.c.deleted_at.is_(None))
    )
    # MySQL's collations take `A` for `a`.
    return Holdings([stream for row in found if (stream := Stream(*row)).trial_name in wanted])


class ColumnCache:
    """Columns of the trials last looked at, up to a number of bytes. Safe to use from any thread."""

    def __init__(self, store: Store, limit: int = BYTES, threads: int = 2) -> None:
        self._store = store
        self._limit = limit
        self._lock = Lock()
        self._kept: OrderedDict[TrialKey, Columns] = OrderedDict()
        self._pool = ThreadPoolExecutor(threads, "columns")

    def read(self, keys: Sequence[TrialKey]) -> tuple[dict[TrialKey, Columns], Holdings, int]:
        """The trials' columns as they are now, their streams, and the greatest id that is in them.

        A live reader that goes on after that id misses nothing.

        Raises:
            UnavailableError: the database cannot be read.
        """
        with self._lock:
            with self._store._reading() as connection:
                newest = connection.execute(select(func.max(LOGS.c.id))).scalar() or 0
                holdings = read_holdings(connection, [key.name for key in keys])
                self._drop(connection, newest)
                self._catch_up(connection, [key for key in keys if key in self._kept], holdings, newest)
            missing = [key for key in keys if key not in self._kept]
            for key, loaded in zip(
                missing, self._pool.map(lambda key: self._load(key, holdings, newest), missing), strict=True
            ):
                self._kept[key] = loaded
            # Copies of the objects, not of the arrays, which are replaced and never changed.
            found = {key: Columns(**vars(self._kept[key])) for key in keys}
            for key in found:
                self._kept.move_to_end(key)
            self._evict()
        return found, holdings, newest

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _evict(self) -> None:
        size = sum(columns.nbytes for columns in self._kept.values())
        while size > self._limit and self._kept:
            size -= self._kept.popitem(last=False)[1].nbytes

    def _drop(self, connection: Connection, newest: int) -> None:
        """Forget what was deleted (a trial is deleted as a whole, so its first row tells) or is far behind."""
        first = {key: int(columns.ids[0]) for key, columns in self._kept.items() if columns.ids.size}
        there: set[int] = set()
        if first:
            there.update(connection.execute(select(LOGS.c.id).where(LOGS.c.id.in_(first.values()))).scalars())
        for key, columns in list(self._kept.items()):
            if first.get(key) not in there or newest - columns.settled > CATCH_UP:
                del self._kept[key]

    def _catch_up(
        self, connection: Connection, keys: Sequence[TrialKey], holdings: Holdings, newest: int
    ) -> None:
        oldest = min((self._kept[key].settled for key in keys), default=newest)
        if oldest >= newest:
            return
        fresh: dict[str, list[Any]] = {key.name: [] for key in keys}
        for row in connection.execute(rows_after(oldest, list(fresh)).where(LOGS.c.id <= newest)):
            if row.trial_name in fresh:
                fresh[row.trial_name].append(row)
        for key in keys:
            kept = self._kept[key]
            kept.cut()
            rows = [r for r in fresh[key.name] if r.id > kept.settled and holdings.belongs(key, r.namespace)]
            if rows:
                ids, _, names, values, steps, _, streams, times, _ = zip(*rows, strict=True)
                kept.add([_arrays(kept, ids, names, values, steps, streams, times)])
            kept.settled = self._settled(newest)

    def _settled(self, newest: int) -> int:
        return newest if self._store.database.kind == "sqlite" else max(newest - LAG, 0)

    def _load(self, key: TrialKey, holdings: Holdings, newest: int) -> Columns:
        columns = Columns(settled=self._settled(newest))
        mine = _belongs(self._store, key, holdings)
        pieces: list[dict[str, Any]] = []
        after: tuple[str, int] | None = None
        with self._store._reading() as connection:
            while True:
                piece = self._piece(connection, and_(mine, LOGS.c.id <= newest), after)
                if not piece["id"]:
                    break
                pieces.append(
                    _arrays(columns, *(piece[n] for n in ("id", "name", "value", "step", "stream", "time")))
                )
                if len(piece["id"]) < PIECE:
                    break
                after = max(zip(piece["time"], piece["id"], strict=True))
        columns.add(pieces)
        return columns

    def _piece(
        self, connection: Connection, mine: ColumnElement[bool], after: tuple[str, int] | None
    ) -> dict[str, list[Any]]:
        """At most `PIECE` rows as lists of one length: six JSON arrays cost a third of as many row tuples."""
        query = select(
            LOGS.c.id,
            LOGS.c.metric_name.label("name"),
            func.substr(LOGS.c.value, 1, _VALUE_CHARACTERS).label("value"),
            LOGS.c.step,
            LOGS.c.stream,
            cast(LOGS.c.time, String).label("time"),
        ).where(mine)
        if after is not None:
            at = self._store.database.time(after[0])
            query = query.where(tuple_(LOGS.c.time, LOGS.c.id) > tuple_(at, after[1]))
        query = query.order_by(LOGS.c.time, LOGS.c.id).limit(PIECE)
        array = _AGGREGATES.get(self._store.database.kind)
        if array is None:
            found = connection.execute(query).all()
            names = query.selected_columns.keys()
            return {name: [row[index] for row in found] for index, name in enumerate(names)}
        rows = query.subquery()
        texts = connection.execute(select(*(cast(array(column), String) for column in rows.c))).one()
        return {n: orjson.loads(t) if t else [] for n, t in zip(rows.c.keys(), texts, strict=True)}


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


def _arrays(  # noqa: PLR0913, PLR0917 - one column each
    columns: Columns,
    ids: Sequence[int],
    names: Sequence[str],
    values: Sequence[str],
    steps: Sequence[int | None],
    streams: Sequence[str | None],
    times: Sequence[str | None],
) -> dict[str, Any]:
    return {
        "ids": np.array(ids, np.int64),
        "times": microseconds(times),
        "steps": np.array([NO_STEP if step is None else step for step in steps], np.int64),
        "values": numbers(values),
        "metric": _indices(columns.metrics, names),
        "stream": _indices(columns.streams, streams),
    }


def _indices(known: dict[Any, int], names: Sequence[Any]) -> NDArray[np.int32]:
    for name in dict.fromkeys(names):
        known.setdefault(name, len(known))
    return np.array(list(map(known.__getitem__, names)), np.int32)


def microseconds(times: Sequence[str | None]) -> Integers:
    """`YYYY-MM-DD HH:MM:SS[.ffffff]` in UTC as microseconds since 1970; None is the year 1.

    All at once on their digits, with the civil-calendar formula: `datetime` costs a second a million.
    """
    if not times:
        return np.empty(0, np.int64)
    text = "".join([t if t and len(t) == 26 else _padded(t) for t in times])
    digits = np.frombuffer(text.encode("ascii"), np.uint8).reshape(-1, 26).astype(np.int64) - ord("0")

    def read(begin: int, end: int) -> Integers:
        number = digits[:, begin].copy()
        for position in range(begin + 1, end):
            number = number * 10 + digits[:, position]
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
