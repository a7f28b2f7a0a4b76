"""Wakes live readers when rows of their trial were committed by this process."""

import asyncio
import threading
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress


class Subscription:
    """One live reader; made by `Bus.subscribe`, to be closed by its owner."""

    def __init__(self, bus: "Bus", trial_names: frozenset[str], loop: asyncio.AbstractEventLoop) -> None:
        self._bus = bus
        self.trial_names = trial_names
        self._loop = loop
        self._event = asyncio.Event()

    async def wait(self, seconds: float) -> bool:
        """True as soon as rows of one of the trials were committed or deleted since the last wait.

        False after `seconds`; look then too, since other writers (Katib's own programs,
        another replica) are not seen here.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True

    def wake(self) -> None:
        """Called from any thread."""
        with suppress(RuntimeError):  # the loop was closed: its reader is gone
            self._loop.call_soon_threadsafe(self._event.set)

    def close(self) -> None:
        """No more wakes."""
        self._bus.remove(self)

    def __enter__(self) -> "Subscription":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Bus:
    """Who waits for which trial; safe to use from any thread.

    It carries no rows: a woken reader asks the store for the rows after the last id it saw, so a slow
    reader can neither lose a row nor hold memory here.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: defaultdict[str, set[Subscription]] = defaultdict(set)

    def subscribe(self, trial_names: Iterable[str]) -> Subscription:
        """A subscription of the running event loop to these trials, of whatever namespace."""
        subscription = Subscription(self, frozenset(trial_names), asyncio.get_running_loop())
        with self._lock:
            for name in subscription.trial_names:
                self._waiting[name].add(subscription)
        return subscription

    def remove(self, subscription: Subscription) -> None:
        """Forget a subscription."""
        with self._lock:
            for name in subscription.trial_names:
                waiting = self._waiting.get(name)
                if waiting is not None:
                    waiting.discard(subscription)
                    if not waiting:
                        del self._waiting[name]

    def publish(self, trial_names: Iterable[str]) -> None:
        """Rows of these trials were committed or deleted."""
        if not self._waiting:
            return
        with self._lock:
            woken = {subscription for name in trial_names for subscription in self._waiting.get(name, ())}
        for subscription in woken:
            subscription.wake()
