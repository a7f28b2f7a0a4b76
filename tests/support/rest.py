"""A REST application served on a free port, and trials to read from it."""

import math
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from dbmanager.rows import NewRow, Origin, Report, database_time, split_time
from dbmanager.store import Store

BEGIN = 1_769_860_800 * 10**9
"""2026-01-31T12:00:00Z in nanoseconds."""


@contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """The URL of the application while it is served by uvicorn in a thread."""
    server = uvicorn.Server(
        uvicorn.Config(app, port=0, log_level="warning", lifespan="off", timeout_graceful_shutdown=4)
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        app.state.stopping.set()
        server.should_exit = True
        thread.join()


@contextmanager
def manager(path: Path) -> Iterator[str]:
    """HOST:PORT of gRPC of a DB manager that runs as a process of its own."""
    command = [*(sys.executable, "-m", "dbmanager", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")]
    process = subprocess.Popen(
        [*command, "--database", f"sqlite:///{path}"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split("grpc=")[1].split()[0]
    finally:
        process.terminate()
        process.communicate(timeout=40)


def put(
    store: Store,
    trial: str,
    values: Sequence[str],
    *,
    metric: str = "loss",
    namespace: str = "team-a",
    attempt: int = 0,
    pod: str | None = None,
    first: int = 0,
    steps: bool = True,
    end: bool = False,
) -> None:
    """A stream's rows, a second apart from BEGIN; step = ordinal."""
    pod = pod or f"{trial}-{attempt}"
    rows = [
        NewRow(*split_time(BEGIN + (first + n) * 10**9), metric, value, first + n if steps else None)
        for n, value in enumerate(values)
    ]
    origin = Origin(namespace, pod, f"{namespace}.{pod}.{metric}", first, end, attempt)
    store.report(Report(trial, rows, origin)).result()


def put_plain(store: Store, trial: str, rows: Sequence[tuple[str, str, str]]) -> None:
    """Rows of Katib's own writer: time, metric, value."""
    store.report(
        Report(trial, [NewRow(*database_time(at), metric, value) for at, metric, value in rows])
    ).result()


def put_curves(store: Store, trials: int, points: int, namespace: str = "team-a") -> None:
    """Trials `tune-0000`… with a falling loss and a rising accuracy, one point of each a step."""
    begin = time.time_ns() - points * 10**9
    for trial in range(trials):
        rate = 1 + 3 * trial / trials
        rows = []
        for step in range(points):
            at = split_time(begin + step * 10**9)
            loss = math.exp(-rate * step / points) + 0.03 * math.sin(step * (7 + trial)) + 0.05
            rows += [
                NewRow(*at, "loss", f"{loss:.5f}", step),
                NewRow(*at, "accuracy", f"{1 - loss / 2:.5f}", step),
            ]
        name = f"tune-{trial:04d}"
        for first in range(0, len(rows), 2000):
            origin = Origin(namespace, f"{name}-x7f", f"{namespace}.{name}", first)
            store.report(Report(name, rows[first : first + 2000], origin)).result()
