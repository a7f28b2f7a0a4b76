"""Cancels what takes too long, by one timer for all: a timer for each request costs a tenth of the request."""

import asyncio
from typing import Final

LOOK_SECONDS: Final = 0.1
"""How often tasks are looked at, and so how late one may be cancelled."""


class Overdue:
    """The tasks that are bounded now, with the loop's time by which each must have ended."""

    def __init__(self) -> None:
        self._until: dict[asyncio.Task[object], float] = {}
        self._cancelled: set[asyncio.Task[object]] = set()
        self._looking = False

    def bound(self, task: "asyncio.Task[object]", seconds: float) -> None:
        """Cancel this task when it has not been freed within so many seconds."""
        loop = task.get_loop()
        self._until[task] = loop.time() + seconds
        if not self._looking:
            self._looking = True
            loop.call_later(LOOK_SECONDS, self._look, loop)

    def free(self, task: "asyncio.Task[object]") -> bool:
        """Bound it no longer; whether it was cancelled for being late (and is to go on with that)."""
        self._until.pop(task, None)
        if task not in self._cancelled:
            return False
        self._cancelled.remove(task)
        task.uncancel()
        return True

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for task in [task for task, until in self._until.items() if until <= now]:
            del self._until[task]
            self._cancelled.add(task)
            task.cancel()
        self._looking = bool(self._until)
        if self._looking:
            loop.call_later(LOOK_SECONDS, self._look, loop)
