"""The run loop with files, a recorded database and a training that is told when it has ended."""

import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from collector import lifecycle
from collector.checkpoint import Checkpoint
from collector.lifecycle import Loop
from collector.reporter import Origin, Refused, Reporter
from collector.stopping import Rules
from collector.tail import FileTail
from collector.textfiles import TextFiles
from collector.watch import Watch
from tests.support.collecting import until
from trialtap.argv import CollectorArgs, StopRule
from trialtap.points import YEAR_ONE, MetricPoint


class Database:
    """Records calls in order; ours or Katib's."""

    def __init__(self, ours: bool = True) -> None:
        self.is_ours = ours
        self.away = False
        self.no_stop = False
        self.calls: list[str] = []
        self.rows: dict[str, list[str]] = {}
        self.points: list[MetricPoint] = []
        self.ended: set[str] = set()
        self.requests: list[int] = []

    def check(self) -> None:
        if self.away:
            raise Refused("again", "away")

    def ours(self, timeout: float = 0) -> bool:
        self.check()
        return self.is_ours

    def report(self, rows: Sequence[MetricPoint], origin: Origin | None, timeout: float = 0) -> int:
        self.check()
        assert (origin is not None) == self.is_ours
        self.requests.append(len(rows))
        self.points += rows
        if origin is None:
            self.rows.setdefault("", []).extend(row.value for row in rows)
            self.calls.append(f"{len(rows)} rows")
            return 0
        have = self.rows.setdefault(origin.stream, [])
        if origin.first > len(have) and not origin.gap:
            raise Refused("rewind", "missing", len(have))
        have += [row.value for row in rows[len(have) - origin.first :]]
        if origin.end:
            self.ended.add(origin.stream)
        self.calls.append(f"{len(rows)} rows" + (" end" if origin.end else ""))
        return len(have)

    def stop_trial(self, timeout: float = 0) -> None:
        if self.no_stop:
            self.calls.append("refused to mark")
            raise Refused("again", "the service is away")
        self.calls.append("marked")

    def close(self) -> None:
        self.calls.append("closed")

    def all(self) -> list[str]:
        return [value for values in self.rows.values() for value in values]


class Training:
    """See `lifecycle.Surroundings`."""

    patience = 0.1

    def __init__(self, database: Database) -> None:
        self.over = False
        self.by_signal = False
        self.database = database

    def ended(self) -> bool:
        return self.over

    def killed(self) -> bool:
        return self.by_signal

    def stop_training(self) -> bool:
        self.database.calls.append("stopped")
        return True


class World:
    """One pod: `start` runs the loop in a thread, `end` ends training and waits for it."""

    def __init__(self, folder: Path, database: Database, **settings: object) -> None:
        self.file = folder / "metrics.log"
        self.folder = folder
        self.database = database
        self.args = CollectorArgs(
            trial="t", metrics=("m", "k"), namespace="ns", kind="File", path=str(self.file)
        )
        self.args = self.args._replace(**settings)  # type: ignore[arg-type]
        self.thread: threading.Thread | None = None

    def start(self) -> "World":
        self.training = Training(self.database)
        checkpoint, _ = Checkpoint.load(str(self.folder / "checkpoint"))
        watch = Watch()
        files = TextFiles(self.args)
        loop = Loop(
            self.args,
            pod="pod",
            checkpoint=checkpoint,
            tails=[FileTail(str(self.file), "f", files, checkpoint, from_end=checkpoint.fresh)],
            reporter=Reporter(lambda: self.database, watch.pipe),
            watch=watch,
            surroundings=self.training,
            rules=Rules(self.args) if self.args.stop_rules else None,
            findings=files.findings,
        )
        self.thread = threading.Thread(target=loop.run, daemon=True)
        self.thread.start()
        until((self.folder / "checkpoint").exists)
        return self

    def write(self, text: str) -> None:
        with self.file.open("a") as file:
            file.write(text)

    def end(self) -> None:
        self.training.over = True
        assert self.thread is not None
        self.thread.join(30)
        assert not self.thread.is_alive()


@pytest.fixture
def world(tmp_path: Path) -> Callable[..., World]:
    return lambda database, **settings: World(tmp_path, database, **settings)


