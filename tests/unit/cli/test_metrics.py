"""`trialtap metrics`: what a user sees on the terminal."""

import json
from pathlib import Path

import pytest

from cli.__main__ import main
from dbmanager.rest import application
from dbmanager.store import Store
from tests.support.rest import put, put_plain, serving


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("metrics") / "trials.db"
    store = Store.open(f"sqlite:///{path}")
    put(store, "tune-0001", ["0.5", "0.25", "nan"])
    put(store, "tune-0001", ["0.9"], metric="acc", attempt=1)
    put(store, "tune-0002", ["nan", "oops\n\x1b[31m"])
    put(store, "both", ["1"], namespace="a")
    put(store, "both", ["2"], namespace="b")
    put_plain(store, "katib", [("2026-01-31T12:00:00Z", "loss", "7")])
    store.close()
    return path


def run(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    status = main(["metrics", *map(str, args)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_points_stand_in_a_table(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "tune-0001", "--db", path)
    assert (status, err) == (0, "")
    assert out == (
        "TIME                  METRIC  VALUE  STEP  ATTEMPT  POD\n"
        "2026-01-31T12:00:00Z  loss    0.5    0     0        tune-0001-0\n"
        "2026-01-31T12:00:00Z  acc     0.9    0     1        tune-0001-1\n"
        "2026-01-31T12:00:01Z  loss    0.25   1     0        tune-0001-0\n"
        "2026-01-31T12:00:02Z  loss    nan    2     0        tune-0001-0\n"
    )


def test_columns_that_say_nothing_are_left_out(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "katib", "--db", path)[1] == (
        "TIME                  METRIC  VALUE\n2026-01-31T12:00:00Z  loss    7\n"
    )


@pytest.mark.parametrize(
    ("args", "values"),
    [
        (["--metric", "loss"], ["0.5", "0.25", "nan"]),
        (["--attempt", "1"], ["0.9"]),
        (["--metric", "acc", "--metric", "loss", "--attempt", "0"], ["0.5", "0.25", "nan"]),
    ],
)
def test_points_can_be_chosen(
    path: Path, capsys: pytest.CaptureFixture[str], args: list[str], values: list[str]
) -> None:
    _, out, _ = run(capsys, "tune-0001", "--db", path, "--output", "ndjson", *args)
    assert [json.loads(line)["value"] for line in out.splitlines()] == values


def test_what_a_training_printed_cannot_command_the_terminal(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = run(capsys, "tune-0002", "--db", path)
    assert "\x1b" not in out
    assert "oops\\n\\x1b[31m" in out


def test_a_plot_has_a_curve_of_each_metric(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "tune-0001", "--db", path, "--plot", "--metric", "loss")
    assert status == 0
    assert "loss (1 not finite, left out)" in out
    assert "step" in out
    assert "0.50" in out
    assert "\x1b" not in out
    assert "nothing to draw" in run(capsys, "tune-0002", "--db", path, "--plot")[1]


FAULTS = [
    (["tune-001"], "no trial tune-001 in {db}; did you mean tune-0001"),
    (["zzz"], "no trial zzz in {db}; the database holds 5 other trials"),
    (
        ["tune-0001", "-n", "b"],
        "trial tune-0001 is not in namespace b but in team-a: choose with --namespace",
    ),
    (["both"], "trial both is in the namespaces a, b: choose one with --namespace"),
    (["tune-0001", "--metric", "los"], "trial tune-0001 has no metric los; it has acc, loss"),
    (["tune-0001", "--attempt", "7"], "it has attempts 0, 1"),
]


@pytest.mark.parametrize(("args", "message"), FAULTS)
@pytest.mark.parametrize("how", ["path", "rest"])
def test_a_fault_is_one_line_with_the_next_step(
    path: Path, capsys: pytest.CaptureFixture[str], args: list[str], message: str, how: str
) -> None:
    if how == "path":
        db = str(path)
        status, out, err = run(capsys, *args, "--db", db)
    else:
        store = Store.open(f"sqlite:///{path}")
        with serving(application(store)) as db:
            status, out, err = run(capsys, *args, "--db", db)
        store.close()
        if "both" in args:  # the server's own words
            message = "namespace: trial both is in a, b; name one of them"
    assert (status, out) == (1, "")
    assert message.format(db=db) in err
    assert err.count("\n") == 1


def test_an_address_that_is_none(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    empty = tmp_path / "empty.db"
    empty.touch()
    text = tmp_path / "text.db"
    text.write_text("no database")
    for db, message in [
        (tmp_path / "no.db", "there is no such file"),
        (tmp_path, "is a directory"),
        (empty, "is no SQLite database but an empty file"),
        (text, "is no SQLite database"),
        ("sqlite:////no/such.db", "there is no such file"),
        ("http://127.0.0.1:1", "is the DB manager running there"),
        ("127.0.0.1:1", "is a DB manager running there"),
    ]:
        status, out, err = run(capsys, "t", "--db", db)
        assert (status, out) == (1, "")
        assert message in err
        assert err.count("\n") == 1
    assert empty.stat().st_size == 0
