"""New points as server-sent events: asked of the database once it says that there are some."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import orjson
from fastapi.concurrency import run_in_threadpool
from sqlalchemy import func, select

from dbmanager.records import record
from dbmanager.rest_columns import LAG, Holdings, read_holdings, rows_after
from dbmanager.rows import Row, TrialKey, UnavailableError
from dbmanager.schema import LOGS
from dbmanager.store import Store

LOOK_SECONDS: Final = 2.0
"""Between looks for rows of other writers: Katib's own, or another replica. Our own rows wake the reader."""
GATHER: Final = 2_000
"""Most points in one event."""
REST_SECONDS: Final = 0.2
"""After a look: at most five a second, however many reports arrive."""
KEEP_ALIVE: Final = 15.0
"""Seconds of silence after which a comment is sent, so that proxies keep the connection."""


class Tail:
    """The new rows of some trials, each once."""

    def __init__(
        self,
        store: Store,
        keys: Sequence[TrialKey],
        metrics: Sequence[str],
        after: int | None,
        *,
        strict: bool = False,
    ) -> None:
        self._store = store
        self._keys: dict[str, list[TrialKey]] = {}
        for key in keys:
            self._keys.setdefault(key.name, []).append(key)
        self._metrics = frozenset(metrics)
        self._strict = strict
        self._holdings = Holdings([], strict=strict)
        self._lag = 0 if store.database.kind == "sqlite" else LAG
        self._seen: set[int] = set()
        self._floor = 0
        self.last = after
        """Greatest id seen; None until the first look, which begins at the table's end."""

    def look(self) -> tuple[int, list[dict[str, Any]]]:
        """The id up to which everything was seen, and what is new, at most `GATHER` points.

        Raises:
            UnavailableError: the database cannot be read now.
        """
        with self._store.reading() as connection:
            if self.last is None:
                self.last = connection.execute(select(func.max(LOGS.c.id))).scalar() or 0
                self._floor = self.last
                return self.last, []
            self._floor = max(self._floor, self.last - self._lag) if self._floor else self.last
            rows = connection.execute(
                rows_after(self._floor, list(self._keys)).limit(GATHER + len(self._seen))
            ).all()
            fresh = [row for row in rows if row.id not in self._seen][:GATHER]
            if any(row.stream is not None and row.stream not in self._holdings.by_id for row in fresh):
                self._holdings = read_holdings(connection, list(self._keys), strict=self._strict)
        if self._lag:
            self._seen.update(row.id for row in fresh)
        if fresh:
            self.last = max(self.last, fresh[-1].id)
            self._seen = {id_ for id_ in self._seen if id_ > self.last - self._lag}
        return self.last, [point for row in fresh if (point := self._point(row)) is not None]

    def _point(self, row: Any) -> dict[str, Any] | None:
        if self._metrics and row.metric_name not in self._metrics:
            return None
        for key in self._keys.get(row.trial_name, ()):
            if self._holdings.belongs(key, row.namespace):
                stored = Row(
                    row.id,
                    _whole(row.time),
                    row.ns,
                    row.metric_name,
                    row.value,
                    row.step,
                    row.namespace,
                    row.stream,
                )
                found = record(row.trial_name, stored, self._holdings.by_id)._asdict()
                found["namespace"] = key.namespace
                return found
        return None


def _whole(time: str | None) -> str:
    if time is None:
        return "0001-01-01 00:00:00.000000"
    return time if len(time) == 26 else f"{time[:19]}.{time[20:].ljust(6, '0')}"


async def events(
    store: Store, tail: Tail, names: Sequence[str], stopping: threading.Event
) -> AsyncIterator[bytes]:
    """Server-sent events: `points` with a JSON list of points, its `id` for Last-Event-ID.

    The database being away ends nothing: a comment says so, and it is asked again. `stopping` ends it,
    within LOOK_SECONDS.
    """
    quiet = 0.0
    with store.bus.subscribe(names) as subscription:
        yield b"retry: 2000\n\n"
        while not stopping.is_set():
            try:
                last, points = await run_in_threadpool(tail.look)
            except UnavailableError:
                yield b": the database does not answer\n\n"
                await subscription.wait(LOOK_SECONDS)
                continue
            if points:
                yield b"id: %d\nevent: points\ndata: %b\n\n" % (last, orjson.dumps(points))
                quiet = 0.0
            await asyncio.sleep(REST_SECONDS)
            if len(points) >= GATHER // 2:
                continue
            if not await subscription.wait(LOOK_SECONDS):
                quiet += LOOK_SECONDS
            if quiet >= KEEP_ALIVE:
                # The id moves on too, so that a client that returns late need not look far back.
                yield b"id: %d\nevent: alive\ndata: {}\n\n" % last
                quiet = 0.0
