"""Keeps a folder's certificate, the Secret and the caBundles as the plan says, until told to stop."""

import asyncio
import datetime as dt
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from certs import files, issue, pem, plan
from certs.cluster import Cluster, Look
from trialtap.kube import Status, Unreachable
from trialtap.lease import Lease

_IDLE_SECONDS: Final = 60.0
_BUSY_SECONDS: Final = 5.0
"""Between looks while a count is running, at most; less than `plan.STEP`, so that each second counts."""
_MOST_WRITES: Final = 20
"""Looks without a pause, each after a write: a plan that never comes to rest must not load the API server."""
_LIVE_SECONDS: Final = 180.0


class Metrics:
    """Prometheus metrics of this process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.expiry = Gauge(
            "trialtap_certificate_expiry_timestamp_seconds",
            "notAfter of the certificate that this replica serves and of its CA.",
            ["certificate"],
            registry=self.registry,
        )
        self.leading = Gauge(
            "trialtap_certificates_leading", "1 where this replica writes.", registry=self.registry
        )
        self.writes = Counter(
            "trialtap_certificates_writes", "Writes to the cluster.", ["action"], registry=self.registry
        )
        self.failures = Counter(
            "trialtap_certificates_failures",
            "Looks or writes that failed, conflicts with another writer left out.",
            registry=self.registry,
        )


class Keeper:
    """One replica's work on the certificates."""

    def __init__(self, cluster: Cluster, lease: Lease, out: Path, settings: plan.Settings) -> None:
        self._cluster = cluster
        self._lease = lease
        self._out = out
        self._settings = settings
        self._busy_seconds = min(_BUSY_SECONDS, max(0.5, settings.lead / 5))
        self._memory = plan.Memory()
        self._changed = asyncio.Event()
        self._turned = time.monotonic()
        self._now = dt.datetime.now(dt.UTC)
        self.metrics = Metrics()

    async def run(self) -> None:
        """Watch, stand for election and act, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._cluster.follow(self._changed.set, log))
            group.create_task(self._lease.run(self._changed.set, log))
            group.create_task(self._act())

    def ready(self) -> bool:
        """Whether this replica may be called; see `plan.ready`."""
        return plan.ready(self._memory, self._now, time.monotonic(), self._settings)

    def alive(self) -> bool:
        """Whether looks are tried at all."""
        return time.monotonic() - self._turned < _LIVE_SECONDS

    async def _act(self) -> None:
        delay = 0.0
        while True:
            self._changed.clear()
            self._turned = time.monotonic()
            try:
                pause = await self._look_until_rest()
                delay = 0.0
            except Exception as error:
                # Whatever it is: a replica that serves well goes on serving.
                self.metrics.failures.inc()
                pause = delay = min(10.0, max(0.5, delay * 2))
                known = isinstance(error, Status | Unreachable | OSError)
                log(f"{'' if known else type(error).__name__ + ': '}{error}; trying again in {pause:g} s")
                await asyncio.sleep(pause)
                continue
            try:
                async with asyncio.timeout(pause):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _look_until_rest(self) -> float:
        """Look and act until nothing is left to write; returns the seconds until the next look at the latest."""
        for _ in range(_MOST_WRITES):
            look = await self._cluster.look(self._memory, leading=self._lease.held)
            self._now = look.now
            self._memory = plan.remember(look.observed, look.now, time.monotonic())
            observed = replace(look.observed, memory=self._memory)
            actions = plan.plan(observed, look.now, self._settings)
            self.metrics.leading.set(look.observed.leading)
            if not await self._perform(actions, look):
                observed = replace(observed, memory=self._memory)
                return self._busy_seconds if plan.unfinished(observed, look.now) else _IDLE_SECONDS
        return self._busy_seconds

    async def _perform(self, actions: tuple[plan.Action, ...], look: Look) -> bool:
        """Do it in order; whether something was written, or refused, so that another look is due."""
        wrote = False
        for action in actions:
            if isinstance(action, plan.Serve):
                self._serve(action)
                continue
            if wrote:
                # One write a look: the next is decided on what this one made.
                continue
            wrote = True
            try:
                await self._cluster.perform(action, look)
            except Status as status:
                if status.code != 409:
                    raise
                continue
            self.metrics.writes.labels(type(action).__name__).inc()
            log(_said(action))
        return wrote

    def _serve(self, action: plan.Serve) -> None:
        files.write(self._out, ca=action.trust, certificate=action.pair.certificate, key=action.pair.key)
        if action.pair == self._memory.serving:
            return
        self._memory = replace(self._memory, serving=action.pair)
        served = issue.read(action.pair.certificate)
        ca = max(issue.read(a.pem).not_valid_after_utc for a in pem.authorities(action.trust))
        self.metrics.expiry.labels("serving").set(served.not_valid_after_utc.timestamp())
        self.metrics.expiry.labels("ca").set(ca.timestamp())
        log(f"serves {served.serial_number:x}, valid until {served.not_valid_after_utc.isoformat()}")


def _said(action: plan.Action) -> str:
    match action:
        case plan.WriteSecret():
            return f"wrote the Secret: {action.why}"
        case plan.Publish():
            count = len(pem.authorities(action.bundle))
            return f"published {count} CA{'' if count == 1 else 's'} in {action.configuration}"
        case plan.WriteCopy():
            return "handed the certificate to the DB manager's Secret"
        case _:
            return "made the Secret"


@asynccontextmanager
async def health(keeper: Keeper, host: str, port: int) -> AsyncIterator[str]:
    """Serve `/healthz`, `/readyz` and `/metrics` over plain HTTP; yields HOST:PORT.

    Raises:
        OSError: the address cannot be listened on.
    """

    def answer(good: bool, words: str) -> web.Response:
        return web.Response(status=200 if good else 503, text=words + "\n")

    async def healthz(_: web.Request) -> web.Response:
        good = keeper.alive()
        return answer(good, "ok" if good else "no look at the cluster was tried for minutes")

    async def readyz(_: web.Request) -> web.Response:
        good = keeper.ready()
        return answer(
            good, "ok" if good else "no valid certificate yet, or the cluster was not reached for long"
        )

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(keeper.metrics.registry), content_type="text/plain")

    application = web.Application()
    application.add_routes(
        [web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)]
    )
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        bound = runner.addresses[0]
        yield f"{bound[0]}:{bound[1]}"
    finally:
        await runner.cleanup()


def log(message: str) -> None:
    """One line on stderr."""
    print(f"certs: {message}", file=sys.stderr, flush=True)
