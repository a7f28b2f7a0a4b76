"""The main job, as a user runs it: from a Trial in a file to metrics in the database, with no cluster."""

import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.e2e.conftest import ROOT, Run

EXAMPLE = ROOT / "examples" / "job.yaml"
Runner = Callable[..., Run]


def trial(
    script: str, *, collector: str = "{collector: {kind: StdOut}}", metrics: str = "loss", rules: str = "[]"
) -> str:
    """A Job trial whose training is a Python script that neither flushes nor runs with -u."""
    return yaml.safe_dump(
        {
            "apiVersion": "kubeflow.org/v1beta1",
            "kind": "Trial",
            "metadata": {"name": "t", "namespace": "ns"},
            "spec": {
                "objective": {
                    "type": "minimize",
                    "objectiveMetricName": metrics.split(maxsplit=1)[0],
                    "additionalMetricNames": metrics.split()[1:],
                },
                "metricsCollector": yaml.safe_load(collector),
                "earlyStoppingRules": yaml.safe_load(rules),
                "primaryContainerName": "main",
                "runSpec": {
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "spec": {
                        "template": {
                            "spec": {
                                "restartPolicy": "Never",
                                "terminationGracePeriodSeconds": 10,
                                "containers": [
                                    {
                                        "name": "main",
                                        "image": "any:1",
                                        "command": ["python3", "-c", textwrap.dedent(script)],
                                    }
                                ],
                            }
                        }
                    },
                },
            },
        }
    )


def test_the_example_trains_and_its_metrics_arrive_while_it_runs(run: Runner) -> None:
    done = run(EXAMPLE)
    assert (done.status, done.err) == (0, "")
    assert done.table["accuracy"][0] == done.table["loss"][0] == 15
    assert 0.9 < float(done.table["accuracy"][2]) <= 1
    assert float(done.table["loss"][1]) < float(done.table["loss"][2])
    assert "Trial digits: Succeeded, exit status 0." in done.out
    first_arrival = done.out.index("in the database:")
    assert first_arrival < done.out.index("epoch=14"), "points came only at the end"


def test_every_line_of_the_training_is_shown_and_every_point_is_there_once(
    run: Runner, tmp_path: Path
) -> None:
    done = run(trial("for i in range(2000): print(f'step={i} loss={i / 7}')"))
    assert done.status == 0
    assert done.out.count("main       | step=") == 2000
    assert done.table["loss"] == (2000, "0.0", str(1999 / 7), str(1999 / 7))


def test_with_the_pod_left_alone_no_metric_arrives(run: Runner) -> None:
    done = run(trial("print('loss=1')"), "--no-inject")
    assert done.status == 0
    assert "loss=1" in done.out
    assert "No metric arrived" in done.out


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("print('loss=1'); raise SystemExit(3)", 3),
        ("print('loss=1', flush=True); import os; os.kill(os.getpid(), 9)", 137),
        ("print('loss=1'); raise RuntimeError('boom')", 1),
    ],
)
def test_a_training_that_dies_keeps_its_points_and_gives_its_status(
    run: Runner, tmp_path: Path, script: str, status: int
) -> None:
    kept = tmp_path / "kept.db"
    done = run(trial(script), "--db", str(kept))
    assert done.status == status
    assert f"Trial t: Failed, exit status {status}. Trial has failed" in done.out
    assert done.table["loss"] == (1, "1", "1", "1")
    assert kept.exists()


def test_a_kept_database_is_read_by_trialtap_metrics(run: Runner, tmp_path: Path) -> None:
    run(trial("print('loss=0.5')"), "--db", str(tmp_path / "kept.db"))
    shown = subprocess.run(
        [Path(sys.executable).with_name("trialtap"), "metrics", "t", "--db", tmp_path / "kept.db"],
        capture_output=True,
        text=True,
    )
    assert shown.returncode == 0, shown.stderr
    assert "0.5" in shown.stdout


