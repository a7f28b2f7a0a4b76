"""Storms of collectors while the database or the DB manager is killed: every acknowledged row is there, once.

TRIALTAP_FAULTS=N makes the storm N times as large (10: 200 collectors).
"""

import os
import re
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from dbmanager.rows import Selection
from dbmanager.store import Store
from tests.support.databases import MariaDB, PostgreSQL, Server, database
from tests.unit.dbmanager.conftest import Process
from trialtap.messages import GET, REPORT

SCALE = int(os.environ.get("TRIALTAP_FAULTS", "1"))
COLLECTORS = 20 * SCALE
ROWS = 400
Start = Callable[..., Process]


def report(stream: str, first: int, count: int, *, end: bool = False) -> Any:
    request = REPORT.request(trial_name="storm")
    for ordinal in range(first, first + count):
        log = request.observation_log.metric_logs.add(time_stamp=f"2026-01-01T00:00:00.{ordinal:06d}Z")
        log.metric.name, log.metric.value = "loss", str(ordinal)
    request.origin.namespace, request.origin.stream = "ns", stream
    request.origin.first, request.origin.end = first, end
    return request


class Collector:
    """Sends its rows in order, and goes on from what the server says whenever something fails."""

    def __init__(self, stream: str, address: Callable[[], str], pace: float) -> None:
        self.stream = stream
        self.acknowledged = 0
        self.failures: Counter[str] = Counter()
        self._address = address
        self._pace = pace

    def run(self, deadline: float) -> None:
        sizes = (1, 7, 20, 50)
        sent = 0
        while self.acknowledged < ROWS:
            assert time.monotonic() < deadline, (
                f"{self.stream}: {self.acknowledged} of {ROWS}, {self.failures}"
            )
            count = min(sizes[sent % len(sizes)], ROWS - self.acknowledged)
            request = report(self.stream, self.acknowledged, count, end=self.acknowledged + count == ROWS)
            try:
                with grpc.insecure_channel(
                    self._address(), [("grpc.use_local_subchannel_pool", 1)]
                ) as channel:
                    call = channel.unary_unary(
                        REPORT.path, REPORT.request.SerializeToString, REPORT.reply.FromString
                    )
                    while True:
                        reply = call(request, timeout=20)
                        sent += 1
                        assert reply.next >= self.acknowledged + count
                        self.acknowledged = reply.next
                        if self.acknowledged >= ROWS:
                            return
                        count = min(sizes[sent % len(sizes)], ROWS - self.acknowledged)
                        request = report(
                            self.stream, self.acknowledged, count, end=self.acknowledged + count == ROWS
                        )
                        time.sleep(self._pace)
            except grpc.RpcError as error:
                failed: Any = error
                self.failures[failed.code().name] += 1
                assert failed.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED), (
                    failed.details()
                )
                time.sleep(0.2)


def storm(address: Callable[[], str], faults: Callable[[], None], pace: float = 0.02) -> list[Collector]:
    collectors = [Collector(f"s{number}", address, pace) for number in range(COLLECTORS)]
    deadline = time.monotonic() + 100
    with ThreadPoolExecutor(COLLECTORS) as pool:
        running = [pool.submit(collector.run, deadline) for collector in collectors]
        faults()
        for one in running:
            one.result()
    return collectors


def check(url: str) -> None:
    """Every row of every collector once, in its order."""
    store = Store.open(url)
    found: dict[str, list[int]] = {}
    for chunk in store.rows(Selection("storm", by_id=True)):
        for row in chunk:
            found.setdefault(row.stream or "", []).append(int(row.value))
    assert sorted(found) == sorted(f"s{number}" for number in range(COLLECTORS))
    for stream, ordinals in found.items():
        assert ordinals == list(range(ROWS)), stream
    assert all(stream.next == ROWS and stream.ended_at is not None for stream in store.streams("storm"))
    store.close()


