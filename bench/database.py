"""The DB manager: rows a second to a committed row, as a share of the store alone in the same run.

    python bench/database.py                              # SQLite, in a folder of its own
    .ci/databases python bench/database.py                # PostgreSQL and MariaDB too
    python bench/database.py --read 1000000               # also read a trial of a million rows over REST

'Store alone' is one thread that hands the same batches to the driver in the same transactions (rows and
stream, durable), without protobuf, gRPC or a second process. The DB manager runs as a process, its clients
in others.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc

from dbmanager.databases import Batch
from dbmanager.rows import NewRow, database_time
from dbmanager.store import Store
from tests.support.databases import database
from trialtap.messages import REPORT


def rows(first: int, count: int) -> list[tuple[str, str, str]]:
    """Time, name and value of points as a training with two metrics writes them."""
    return [
        (
            f"2026-01-01T{index // 3_600_000 % 24:02d}:{index // 60_000 % 60:02d}:{index // 1000 % 60:02d}.{index % 1000:03d}000789Z",
            ("validation-loss", "accuracy")[index % 2],
            f"{1 / (index + 1):.6f}",
        )
        for index in range(first, first + count)
    ]


def request(trial: str, stream: str, first: int, count: int) -> bytes:
    """A report as a collector sends it."""
    made = REPORT.request(trial_name=trial)
    for index, (at, name, value) in enumerate(rows(first, count)):
        log = made.observation_log.metric_logs.add(time_stamp=at, step=first + index)
        log.metric.name, log.metric.value = name, value
    origin = made.origin
    origin.namespace, origin.pod, origin.stream, origin.first = "default", "pod", stream, first
    return bytes(made.SerializeToString())


def alone(url: str, size: int, total: int) -> float:
    """Rows a second of the driver with the stream's bookkeeping, one transaction a batch."""
    store = Store.open(url)
    kept = store.database
    batches = [
        [
            NewRow(*database_time(at), name, value, first + i)
            for i, (at, name, value) in enumerate(rows(first, size))
        ]
        for first in range(0, total, size)
    ]
    mark = "?" if kept.kind == "sqlite" else "%s"
    with kept.writers.connect() as connection:
        driver = connection.connection.driver_connection
        cursor = driver.cursor()
        cursor.execute(
            "INSERT INTO streams (id, namespace, trial_name, pod, attempt, next, seen_at) "
            "VALUES ('alone', 'default', 'alone', 'pod', 0, 0, 0)"
        )
        driver.commit()
        begun = time.perf_counter()
        for number, batch in enumerate(batches):
            if kept.kind == "sqlite":
                cursor.execute("BEGIN IMMEDIATE")
            kept.insert(connection, [Batch("alone", "default", "alone", batch)])
            cursor.execute(
                f"UPDATE streams SET next = {mark} WHERE id = {mark}",  # noqa: S608
                ((number + 1) * size, "alone"),
            )
            driver.commit()
        took = time.perf_counter() - begun
        cursor.close()
    store.close()
    return total / took


@contextlib.contextmanager
def served(url: str) -> Iterator[tuple[str, str, int]]:
    """A DB manager as a process: its addresses and its pid."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dbmanager", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--database", url,
         "--log-level", "warning"],
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stdout is not None
    ports = dict(re.findall(r"(\w+)=(\S+)", process.stdout.readline()))
    try:
        yield ports["grpc"], ports["http"], process.pid
    finally:
        process.terminate()
        process.wait(30)


def one_client(address: str, size: int, total: int) -> float:
    """Rows a second of one client that waits for each answer."""
    requests = [request("one", "one", first, size) for first in range(0, total, size)]
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(REPORT.path)
        call(request("warm", "warm", 0, 1))
        begun = time.perf_counter()
        for data in requests:
            call(data, timeout=60)
        return total / (time.perf_counter() - begun)


def _collectors(  # noqa: PLR0913, PLR0917 - what a child process is told
    address: str, numbers: range, size: int, batches: int, ready: object, go: object
) -> None:
    """Several clients in one process, each with its own connection and stream."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - in the child

    made = {
        n: [request(f"trial-{n % 20}", f"many-{n}", b * size, size) for b in range(batches)] for n in numbers
    }
    channels = {n: grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) for n in numbers}
    for channel in channels.values():
        grpc.channel_ready_future(channel).result(60)
    ready.release()  # type: ignore[attr-defined]
    go.wait()  # type: ignore[attr-defined]

    def collector(number: int) -> None:
        call = channels[number].unary_unary(REPORT.path)
        for data in made[number]:
            call(data, timeout=120)

    with ThreadPoolExecutor(len(numbers)) as pool:
        list(pool.map(collector, numbers))


