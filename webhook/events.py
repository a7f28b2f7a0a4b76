"""Events on a Trial that say why a pod of it was refused: few, never in the way of an answer."""

import asyncio
import contextvars
import datetime as dt
import secrets
import time
from collections.abc import Callable
from typing import Final

from webhook import metrics
from webhook.cluster import JSON, Cluster, NotFound, Unreadable
from webhook.review import bounded

QUIET_SECONDS: Final = 600.0
"""One Event per trial and reason in this time: a Job's controller makes a refused pod again and again."""
MAX_REMEMBERED: Final = 10_000
MAX_PENDING: Final = 100
MESSAGE_CHARACTERS: Final = 1024
"""The API server refuses longer messages."""
COMPONENT: Final = "trialtap-webhook"


class Events:
    """Sends Events in the background; what cannot be sent is counted, never waited for."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._clock = clock
        self._last: dict[tuple[str, str], float] = {}
        self._pending: set[asyncio.Task[None]] = set()

    def warn(self, trial: JSON, reason: str, message: str) -> None:
        """Put a Warning on a Trial, unless one of this reason was put there in the last 10 minutes."""
        key, now = (str(trial["metadata"].get("uid")), reason), self._clock()
        if now - self._last.get(key, -QUIET_SECONDS) < QUIET_SECONDS:
            metrics.EVENTS.labels("held_back").inc()
            return
        if len(self._pending) >= MAX_PENDING:
            metrics.EVENTS.labels("dropped").inc()
            return
        self._last.pop(key, None)
        self._last[key] = now
        while len(self._last) > MAX_REMEMBERED:
            del self._last[next(iter(self._last))]
        # A context of its own: the request's deadline, which may have passed, is not the Event's.
        task = asyncio.get_running_loop().create_task(
            self._send(event(trial, reason, message), key), context=contextvars.Context()
        )
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    async def drain(self) -> None:
        """Wait for what is on its way."""
        await asyncio.gather(*self._pending)

    async def _send(self, body: JSON, key: tuple[str, str]) -> None:
        try:
            await self._cluster.create("v1", "Event", body["metadata"]["namespace"], body)
        except (NotFound, Unreadable):
            self._last.pop(key, None)  # not said yet: the next refusal tries again
            metrics.EVENTS.labels("failed").inc()
        else:
            metrics.EVENTS.labels("sent").inc()


def event(trial: JSON, reason: str, message: str) -> JSON:
    """A Warning Event (core/v1) on a Trial, found by `kubectl describe trial`."""
    metadata = trial["metadata"]
    now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    involved = {
        "apiVersion": trial["apiVersion"],
        "kind": trial["kind"],
        **{key: metadata[key] for key in ("namespace", "name", "uid", "resourceVersion") if key in metadata},
    }
    return {
        "metadata": {
            "name": f"{metadata['name'][:230]}.{secrets.token_hex(8)}",
            "namespace": metadata["namespace"],
        },
        "involvedObject": involved,
        "type": "Warning",
        "reason": reason,
        "message": bounded(message, MESSAGE_CHARACTERS),
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
