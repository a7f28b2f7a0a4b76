"""`python -m controller`: watches, stands for election, reconciles Trials, serves EarlyStopping until told to stop."""

import argparse
import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from aiohttp import web
from prometheus_client import generate_latest

from controller import caches, earlystopping, metrics, mutators, tls
from controller.caches import Cache, Key, Workloads
from controller.conditions import conditions
from controller.database import Database
from controller.queue import Queue
from controller.reconciler import Reconciler, Trouble
from trialtap import names
from trialtap.kinds import Kind
from trialtap.kube import API, run_all, stop
from trialtap.lease import Lease

_CONFIG_SECONDS: Final = 2.0
_GAUGE_SECONDS: Final = 5.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run; 0 when told to stop, 1 with one line on stderr when it cannot start."""
    parser = _parser()
    args = parser.parse_args(argv)
    if bool(args.cert) != bool(args.key):
        parser.error("--cert and --key go together")
    try:
        asyncio.run(_serve(args))
    except (OSError, ValueError, RuntimeError, yaml.YAMLError, mutators.MutatorError) as error:
        print(f"controller: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m controller", description=__doc__)
    parser.add_argument(
        "--kubeconfig", type=Path, metavar="FILE", help="the cluster (default: the one this pod runs in)"
    )
    parser.add_argument(
        "--config",
        type=Path,
        required=True,
        metavar="FILE",
        help="YAML with trialResources: kinds as Job.v1.batch or {group, version, kind, resource}; read again when it changes",
    )
    parser.add_argument(
        "--db",
        default=names.DEFAULT_DB_ADDRESS,
        metavar="HOST:PORT",
        help="DB manager (default: %(default)s)",
    )
    parser.add_argument(
        "--db-ca", type=Path, metavar="FILE", help="CA of the DB manager's certificate: speak TLS"
    )
    parser.add_argument(
        "--listen",
        default=f"0.0.0.0:{names.EARLY_STOPPING_PORT}",
        metavar="HOST:PORT",
        help="EarlyStopping over gRPC (default: %(default)s)",
    )
    parser.add_argument("--cert", type=Path, metavar="FILE", help="serve EarlyStopping over TLS, with --key")
    parser.add_argument("--key", type=Path, metavar="FILE")
    parser.add_argument(
        "--token-audience", default="", metavar="NAME", help="SetTrialStatus needs a token of this audience"
    )
    parser.add_argument(
        "--health",
        default="0.0.0.0:8080",
        metavar="HOST:PORT",
        help="/healthz, /readyz, /metrics (default: %(default)s)",
    )
    parser.add_argument(
        "--lease", default="", metavar="NAMESPACE/NAME", help="act only while holding it (several replicas)"
    )
    parser.add_argument(
        "--workers", type=int, default=8, help="Trials looked at at once (default: %(default)s)"
    )
    return parser


class Controller:
    """The parts, put together."""

    def __init__(self, api: API, args: argparse.Namespace) -> None:
        self._args = args
        self.trials, self._trials = caches.trials(api, self._enqueue, log)
        self._pods_cache, self._pods = caches.pods(api, self._enqueue, log)
        self.workloads = Workloads(api, self._enqueue, log)
        self.database = Database(args.db, args.db_ca.read_bytes() if args.db_ca else None)
        parts = (api, self.trials, self._pods_cache, self.workloads, self.database, mutators.load(), log)
        self._reconciler = Reconciler(*parts)
        self.queue: Queue[Key] = Queue(self._look, self._failed)
        self.lease = _lease(api, args.lease) if args.lease else None
        self._leading = asyncio.Event()

    def _enqueue(self, key: Key) -> None:
        self.queue.add(key)

    async def _look(self, key: Key) -> float | None:
        await self._leading.wait()
        wait = await self._reconciler.reconcile(key)
        metrics.RECONCILIATIONS.labels("ok").inc()
        return wait

    def _failed(self, key: Key, error: Exception) -> None:
        metrics.RECONCILIATIONS.labels("trouble" if isinstance(error, Trouble) else "failed").inc()
        log(f"Trial {key.namespace}/{key.name}: {str(error) or type(error).__name__}; trying again")

    def kinds(self) -> set[Kind]:
        """The configured kinds, as the file says now."""
        document = yaml.safe_load(self._args.config.read_text()) or {}
        entries = document.get("trialResources") if isinstance(document, dict) else None
        if not isinstance(entries, list) or not entries:
            raise ValueError(
                f"{self._args.config}: trialResources: must be a list of kinds, as [Job.v1.batch]"
            )
        return {Kind.parse(entry) for entry in entries}

    async def run(self) -> None:
        """Watch and reconcile, until cancelled."""
        self.workloads.watch(self.kinds())
        async with asyncio.TaskGroup() as group:
            group.create_task(run_all((self._trials, self._pods)))
            group.create_task(self._follow_config())
            group.create_task(self._count())
            group.create_task(self._lead())
            for _ in range(self._args.workers):
                group.create_task(self.queue.work())

    def synced(self) -> bool:
        """Whether Trials and pods have been listed."""
        return self._trials.synced.is_set() and self._pods.synced.is_set()

    async def _lead(self) -> None:
        """Let the workers act once everything was listed, and only while the Lease is held."""
        await self._trials.synced.wait()
        await self._pods.synced.wait()
        await self.workloads.synced()
        if self.lease is None:
            self._leading.set()
            metrics.LEADING.set(1)
            return
        election = asyncio.create_task(self.lease.run(self._elected, log))
        try:
            while True:
                if self._leading.is_set() and not self.lease.held:
                    self._leading.clear()
                metrics.LEADING.set(self.lease.held)
                await asyncio.sleep(0.5)
        finally:
            await stop(election)

    def _elected(self) -> None:
        self._leading.set()
        for key in self.trials:
            self.queue.add(key)

    async def _follow_config(self) -> None:
        """Read the file again when it changes; one that cannot be read leaves things as they are."""
        known = self._args.config.read_bytes()
        while True:
            await asyncio.sleep(_CONFIG_SECONDS)
            try:
                now = self._args.config.read_bytes()
                if now == known:
                    continue
                known = now
                self.workloads.watch(self.kinds())
            except (OSError, ValueError, yaml.YAMLError) as error:
                log(f"{error}; the kinds stay as they were")
                continue
            for key in self.trials:
                self.queue.add(key)

    async def _count(self) -> None:
        while True:
            states = Counter(_state(self.trials, key) for key in self.trials)
            metrics.TRIALS.clear()
            for state, count in states.items():
                metrics.TRIALS.labels(state).set(count)
            metrics.QUEUE.set(len(self.queue))
            await asyncio.sleep(_GAUGE_SECONDS)


def _state(trials: Cache, key: Key) -> str:
    held = [condition for trial in trials.of(key) for condition in conditions(trial)]
    return str(held[-1]["type"]) if held else "Pending"


def _lease(api: API, place: str) -> Lease:
    namespace, _, name = place.partition("/")
    return Lease(api, namespace, name, f"{socket.gethostname()}-{os.getpid()}")


async def _serve(args: argparse.Namespace) -> None:
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    api = await API.connect(args.kubeconfig)
    controller = Controller(api, args)
    caller = earlystopping.TokenReviews(api, args.token_audience) if args.token_audience else None
    server = earlystopping.server(earlystopping.EarlyStopping(api, controller.trials, caller), log)
    if args.cert:
        port = server.add_secure_port(args.listen, tls.credentials(args.cert, args.key))
    else:
        port = server.add_insecure_port(args.listen)
    bound = f"{args.listen.rpartition(':')[0]}:{port}"
    await server.start()
    running = asyncio.create_task(controller.run())
    async with contextlib.AsyncExitStack() as stack:
        health = await stack.enter_async_context(_health(controller, args.health))
        print(f"controller ready grpc={bound} http={health}", flush=True)
        await asyncio.wait([running, asyncio.create_task(told.wait())], return_when=asyncio.FIRST_COMPLETED)
    await server.stop(5)
    if running.done():
        running.result()
    await stop(running)
    await controller.workloads.close()
    await controller.database.close()
    await api.close()


@contextlib.asynccontextmanager
async def _health(controller: Controller, where: str) -> Any:
    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        good = controller.synced()
        return web.Response(
            status=200 if good else 503, text="ok\n" if good else "Trials and pods are not listed yet\n"
        )

    async def scrape(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(), content_type="text/plain")

    application = web.Application()
    application.add_routes(
        [web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", scrape)]
    )
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    host, _, port = where.rpartition(":")
    await web.TCPSite(runner, host, int(port)).start()
    try:
        yield f"{runner.addresses[0][0]}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def log(message: str) -> None:
    """One line on stderr."""
    print(f"controller: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
