"""`trialtap db`: nobody is locked in, and nothing is doubled."""

import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cli.__main__ import main
from dbmanager.rest import application
from dbmanager.rows import Selection
from dbmanager.store import Store
from tests.support.rest import manager, put, put_plain, serving


def run(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    status = main(["db", *map(str, args)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def content(path: Path) -> list[tuple[object, ...]]:
    """All rows of all trials, ids apart."""
    store = Store.open(f"sqlite:///{path}")
    found = [
        (key, *row[1:])
        for key in store.trials()
        for chunk in store.rows(Selection(key.name, key.namespace, by_id=True))
        for row in chunk
    ]
    store.close()
    return found


def empty(path: Path) -> Path:
    Store.open(f"sqlite:///{path}").close()
    return path


@pytest.fixture
def full(tmp_path: Path) -> Path:
    path = tmp_path / "full.db"
    store = Store.open(f"sqlite:///{path}")
    put(store, "t", ["0.5", "nan", 'a,"b"\n\u00e4😀'])
    put(store, "t", ["1", "2"], attempt=1, steps=False)
    put(store, "t", ["3"], namespace="other")
    put_plain(
        store,
        "katib",
        [("2026-01-31T12:00:00.123456789Z", "loss", "7"), ("2026-01-31T12:00:01Z", "loss", "7")],
    )
    store.close()
    return path


@pytest.mark.parametrize("form", ["ndjson", "csv"])
def test_what_is_exported_is_imported_whole_and_once(
    full: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    file, copy = tmp_path / f"file.{form}", empty(tmp_path / "copy.db")
    assert run(capsys, "export", "--db", full, "--format", form, "--output", file)[0] == 0
    status, _, said = run(capsys, "import", "--db", copy, file)
    assert (status, said) == (0, "8 points of 2 trials stored\n")
    assert content(copy) == content(full)
    assert (
        run(capsys, "import", "--db", copy, file)[2] == "0 points of 2 trials stored, 8 were there already\n"
    )
    assert (
        run(capsys, "import", "--db", full, file)[2] == "0 points of 2 trials stored, 8 were there already\n"
    )
    assert content(copy) == content(full)


def test_export_by_rest_is_the_same_as_from_the_file(full: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from_file = run(capsys, "export", "--db", full)[1]
    store = Store.open(f"sqlite:///{full}")
    with serving(application(store)) as url:
        by_rest = run(capsys, "export", "--db", url)[1]
    store.close()
    assert by_rest == from_file


def test_a_collectors_log_brings_what_the_database_missed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other lines lie between; some points arrived before; a line is cut; kubectl put times before them."""
    path = tmp_path / "t.db"
    store = Store.open(f"sqlite:///{path}")
    put(store, "t", ["0", "1"])
    store.close()

    def line(ordinal: int) -> str:
        return json.dumps(
            {
                "trial": "t",
                "namespace": "team-a",
                "name": "loss",
                "value": str(ordinal),
                "time": f"2026-01-31T12:00:{ordinal:02}Z",
                "step": ordinal,
                "pod": "t-0",
                "stream": "team-a.t-0.loss",
                "ordinal": ordinal,
                "attempt": 0,
            }
        )

    log = ["the database does not answer", *map(line, range(1, 6)), line(6)[:40], '{"level": "info"}']
    log += ["2026-12-01T12:00:00.1Z " + line(7), line(9)]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(log)))
    status, _, said = run(capsys, "import", "--db", path, "-")
    assert (status, said) == (0, "6 points of 1 trials stored, 1 were there already, 3 other lines skipped\n")
    assert [row[4] for row in content(path)] == ["0", "1", "2", "3", "4", "5", "7", "9"]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(log)))
    assert "0 points" in run(capsys, "import", "--db", path, "-")[2]


def test_a_file_in_any_order_loses_nothing(
    full: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = run(capsys, "export", "--db", full)[1].splitlines()
    file, copy = tmp_path / "file", empty(tmp_path / "copy.db")
    file.write_text("\n".join(reversed(lines)))
    assert run(capsys, "import", "--db", copy, file)[2].startswith("8 points")
    assert sorted(map(str, content(copy))) == sorted(map(str, content(full)))


def test_a_point_that_no_database_takes_is_named_and_the_others_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = {"trial": "t", "namespace": "a", "name": "loss", "value": "1", "time": "2026-01-31T12:00:00Z"}
    bad = [{"name": "x" * 256}, {"value": "a\0b"}, {"time": "yesterday"}]
    origin = {"pod": "p", "stream": "s", "attempt": 0}
    lines = [base | origin | fault | {"ordinal": n} for n, fault in enumerate([{}, *bad, {}])]
    file, path = tmp_path / "file", empty(tmp_path / "t.db")
    file.write_text("\n".join(map(json.dumps, lines)))
    status, _, said = run(capsys, "import", "--db", path, file)
    assert status == 1
    assert said.splitlines()[0] == "2 points of 1 trials stored"
    assert "3 points cannot be stored; the first: " in said
    assert len(content(path)) == 2


def test_import_through_a_running_db_manager_is_the_same(
    full: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, copy = tmp_path / "file.ndjson", tmp_path / "copy.db"
    run(capsys, "export", "--db", full, "--output", file)
    with manager(copy) as address:
        assert run(capsys, "import", "--db", address, file)[2] == "8 points of 2 trials stored\n"
        again = run(capsys, "import", "--db", address, file)[2]
        assert again == "0 points of 2 trials stored, 8 were there already\n"
    assert content(copy) == content(full)


def test_the_events_go_on_as_points_come(full: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    command = [
        sys.executable,
        "-m",
        "cli",
        "db",
        "export",
        "--db",
        str(full),
        "--tensorboard",
        str(runs),
        "--follow",
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        wait_for((runs / "team-a" / "t" / ".trialtap.json").exists)
        store = Store.open(f"sqlite:///{full}")
        put(store, "t", ["0.125"], first=3)
        put(store, "new", ["1"])
        store.close()
        wait_for((runs / "team-a" / "new" / ".trialtap.json").exists)
        wait_for(lambda: len(scalars(runs / "team-a/t")["loss"]) == 3)
    finally:
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
    assert said.startswith(f"9 points written to {runs}")


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def scalars(run: Path) -> dict[str, list[tuple[int, float, float]]]:
    found = EventAccumulator(str(run)).Reload()
    return {
        tag: [(event.step, event.wall_time, event.value) for event in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }


def test_tensorboard_shows_one_run_a_trial_and_a_second_export_adds_what_is_new(
    full: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    status, _, said = run(capsys, "export", "--db", full, "--tensorboard", runs)
    assert (status, said) == (0, f"7 points written to {runs}, 1 that are no numbers left out\n")
    assert sorted(str(path.parent.relative_to(runs)) for path in runs.rglob("events*")) == [
        *("no-namespace/katib", "other/t", "team-a/t", "team-a/t.attempt-1")
    ]
    assert scalars(runs / "team-a/t.attempt-1")["loss"] == [(1, 1769860800, 1), (2, 1769860801, 2)]
    assert scalars(runs / "team-a/t")["loss"][0] == (0, 1769860800, 0.5)
    store = Store.open(f"sqlite:///{full}")
    put(store, "t", ["0.125"], first=3)
    store.close()
    assert run(capsys, "export", "--db", full, "--tensorboard", runs)[2] == f"1 points written to {runs}\n"
    found = scalars(runs / "team-a/t")["loss"]
    assert [step for step, _, _ in found] == [0, 1, 3]


def test_the_folders_of_runs_stay_inside_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.db"
    store = Store.open(f"sqlite:///{path}")
    put(store, "../../up", ["1"], pod="p")
    put(store, "a/b", ["1"], pod="q")
    store.close()
    assert run(capsys, "export", "--db", path, "--tensorboard", tmp_path / "in" / "runs")[0] == 0
    assert {str(file.parent.relative_to(tmp_path)) for file in tmp_path.rglob("events*")} == {
        "in/runs/team-a/__.._up",
        "in/runs/team-a/a_b",
    }


FAULTS = [
    (["export", "--db", "{db}", "nobody"], 1, "no trial nobody in {db}; "),
    (["export", "--db", "{db}", "--prefix", "x"], 1, "holds no trial that begins so"),
    (["export", "--db", "{db}", "--follow"], 2, "--follow goes with --tensorboard DIR"),
    (["export", "--db", "{db}", "--output", "/no/such/file"], 1, "--output /no/such/file: No such file"),
    (["export", "--db", "localhost:1"], 1, "gRPC has no list of trials; name them"),
    (["import", "--db", "http://localhost:1", "{db}"], 2, "REST takes no points; give HOST:PORT"),
    (["import", "--db", "{db}", "/no/such"], 2, "/no/such: there is no such file"),
]


@pytest.mark.parametrize(("args", "status", "message"), FAULTS)
def test_a_fault_is_said_on_one_line(
    full: Path, capsys: pytest.CaptureFixture[str], args: list[str], status: int, message: str
) -> None:
    got, out, err = run(capsys, *(arg.format(db=full) for arg in args))
    assert (got, out) == (status, "")
    assert message.format(db=full) in err
    assert err.count("\n") == 1