def test_points_come_as_they_are_written_and_the_stream_is_ended(world: Callable[..., World]) -> None:
    database = Database()
    pod = world(database).start()
    pod.write("m=1\n")
    until(lambda: database.all() == ["1"])
    pod.write("m=2")
    pod.end()
    assert database.all() == ["1", "2"]
    assert len(database.ended) == 1


def test_without_the_objective_one_row_of_year_one_says_so(
    world: Callable[..., World], capsys: pytest.CaptureFixture[str]
) -> None:
    database = Database()
    pod = world(database).start()
    pod.write("k=1 M=2\n")
    pod.end()
    assert [(p.name, p.value, p.time) for p in database.points][-1] == ("m", "unavailable", YEAR_ONE)
    assert len(database.ended) == 2
    said = capsys.readouterr().err
    assert "'m' never appeared" in said
    assert "M" in said


def test_a_training_ended_by_a_signal_gets_no_such_row(world: Callable[..., World]) -> None:
    database = Database()
    pod = world(database).start()
    pod.training.by_signal = True
    pod.end()
    assert database.all() == []


STOP = {"stop_rules": (StopRule("m", "0.5", "less", 0),), "early_stop_address": "x:1"}


def test_rows_and_end_then_the_mark_then_the_stop_then_what_is_printed_still(
    world: Callable[..., World],
) -> None:
    database = Database()
    pod = world(database, **STOP).start()
    pod.write("m=0.9\nm=0.4\n")
    until(lambda: "stopped" in database.calls)
    pod.write("m=0.3\n")
    pod.end()
    marked = database.calls.index("marked")
    assert any("end" in call for call in database.calls[:marked])
    assert database.calls.index("stopped") == marked + 1
    assert database.all() == ["0.9", "0.4", "0.3"]


def test_training_goes_on_while_the_trial_cannot_be_marked(world: Callable[..., World]) -> None:
    database = Database()
    database.no_stop = True
    pod = world(database, **STOP).start()
    pod.write("m=0.4\n")
    until(lambda: database.calls.count("refused to mark") >= 2)
    assert "stopped" not in database.calls
    pod.write("m=0.3\n")
    until(lambda: database.all() == ["0.4", "0.3"])
    database.no_stop = False
    until(lambda: "stopped" in database.calls)
    pod.end()


def test_a_stop_that_was_begun_goes_on_after_a_restart(world: Callable[..., World], tmp_path: Path) -> None:
    database = Database()
    database.no_stop = True
    pod = world(database, **STOP).start()
    pod.write("m=0.4\n")
    until(lambda: "refused to mark" in database.calls)
    saved = (tmp_path / "checkpoint").read_text()
    assert json.loads(saved)["flags"]["stop"] == "ended"
    pod.training.over = True
    assert pod.thread is not None
    pod.thread.join(30)
    (tmp_path / "checkpoint").write_text(saved)
    database.no_stop = False
    database.calls.clear()
    pod.start()
    until(lambda: "stopped" in database.calls)
    assert "marked" in database.calls
    pod.end()
    assert database.all() == ["0.4"]


def test_no_rule_counts_a_point_twice_over_a_restart(world: Callable[..., World]) -> None:
    database = Database()
    database.away = True
    settings = {**STOP, "stop_rules": (StopRule("m", "0.5", "less", 3),), "grace": 1.0}
    pod = world(database, **settings).start()
    pod.write("m=0.4\nm=0.4\n")
    time.sleep(0.3)
    pod.end()
    database.away = False
    pod.start()
    until(lambda: len(database.all()) == 2)
    assert "marked" not in database.calls, "two reports, read twice, are two"
    pod.write("m=0.4\n")
    until(lambda: "stopped" in database.calls)
    pod.end()


def test_katibs_database_gets_one_report_at_the_end(world: Callable[..., World]) -> None:
    database = Database(ours=False)
    pod = world(database).start()
    pod.write("m=1\nm=2\n")
    time.sleep(0.5)
    assert database.all() == []
    pod.write("m=3\n")
    pod.end()
    assert database.all() == ["1", "2", "3"]
    assert database.requests == [3]


def test_katibs_database_that_is_first_met_at_the_end_gets_all(world: Callable[..., World]) -> None:
    database = Database(ours=False)
    database.away = True
    pod = world(database).start()
    pod.write("m=1\nm=2\n")
    time.sleep(0.3)
    pod.training.over = True
    time.sleep(0.3)
    database.away = False
    pod.end()
    assert database.all() == ["1", "2"]


