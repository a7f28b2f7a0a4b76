"""Every kind of source as a real collector process with a real DB manager: all points once, over kills, at the end."""

import json
import os
import random
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.collecting import ROOT, until
from tests.support.eventfiles import event, image, version
from tests.support.sidecar import Sidecar

KILLS = int(os.environ.get("TRIALTAP_FAULTS", "3"))


@pytest.fixture
def target() -> Iterator[tuple[int, dict[str, str]]]:
    """A Prometheus target: its port, and the text that it answers."""
    answer = {"text": ""}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = answer["text"].encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_address[1], answer
    server.shutdown()
    server.server_close()


def test_event_files_over_kills_late_files_and_torn_records(
    tmp_path: Path, sidecar: Callable[..., Sidecar]
) -> None:
    root = tmp_path / "events"
    argv = ("--kind", "TensorFlowEvent", "-path", str(root), "-m", "train/loss;accuracy")
    collector = sidecar(*argv)
    (root / "train").mkdir(parents=True)
    (root / "notes.txt").write_text("loss 1\n")
    wanted: dict[str, list[int]] = {"train": [], "eval": []}
    step = 0
    for _ in range(KILLS + 1):
        for run, tag in (("train", "loss"), ("eval", "accuracy")):
            (root / run).mkdir(exist_ok=True)
            path = root / run / "events.out.tfevents.1.host.2"
            new = b"" if path.exists() else version()
            for _ in range(100):
                step += 1
                wanted[run].append(step)
                new += event(step, **{tag: step / 7, "other": 1.0})
            new += image(step, 300_000)
            cut = random.randrange(len(new))
            for piece in (new[:cut], new[cut:]):  # a record is written in two halves
                with path.open("ab") as file:
                    file.write(piece)
        until(lambda: len(collector.rows()) > 20, what="rows arrive")
        collector.kill()
        collector.start()
    assert collector.end() == 0
    rows = collector.rows("metric_name", "step")
    assert [row[1] for row in rows if row[0] == "train/loss"] == wanted["train"]
    assert [row[1] for row in rows if row[0] == "accuracy"] == wanted["eval"]


@pytest.mark.parametrize("kind", ["File", "TensorFlowEvent"])
def test_what_training_writes_at_once_is_read_and_what_was_there_before_is_not(
    tmp_path: Path, sidecar: Callable[..., Sidecar], kind: str
) -> None:
    old, new = (f"loss={n}\n".encode() if kind == "File" else event(n, loss=n) for n in (1, 2))
    path = tmp_path / "events" / "tfevents.1"
    path.parent.mkdir()
    path.write_bytes((b"" if kind == "File" else version()) + old)

    def train() -> None:
        """Begin as the training does: as soon as tap is there."""
        until((tmp_path / "run" / "tap").exists, what="tap is placed")
        with path.open("ab") as file:
            file.write(new)

    training = threading.Thread(target=train)
    training.start()
    where = path if kind == "File" else path.parent
    format_ = ("-format", "TEXT") if kind == "File" else ()
    collector = sidecar("--kind", kind, *format_, "-path", str(where), "-m", "loss")
    training.join()
    until(lambda: bool(collector.rows()), what="the row arrives")
    assert collector.end() == 0
    assert collector.rows() == [("loss", "2")]


def test_json_lines_over_kills(tmp_path: Path, sidecar: Callable[..., Sidecar]) -> None:
    path = tmp_path / "metrics.jsonl"
    collector = sidecar("--kind", "File", "-format", "JSON", "-path", str(path), "-m", "eval.loss")
    wanted = 0
    for _ in range(KILLS + 1):
        with path.open("a", buffering=1) as file:
            for _ in range(100):
                wanted += 1
                file.write(json.dumps({"eval": {"loss": wanted}, "step": wanted}) + "\nnoise\n")
        until(lambda: bool(collector.rows()), what="rows arrive")
        collector.kill()
        collector.start()
    assert collector.end() == 0
    assert [int(str(row[1])) for row in collector.rows()] == list(range(1, wanted + 1))


def test_a_prometheus_target_over_kills(
    sidecar: Callable[..., Sidecar], target: tuple[int, dict[str, str]]
) -> None:
    port, answer = target
    argv = ("--kind", "PrometheusMetric", "--port", str(port), "-path", "/metrics", "-p", "0.1")
    collector = sidecar(*argv, "-m", 'loss{split="val"}')
    for value in range(KILLS + 2):
        answer["text"] = f'loss{{split="train"}} 99\nloss{{split="val"}} {value}\n'
        until(lambda value=value: len(collector.rows()) == value + 1, what="the row arrives")  # type: ignore[misc]
        if value < KILLS:
            collector.kill()
            collector.start()
    assert collector.end() == 0
    assert [row[1] for row in collector.rows()] == [str(value) for value in range(KILLS + 2)]


def test_a_prometheus_target_that_never_comes_is_unavailable_in_the_end(
    sidecar: Callable[..., Sidecar],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    collector = sidecar("--kind", "PrometheusMetric", "--port", str(port), "-p", "0.1", "-m", "loss")
    until(lambda: "waiting for" in collector.err.read_text(), what="it says so")
    assert collector.end() == 0
    assert collector.rows() == [("loss", "unavailable")]
    assert collector.err.read_text().count("waiting for") == 1


def test_the_example_of_a_custom_collector_over_kills(
    tmp_path: Path, sidecar: Callable[..., Sidecar]
) -> None:
    path = tmp_path / "metrics.csv"
    program = (str(ROOT / "examples/custom-collector/csv_collector.py"),)
    argv = ("--kind", "Custom", "-path", str(path), "-m", "loss;accuracy", "-p", "0.05")
    collector = sidecar(*argv, program=program)
    wanted = []
    path.write_text("epoch,loss,accuracy\n")
    for epoch in range(50 * (KILLS + 1)):
        wanted += [("loss", str(epoch), epoch), ("accuracy", str(-epoch), epoch)]
        with path.open("a") as file:
            file.write(f"{epoch},{epoch},{-epoch}\n")
        if epoch % 50 == 49:
            until(lambda: bool(collector.rows()), what="rows arrive")
            collector.kill()
            collector.start()
    with path.open("a") as file:
        file.write("999,1,2\n")
    assert collector.end() == 0
    rows = collector.rows("metric_name", "value", "step")
    assert rows == [*wanted, ("loss", "1", 999), ("accuracy", "2", 999)]


def test_a_custom_collector_that_cannot_work_says_why_and_harms_nothing(
    sidecar: Callable[..., Sidecar],
) -> None:
    program = (str(ROOT / "examples/custom-collector/csv_collector.py"),)
    collector = sidecar("--kind", "Custom", "-m", "loss", program=program)
    until(lambda: "fileSystemPath" in collector.err.read_text(), what="it says so")
    assert collector.end() == 0
