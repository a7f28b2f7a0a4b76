"""What the page asks for 100 trials of 10,000 points: milliseconds, first and again, beside reading the rows.

    .venv/bin/python bench/page.py [--database URL] [--trials 100] [--points 10000]

The peer in the same run is the plain way: every row of every trial through `Store.rows`, the same
points drawn from it.
"""

import argparse
import gc
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import httpx
import numpy as np

from dbmanager.rest import application
from dbmanager.rest_curves import curve, numbers
from dbmanager.rows import NewRow, Origin, Report, Selection, split_time
from dbmanager.store import Store
from tests.support.rest import serving


def fill(store: Store, trials: int, points: int) -> None:
    """Trials that report side by side, 100 points at a time, as a running experiment does."""
    begin = time.time_ns() - points * 10**9
    for first in range(0, points, 100):
        futures = []
        for trial in range(trials):
            rate = 1 + trial / trials
            rows = [
                NewRow(
                    *split_time(begin + step * 10**9 + trial * 1000),
                    "loss",
                    f"{math.exp(-rate * step / points) + random.random() / 10:.6f}",
                    step,
                )
                for step in range(first, first + 100)
            ]
            origin = Origin("bench", f"pod-{trial}", f"{trial:032x}-0", first, first + 100 >= points)
            futures.append(store.report(Report(f"experiment-{trial:04d}", rows, origin)))
        for future in futures:
            future.result()


def timed(ask: Callable[[], object]) -> float:
    """Milliseconds of one call."""
    gc.collect()
    begin = time.perf_counter()
    ask()
    return (time.perf_counter() - begin) * 1000


def main() -> None:
    """Fill, ask, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--database", help="URL; default: a new SQLite file")
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--points", type=int, default=10_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(args.database or f"sqlite:///{folder}/page.db")
        fill(store, args.trials, args.points)
        names = [f"experiment-{trial:04d}" for trial in range(args.trials)]
        body = {"trials": [{"name": name, "namespace": "bench"} for name in names], "buckets": 200}

        def ask(client: httpx.Client, **more: object) -> bytes:
            """Until the last byte is there; a browser then needs some milliseconds for the JSON."""
            return client.post("/api/v1/curves", json=body | more).raise_for_status().content

        def plain() -> None:
            for name in names:
                rows = [row for chunk in store.rows(Selection(name, "bench")) for row in chunk]
                curve(np.array([float(row.step or 0) for row in rows]), numbers([r.value for r in rows]), 200)

        cold = []
        for _ in range(3):
            with serving(application(store)) as url, httpx.Client(base_url=url, timeout=60) as client:
                client.get("/api/v1/trials")
                cold.append(timed(lambda client=client: ask(client)))
        with serving(application(store)) as url, httpx.Client(base_url=url, timeout=60) as client:
            drawn = json.loads(ask(client))["curves"]
            assert [curve["count"] for curve in drawn] == [args.points] * args.trials
            again = [timed(lambda: ask(client)) for _ in range(7)]
            by_time = [timed(lambda: ask(client, x="time")) for _ in range(7)]
            zoomed = [timed(lambda: ask(client, first=1000, last=2000)) for _ in range(7)]
        rows = timed(plain)
        store.close()
    print(f"{args.trials} trials of {args.points} points, {store.database.kind}")
    for label, found in (
        ("first look (nothing in memory)", cold),
        ("again, by step", again),
        ("again, by time", by_time),
        ("zoomed in", zoomed),
    ):
        best = statistics.median(found)
        print(f"{label:32} {best:7.0f} ms   {rows / best:5.1f} x faster than every row ({rows:.0f} ms)")


if __name__ == "__main__":
    main()