def test_a_database_that_turns_out_to_lack_rows_at_the_end_gets_them(world: Callable[..., World]) -> None:
    database = Database()
    pod = world(database).start()
    pod.write("m=1\nm=2\n")
    until(lambda: database.all() == ["1", "2"])
    database.rows.clear()
    pod.end()
    assert database.all() == ["1", "2"]


def test_katibs_database_gets_points_as_they_come_if_asked(world: Callable[..., World]) -> None:
    database = Database(ours=False)
    pod = world(database, stream=True).start()
    pod.write("m=1\n")
    until(lambda: database.all() == ["1"])
    pod.end()
    assert database.all() == ["1"]


def test_requests_to_katibs_database_hold_at_most_16000_rows(world: Callable[..., World]) -> None:
    database = Database(ours=False)
    pod = world(database).start()
    pod.write("".join(f"m={i}\n" for i in range(50_000)))
    pod.end()
    assert database.all() == [str(i) for i in range(50_000)]
    assert max(database.requests) <= 16_000


def test_early_stopping_beside_katibs_database_reports_all_before_the_mark(
    world: Callable[..., World],
) -> None:
    database = Database(ours=False)
    pod = world(database, **STOP).start()
    pod.write("m=0.9\n")
    time.sleep(0.3)
    pod.write("m=0.4\n")
    until(lambda: "stopped" in database.calls)
    assert database.all() == ["0.9", "0.4"]
    pod.write("m=0.3\n")
    pod.end()
    assert database.all() == ["0.9", "0.4", "0.3"]


def test_early_stopping_when_katibs_database_is_first_met_after_the_rules_are(
    world: Callable[..., World],
) -> None:
    database = Database(ours=False)
    database.away = True
    pod = world(database, **STOP).start()
    pod.write("m=0.9\nm=0.4\n")
    time.sleep(0.5)
    database.away = False
    until(lambda: "stopped" in database.calls)
    assert database.all() == ["0.9", "0.4"]
    pod.end()
    assert database.all() == ["0.9", "0.4"]


def test_what_is_not_delivered_is_printed_and_the_loop_ends(
    world: Callable[..., World], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "SPILL", 0.2)
    database = Database()
    database.away = True
    pod = world(database, grace=1.5, attempt=2).start()
    pod.write("step=7 m=1\nm=2")
    pod.end()
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["name"], row["value"], row["step"], row["ordinal"]) for row in rows] == [
        ("m", "1", 7, 0),
        ("m", "2", None, 1),
    ]
    assert set(rows[0]) == {
        "trial", "namespace", "name", "value", "time", "step", "pod", "stream", "ordinal", "attempt"
    }  # fmt: skip
    assert {(row["trial"], row["namespace"], row["pod"], row["attempt"]) for row in rows} == {
        ("t", "ns", "pod", 2)
    }


def test_a_stream_says_that_it_lives(world: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collector.reporter.HEARTBEAT", 0.2)
    database = Database()
    pod = world(database).start()
    time.sleep(0.5)
    assert database.calls == [], "no stream, no heartbeat"
    pod.write("m=1\n")
    until(lambda: database.calls.count("0 rows") >= 3)
    pod.end()


def test_a_heartbeat_finds_out_that_the_database_lost_rows(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collector.reporter.HEARTBEAT", 0.2)
    database = Database()
    pod = world(database).start()
    pod.write("m=1\nm=2\n")
    until(lambda: database.all() == ["1", "2"])
    database.rows.clear()
    until(lambda: database.all() == ["1", "2"])
    pod.end()


def test_polling_alone_is_enough(world: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Watch, "_begin", lambda _: None)
    database = Database()
    pod = world(database).start()
    pod.write("m=1\n")
    until(lambda: database.all() == ["1"])
    pod.end()


def test_a_checkpoint_that_cannot_be_written_is_said_and_stops_nothing(
    world: Callable[..., World], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = Database()
    pod = world(database).start()
    (tmp_path / "checkpoint.new").mkdir()
    pod.write("m=1\n")
    until(lambda: database.all() == ["1"])
    pod.end()
    assert capsys.readouterr().err.count("checkpoint cannot be written") == 1