def test_a_db_manager_on_sqlite_that_is_killed_in_a_storm_loses_nothing(start: Start, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/trials.db"
    served = [start(url)]

    def faults() -> None:
        for _ in range(2):
            time.sleep(0.4)
            served[-1].kill()
            served.append(start(url))

    collectors = storm(lambda: served[-1].ports["grpc"], faults)
    assert sum(sum(collector.failures.values()) for collector in collectors) > 0
    check(url)


@pytest.fixture(
    params=[
        pytest.param(PostgreSQL, marks=pytest.mark.postgresql),
        pytest.param(MariaDB, marks=pytest.mark.mysql),
    ]
)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of this test alone, which it may kill."""
    missing = request.param.missing()
    if missing is not None:
        pytest.skip(f"{missing} is not installed")
    made = request.param()
    yield made
    made.stop()


def ready(served: Process) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{served.ports['http']}/readyz", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def eventually(check: Callable[[], bool], what: str, seconds: float = 40) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def test_a_database_that_is_killed_and_restarted_in_a_storm_loses_nothing_that_was_acknowledged(
    start: Start, server: Server
) -> None:
    with database(server.url) as url:
        served = start(url)

        def faults() -> None:
            for _ in range(2):
                time.sleep(0.5)
                server.kill()
                time.sleep(0.5)
                server.start()

        collectors = storm(lambda: served.ports["grpc"], faults)
        assert sum(collector.failures["UNAVAILABLE"] for collector in collectors) > 0
        check(url)
        status, errors = served.stop()
        assert status == 0
        assert "Traceback" not in errors


def test_readiness_follows_the_database(start: Start, server: Server) -> None:
    with database(server.url) as url:
        served = start(url)
        assert ready(served) == (200, "ok\n")
        server.kill()
        eventually(lambda: ready(served)[0] == 503, "it stays ready without a database")
        assert "the database did not answer" in ready(served)[1]
        with pytest.raises(grpc.RpcError) as error:
            served.call(REPORT, report("s0", 0, 1))
        failed: Any = error.value
        assert failed.code() == grpc.StatusCode.UNAVAILABLE
        assert "the database did not answer as it should" in failed.details()
        server.start()
        eventually(lambda: ready(served)[0] == 200, "it does not become ready again")
        assert served.call(REPORT, report("s0", 0, 1)).next == 1


def test_a_connection_that_died_while_idle_fails_no_report(start: Start, server: Server) -> None:
    with database(server.url) as url:
        served = start(url)
        assert served.call(REPORT, report("s0", 0, 1)).next == 1
        server.restart()
        assert served.call(REPORT, report("s0", 1, 1)).next == 2
        reply = served.call(GET, GET.request(trial_name="storm"))
        assert [log.metric.value for log in reply.observation_log.metric_logs] == ["0", "1"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    made = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"no file system can be mounted here: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_refuses_reports_keeps_what_was_stored_and_goes_on_once_there_is_room(
    start: Start, small_disk: Path
) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 1_000_000)
    url = f"sqlite:///{small_disk}/trials.db"
    served = start(url)
    stored = 0
    failed: Any = None
    while failed is None:
        try:
            stored = served.call(REPORT, report("s0", stored, 500)).next
        except grpc.RpcError as error:
            failed = error
    assert failed.code() == grpc.StatusCode.UNAVAILABLE
    assert re.search("disk is full|disk I/O error", failed.details())
    assert stored > 0
    store = Store.open(url, migrate=False)
    assert sum(len(chunk) for chunk in store.rows(Selection("storm"))) == stored
    store.close()
    ballast.unlink()
    assert served.call(REPORT, report("s0", stored, 10)).next == stored + 10


def test_more_waiting_than_memory_allows_is_told_to_come_again(start: Start, tmp_path: Path) -> None:
    served = start(f"sqlite:///{tmp_path}/trials.db")
    blocker = Store.open(f"sqlite:///{tmp_path}/trials.db")
    request = REPORT.request(trial_name="t")
    log = request.observation_log.metric_logs.add(time_stamp="2026-01-01T00:00:00Z")
    log.metric.name, log.metric.value = "text", "x" * 60_000
    request.observation_log.metric_logs.extend([log] * 999)  # 60 MB
    data = request.SerializeToString()
    with blocker.database.readers.connect() as connection:
        connection.exec_driver_sql("COMMIT")
        connection.exec_driver_sql("BEGIN IMMEDIATE")  # the DB manager waits for this lock
        call = served.channel.unary_unary(REPORT.path)
        waiting = [call.future(data, timeout=60) for _ in range(6)]
        eventually(lambda: any(one.done() for one in waiting), "none is refused")
        connection.exec_driver_sql("ROLLBACK")
        connection.exec_driver_sql("BEGIN")
    blocker.close()
    outcomes = Counter(one.code() for one in waiting)
    assert outcomes[grpc.StatusCode.RESOURCE_EXHAUSTED] == 2
    assert outcomes[grpc.StatusCode.OK] == 4
    assert threading.active_count() < 100
