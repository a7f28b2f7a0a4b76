"""`trialtap collect` as a person runs it: points on stdout, what was seen and what is missing on stderr."""

import io
import json
import socket
import sys
from pathlib import Path

import pytest

from cli.__main__ import main

TREES = "tests/cases/tfevents"


def collect(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, list[dict[str, object]], str]:
    """Run the command: exit status, the points, stderr."""
    status = main(["collect", *argv])
    out, err = capsys.readouterr()
    return status, [json.loads(line) for line in out.splitlines()], err


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "train.log"
    path.write_text(
        "2024-03-04T17:55:08Z epoch=1 loss=0.5 Accuracy=0.9\n"
        "val-accuracy=0.8 loss=1,2\n"
        "accuracy : 0.9\n"
        "2024-03-04T17:55:09.25Z epoch=2 loss=0.4"
    )
    return str(path)


def test_points_are_json_lines_with_time_and_step(capsys: pytest.CaptureFixture[str], log: str) -> None:
    status, points, err = collect(capsys, "--path", log, "-m", "loss")
    assert status == 0
    assert points == [
        {"name": "loss", "value": "0.5", "time": "2024-03-04T17:55:08Z", "step": 1},
        {"name": "loss", "value": "0.4", "time": "2024-03-04T17:55:09.25Z", "step": 2},
    ]
    assert "2 lines or records matched, 2 points: loss 2" in err
    assert "number with a comma" in err


@pytest.mark.parametrize(
    ("wanted", "closest"),
    [
        ("accuracy", "'accuracy : 0.9'"),
        ("ACCURACY", "'Accuracy=0.9'"),
        ("val_accuracy", "'val-accuracy=0.8'"),
    ],
)
def test_what_comes_closest_to_a_missing_name_is_said(
    capsys: pytest.CaptureFixture[str], log: str, wanted: str, closest: str
) -> None:
    status, points, err = collect(capsys, "--path", log, "-m", "loss", wanted)
    assert status == 1
    assert {point["name"] for point in points} == {"loss"}
    (line,) = (line for line in err.splitlines() if line.startswith(f"metric {wanted!r}"))
    assert closest in line
    assert "metric 'loss'" not in err


def test_filters_replace_the_default_pattern(capsys: pytest.CaptureFixture[str], log: str) -> None:
    status, points, _ = collect(capsys, "--path", log, "-m", "accuracy", "-f", r"([\w-]+) : ([0-9.]+)")
    assert (status, [point["value"] for point in points]) == (0, ["0.9"])


def test_standard_input(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"loss=1\nloss=2")))
    status, points, _ = collect(capsys, "--path", "-", "-m", "loss")
    assert (status, [point["value"] for point in points]) == (0, ["1", "2"])


def test_json_lines_with_nested_names(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('hello\n{"eval": {"loss": 0.5}, "step": 3}\n{"eval": {"loss": NaN}}\n')
    status, points, err = collect(capsys, "--path", str(path), "--format", "JSON", "-m", "eval.loss", "loss")
    assert status == 1
    assert [(point["value"], point["step"]) for point in points] == [("0.5", 3), ("nan", None)]
    assert "skipped, no JSON object: 1" in err
    assert "metric 'loss' was not found; closest: 'eval.loss'" in err


def test_a_directory_of_event_files(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("--kind", "TensorFlowEvent", "--path", f"{TREES}/keras")
    status, points, err = collect(capsys, *argv, "-m", "train/epoch_loss", "epoch_los")
    assert status == 1
    assert [point["step"] for point in points] == [0, 1, 2, 3]
    assert "validation/epoch_mae" in err
    assert "metric 'epoch_los' was not found; closest: 'train/epoch_loss', 'validation/epoch_loss'" in err


def test_damage_anywhere_in_event_files_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("--kind", "TensorFlowEvent", "--path", f"{TREES}/damaged")
    _, _, err = collect(capsys, *argv, "-m", "no-such-tag")
    assert "skipped, damaged records: 1" in err


def test_one_event_file(capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = Path(TREES, "torch").iterdir()
    status, points, _ = collect(capsys, "--kind", "TensorFlowEvent", "--path", str(path), "-m", "accuracy")
    assert (status, len(points)) == (0, 20)


def test_a_saved_answer_of_a_prometheus_target(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "metrics"
    path.write_text('loss{split="val"} 0.5 1700000000\nloss{split="train"} 0.4 1700000000\n# EOF\n')
    argv = ("--kind", "PrometheusMetric", "--path", str(path))
    status, points, _ = collect(capsys, *argv, "-m", 'loss{split="val"}')
    assert status == 0
    assert [(point["value"], point["time"]) for point in points] == [("0.5", "2023-11-14T22:13:20Z")]
    status, _, err = collect(capsys, *argv, "-m", "val_loss")
    assert status == 1
    assert "closest: 'loss{" in err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--path", "/nowhere/at/all"), "--path /nowhere/at/all: there is no such"),
        (("--path", ".", "-f", "("), "is no RE2 pattern"),
        (("--path", ".", "-f", "(a)"), "two groups"),
        (("--path", ".", "--format", "JSON", "-f", "(a)(b)"), "--format JSON takes no -f"),
        (("--path", ".", "--kind", "TensorFlowEvent", "-f", "(a)(b)"), "takes neither --format nor -f"),
        (("--path", "https://localhost/metrics", "--kind", "PrometheusMetric"), "http://HOST:PORT/PATH"),
        (("--path", "/nowhere/at/all", "--kind", "PrometheusMetric"), "/nowhere/at/all"),
    ],
)
def test_what_cannot_be_done_is_said_with_status_2(
    capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], message: str
) -> None:
    status, points, err = collect(capsys, *argv, "-m", "loss")
    assert (status, points) == (2, [])
    assert message in err
    assert len(err.splitlines()) == 1


def test_a_target_that_does_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}/metrics"
    status, _, err = collect(capsys, "--kind", "PrometheusMetric", "--path", url, "-m", "loss")
    assert status == 2
    assert url in err
    assert "refused" in err
