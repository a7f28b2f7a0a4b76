"""A work queue: each key once at a time, late when it is told so, again with growing pauses when it fails."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 60.0


class Queue(Generic[K]):
    """Calls a handler for keys; a key that comes again while it is handled is handled once more afterwards."""

    def __init__(
        self, handle: Callable[[K], Awaitable[float | None]], failed: Callable[[K, Exception], None]
    ) -> None:
        self._handle = handle
        self._failed = failed
        self._ready: asyncio.Queue[K] = asyncio.Queue()
        self._queued: set[K] = set()
        self._running: set[K] = set()
        self._again: set[K] = set()
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._pauses: dict[K, float] = {}

    def __len__(self) -> int:
        return len(self._queued) + len(self._running)

    def add(self, key: K) -> None:
        """Handle this key soon."""
        if key in self._running:
            self._again.add(key)
        elif key not in self._queued:
            self._queued.add(key)
            self._ready.put_nowait(key)

    def later(self, key: K, seconds: float) -> None:
        """Handle this key after so many seconds, unless an earlier time is set."""
        loop = asyncio.get_running_loop()
        held = self._timers.get(key)
        if held is not None and not held.cancelled() and held.when() <= loop.time() + seconds:
            return
        if held is not None:
            held.cancel()
        self._timers[key] = loop.call_later(seconds, self._due, key)

    def _due(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)

    async def work(self) -> None:
        """Handle keys for ever; several workers may run together."""
        while True:
            key = await self._ready.get()
            self._queued.discard(key)
            self._running.add(key)
            try:
                wait = await self._handle(key)
            except Exception as error:
                self._failed(key, error)
                pause = min(LONGEST_PAUSE, self._pauses.get(key, FIRST_PAUSE / 2) * 2)
                self._pauses[key] = pause
                self.later(key, pause * random.uniform(0.8, 1.2))  # noqa: S311 - spreads retries
            else:
                self._pauses.pop(key, None)
                if wait is not None:
                    self.later(key, wait)
            finally:
                self._running.discard(key)
            if key in self._again:
                self._again.discard(key)
                self.add(key)
