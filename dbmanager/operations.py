"""Whether the database answers, retention, and the HTTP paths that operators' programs read."""

import asyncio
import logging

from fastapi import APIRouter, Response
from grpc_health.v1 import health, health_pb2
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from dbmanager import metrics
from dbmanager.rows import StoreError
from dbmanager.store import Store
from trialtap.messages import DB_MANAGER

log = logging.getLogger(__name__)


class Watch:
    """Asks the database every few seconds and tells gRPC's health service and `/readyz`.

    Attributes:
        failure: why the database did not answer last time; empty = it did.
    """

    def __init__(
        self, store: Store, health_servicer: health.aio.HealthServicer, interval: float = 2.0
    ) -> None:
        self._store = store
        self._health = health_servicer
        self._interval = interval
        self.failure = "the database was not asked yet"

    async def look(self) -> None:
        """Ask once and tell."""
        before = self.failure
        try:
            await asyncio.wait_for(asyncio.to_thread(self._store.ping), 10)
        except TimeoutError:
            self.failure = "the database did not answer within 10 s"
        except StoreError as error:
            self.failure = str(error)
        else:
            self.failure = ""
        if bool(before) != bool(self.failure):
            if self.failure:
                log.warning("not ready: %s", self.failure)
            else:
                log.info("ready: the database answers")
        metrics.UP.set(0 if self.failure else 1)
        metrics.WAITING.set(self._store.waiting())
        status = health_pb2.HealthCheckResponse
        now = status.NOT_SERVING if self.failure else status.SERVING
        for service in ("", DB_MANAGER):
            await self._health.set(service, now)

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await self.look()
            await asyncio.sleep(self._interval)


async def retain(store: Store, keep_days: float | None, interval: float = 3600.0) -> None:
    """Hourly: delete the trials not written to for `keep_days` (None: none), and forget streams long gone."""
    while True:
        try:
            rows, streams = await asyncio.to_thread(store.purge, keep_days)
        except StoreError as error:
            log.warning("retention: %s", error)
        else:
            metrics.ROWS_DELETED.labels("retention").inc(rows)
            if rows or streams:
                log.info("retention: %d rows deleted, %d streams forgotten", rows, streams)
        await asyncio.sleep(interval)


def router(watch: Watch) -> APIRouter:
    """`/healthz`: the process turns. `/readyz`: the database answers. `/metrics`: Prometheus."""
    made = APIRouter(include_in_schema=False)

    @made.get("/healthz")
    async def healthz() -> Response:
        return Response("ok\n", media_type="text/plain")

    @made.get("/readyz")
    async def readyz() -> Response:
        if watch.failure:
            return Response(f"{watch.failure}\n", status_code=503, media_type="text/plain")
        return Response("ok\n", media_type="text/plain")

    @made.get("/metrics")
    def prometheus() -> Response:
        return Response(generate_latest(metrics.REGISTRY), media_type=CONTENT_TYPE_LATEST)

    return made