COLLECTORS = [
    (
        "File, text",
        "{collector: {kind: File}, source: {fileSystemPath: {path: /data/out/metrics.log, kind: File}}}",
        "open('/data/out/metrics.log', 'w').write('loss=0.5\\nloss=0.25\\n')",
    ),
    (
        "File, JSON lines",
        "{collector: {kind: File}, source: {fileSystemPath: {path: /data/out/m.json, kind: File, format: JSON}}}",
        """open('/data/out/m.json', 'w').write('{"loss": 0.5}\\n{"loss": 0.25}\\n')""",
    ),
    (
        "TensorFlow events",
        "{collector: {kind: TensorFlowEvent}, source: {fileSystemPath: {path: /mnt/tb, kind: Directory}}}",
        """
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
        from tensorboard.compat.proto import event_pb2, summary_pb2
        writer = EventFileWriter('/mnt/tb')
        for step, value in enumerate((0.5, 0.25)):
            value = summary_pb2.Summary.Value(tag='loss', simple_value=value)
            writer.add_event(event_pb2.Event(wall_time=1.5 + step, step=step, summary=summary_pb2.Summary(value=[value])))
        writer.close()
        """,
    ),
    (
        "Prometheus",
        "{collector: {kind: PrometheusMetric}, source: {httpGet: {path: /metrics, port: PORT}}}",
        """
        import http.server, threading, time
        values = [b'0.5', b'0.25']
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200); self.end_headers()
                self.wfile.write(b'loss ' + (values.pop(0) if len(values) > 1 else values[0]) + b'\\n')
            def log_message(self, *_): pass
        server = http.server.ThreadingHTTPServer(('127.0.0.1', PORT), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        time.sleep(8)
        """,
    ),
]


@pytest.mark.parametrize(
    ("collector", "script"), [case[1:] for case in COLLECTORS], ids=[case[0] for case in COLLECTORS]
)
def test_metrics_arrive_from(run: Runner, collector: str, script: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    done = run(trial(script.replace("PORT", port), collector=collector.replace("PORT", port)))
    assert done.status == 0, done.out + done.err
    count, least, most, latest = done.table["loss"]
    assert (count, float(least), float(most), float(latest)) == (2, 0.25, 0.5, 0.25), done.out


def test_a_hopeless_trial_is_stopped_early_and_its_training_ends_well(run: Runner) -> None:
    script = """
    import time
    for step in range(1000):
        print(f'loss={1000 - step}')
        time.sleep(0.05)
    """
    done = run(trial(script, rules="[{name: loss, value: '3', comparison: greater, startStep: 2}]"))
    assert done.status == 0, done.out + done.err
    assert "Trial t: EarlyStopped" in done.out
    assert 2 <= done.table["loss"][0] < 900


def test_an_unknown_metric_is_said_and_no_number_is_made_up(run: Runner) -> None:
    done = run(trial("print('accuracy=0.5')", metrics="loss"))
    assert done.status == 0
    assert "loss" in done.out
    assert "accuracy" in done.out.partition("accuracy=0.5")[2], "what was seen is not named"
    assert "Trial t: MetricsUnavailable" in done.out


def test_a_port_in_use_is_one_clear_line(run: Runner) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run(EXAMPLE, "--http", address)
    assert done.status == 1
    assert len(done.err.splitlines()) == 1
    assert address in done.err


BAD_FILES = [
    ("an unknown file", None, ["nowhere.yaml", "No such file"]),
    ("no Trial in it", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n", ["trial.yaml", "no Trial"]),
    ("two Trials", trial("pass") + "---\n" + trial("pass"), ["trial.yaml", "2 Trials"]),
    (
        "a primary container that the pod lacks",
        trial("pass").replace("primaryContainerName: main", "primaryContainerName: training"),
        ["trial.yaml", "spec.primaryContainerName", "'training'", "main"],
    ),
    ("no YAML", "a: [", ["trial.yaml", "line 2"]),
    (
        "an image without a command",
        trial("pass").replace("command:", "commandX:"),
        ["trial.yaml", "command"],
    ),
]


@pytest.mark.parametrize(
    ("text", "named"), [case[1:] for case in BAD_FILES], ids=[case[0] for case in BAD_FILES]
)
def test_bad_input_is_one_line_that_names_file_and_field(
    run: Runner, text: str | None, named: list[str]
) -> None:
    done = run(text if text is not None else Path("nowhere.yaml"))
    assert done.status == 1
    assert len(done.err.splitlines()) == 1, done.err
    for word in named:
        assert word in done.err


def test_a_command_that_is_not_found_is_named_and_gives_127(run: Runner) -> None:
    done = run(trial("pass").replace("- python3", "- no-such-program"))
    assert done.status == 127
    assert "no-such-program" in done.out