def many_clients(address: str, clients: int, size: int, batches: int) -> float:
    """Rows a second of many clients at once, all together."""
    context = multiprocessing.get_context("spawn")
    ready, go = context.Semaphore(0), context.Event()
    share = clients // 4
    processes = [
        context.Process(
            target=_collectors, args=(address, range(n * share, (n + 1) * share), size, batches, ready, go)
        )
        for n in range(4)
    ]
    for process in processes:
        process.start()
    for _ in processes:
        ready.acquire()
    begun = time.perf_counter()
    go.set()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    return share * 4 * size * batches / (time.perf_counter() - begun)


def count(url: str) -> int:
    """Rows in the table."""
    store = Store.open(url)
    with store.database.readers.connect() as connection:
        found = connection.exec_driver_sql("SELECT count(*) FROM observation_logs").scalar()
    store.close()
    return int(found or 0)


def memory(pid: int) -> tuple[float, float]:
    """Resident MiB of a process now, and its peak."""
    status = Path(f"/proc/{pid}/status").read_text()
    return tuple(int(re.search(rf"{name}:\s+(\d+)", status)[1]) / 1024 for name in ("VmRSS", "VmHWM"))  # type: ignore[index, return-value]


def processor(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def reading(url: str, total: int) -> None:
    """A trial of `total` rows read over REST as NDJSON, and over gRPC thinned."""
    store = Store.open(url)
    for first in range(0, total, 20_000):
        batch = [
            NewRow(*database_time(at), name, value, first + i)
            for i, (at, name, value) in enumerate(rows(first, 20_000))
        ]
        with store.database.writers.connect() as connection, connection.begin():
            store.database.insert(connection, [Batch("large", None, None, batch)])
    store.close()
    with served(url) as (_, http, pid):
        before = memory(pid)[0]
        begun = time.perf_counter()
        first_byte = lines = 0.0
        with urllib.request.urlopen(
            f"http://{http}/api/v1/trials/large/metrics?format=ndjson", timeout=300
        ) as answer:
            while chunk := answer.read(1 << 16):
                first_byte = first_byte or time.perf_counter() - begun
                lines += chunk.count(b"\n")
        took = time.perf_counter() - begun
        print(
            f"  read {lines:,.0f} rows over REST: {lines / took:,.0f} rows/s, first bytes after {first_byte * 1000:.0f} ms, "
            f"memory {before:.0f} MiB before, {memory(pid)[1]:.0f} MiB at its peak"
        )


def measure(kind: str, url: str, total: int, read: int) -> dict[str, float]:
    """One database; prints a line each and answers the numbers."""
    found: dict[str, float] = {}
    print(kind)
    with served(url) as (address, _, pid):
        for size in (100, 1000):
            base = alone(url, size, total)
            used = processor(pid)
            rate = one_client(address, size, total)
            used = (processor(pid) - used) / total
            found |= {f"alone {size}": base, f"one client {size}": rate}
            print(
                f"  {size:>5} rows a batch: store alone {base:>9,.0f} rows/s, one client {rate:>9,.0f} rows/s "
                f"({rate / base:.0%}; the server's processor time: {used * 1e6:.1f} µs a row)"
            )
            reset(url)
        batches = max(1, total // 200 // 100)
        used = processor(pid)
        rate = many_clients(address, 200, 100, batches)
        used = (processor(pid) - used) / (200 * 100 * batches)
        lost = 200 * 100 * batches - count(url)
        found["200 clients 100"] = rate
        print(
            f"    100 rows a batch: 200 clients {rate:>9,.0f} rows/s together, {lost} rows lost "
            f"({used * 1e6:.1f} µs a row)"
        )
    if read:
        reset(url)
        reading(url, read)
    return found


def reset(url: str) -> None:
    """Empty tables."""
    store = Store.open(url)
    with store.database.writers.connect() as connection, connection.begin():
        for table in ("observation_logs", "streams"):
            connection.exec_driver_sql(f"DELETE FROM {table}")  # noqa: S608
    store.close()


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=100_000, help="of each measurement (default %(default)s)")
    parser.add_argument(
        "--read", type=int, default=0, metavar="ROWS", help="also read a trial of so many rows"
    )
    parser.add_argument("--only", choices=("sqlite", "postgresql", "mysql"))
    parser.add_argument("--json", action="store_true", help="print the numbers once more as JSON")
    args = parser.parse_args()
    found = {}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        urls = {"sqlite": f"sqlite:///{folder}/bench.db"}
        for kind in ("postgresql", "mysql"):
            server = os.environ.get(f"TRIALTAP_TEST_{kind.upper()}")
            if server is not None and args.only in (None, kind):
                urls[kind] = stack.enter_context(database(server))
        for kind, url in urls.items():
            if args.only in (None, kind):
                found[kind] = measure(kind, url, args.rows, args.read)
    if args.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
