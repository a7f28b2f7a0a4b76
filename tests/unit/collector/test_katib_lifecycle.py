"""Katib's lifecycle with real processes, in a process namespace of its own where the machine allows one."""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest

from collector.katib import Process, descendants, metrics_directory, processes, read
from tests.support.collecting import ROOT
from trialtap import messages
from trialtap.argv import CollectorArgs


class Services:
    """Katib's DB manager, which knows no fields of ours, and the EarlyStopping service, recorded."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str]] = []
        self.calls: list[str] = []
        self.server = grpc.server(futures.ThreadPoolExecutor(4))
        self.server.add_generic_rpc_handlers((self,))
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def service(self, details: Any) -> Any:
        for method in (messages.GET, messages.REPORT, messages.SET_TRIAL_STATUS):
            if method.path == details.method:
                return grpc.unary_unary_rpc_method_handler(
                    getattr(self, method.name), method.request.FromString, method.reply.SerializeToString
                )
        return None

    def GetObservationLog(self, request: Any, context: Any) -> Any:  # noqa: N802 - the method's name
        return messages.GetObservationLogReply()

    def ReportObservationLog(self, request: Any, context: Any) -> Any:  # noqa: N802
        logs = request.observation_log.metric_logs
        self.rows += [(log.metric.name, log.metric.value) for log in logs]
        self.calls.append("report")
        assert not request.HasField("origin")
        return messages.ReportObservationLogReply()

    def SetTrialStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.calls.append("marked")
        return messages.SetTrialStatusReply()


@pytest.fixture
def services() -> Iterator[Services]:
    made = Services()
    yield made
    made.server.stop(0).wait()


NAMESPACE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"]


def namespaces() -> bool:
    return subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode == 0


needs_namespace = pytest.mark.skipif(not namespaces(), reason="this machine allows no process namespace")

# The first process of the namespace stands for the pause container: containers' processes have the parent 0,
# which only a runtime outside can bring about. So a copy of /proc's facts is looked at through a shim that
# says so of its children.
INIT = """
import os, sys, runpy
import collector.katib as katib
real = katib.read
def seen(pid, proc="/proc"):
    process = real(pid, proc)
    return process._replace(parent=0) if process and process.parent == 1 else process
katib.read = seen
sys.argv = sys.argv[1:]
from collector.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def run_pod(
    folder: Path, services: Services, training: str, *flags: str, before: str = "true", wait: float = 60
) -> tuple[int, str, str]:
    """Run Katib's two containers, in shells as its webhook writes them; give exit code, stdout and stderr."""
    (folder / "init.py").write_text(INIT)
    metrics = folder / "metrics.log"
    pid_file = f"{folder}/$$.pid"
    stopped = (
        f"if test -f {pid_file} && test $(head -n 1 {pid_file}) = early-stopped; then exit 0; else exit 1; fi"
    )
    wrapped = f"{training} 1>{metrics} 2>&1 || {{ {stopped}; }} && echo completed > {pid_file}"
    argv = [
        sys.executable,
        str(folder / "init.py"),
        "collector",
        "-t",
        "t",
        "-m",
        "m;k",
        "-o-type",
        "minimize",
    ]
    argv += ["-s-db", services.address, "-path", str(metrics), "-format", "TEXT", "-w", "false", "-p", "1"]
    argv += flags
    pod = folder / "pod.sh"  # in a file: the first process must not look like the training itself
    pod.write_text(
        f"sleep 1000 & sh -c {shlex.quote(wrapped)} &\n{before}\n{shlex.join(argv)}\ncode=$?; kill %1; exit $code\n"
    )
    done = subprocess.run(
        [*NAMESPACE, "bash", str(pod)],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=wait,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
    )
    return done.returncode, done.stdout, done.stderr


def python(script: str) -> str:
    return shlex.join([sys.executable, "-c", script])


@needs_namespace
def test_only_the_trainings_process_counts_for_the_end(tmp_path: Path, services: Services) -> None:
    code, out, err = run_pod(tmp_path, services, python("for i in range(3): print(f'm={i} k=7')"))
    assert code == 0, err
    assert services.rows == [(name, value) for i in "012" for name, value in (("m", i), ("k", "7"))]
    assert services.calls == ["report"], "once, at the end, though a process beside it never ends"
    assert out.splitlines() == ["m=0 k=7", "m=1 k=7", "m=2 k=7"], "the training's lines are echoed"
    assert [path.read_text().strip() for path in tmp_path.glob("[0-9]*.pid")] == ["completed"]


@needs_namespace
def test_a_training_that_failed_is_reported_nevertheless(tmp_path: Path, services: Services) -> None:
    code, _, err = run_pod(tmp_path, services, python("print('m=1'); raise SystemExit(3)"))
    assert code == 0, err
    assert services.rows == [("m", "1")]
    assert "so it failed" in err or "before this collector started" in err


@needs_namespace
def test_early_stopping_marks_the_trial_then_ends_every_process(tmp_path: Path, services: Services) -> None:
    script = (
        "import subprocess, sys, time, signal\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(500)'], start_new_session=True)\n"
        "signal.signal(signal.SIGTERM, lambda *a: (print('m=0.1', flush=True), sys.exit(1)))\n"
        "for i in range(9, 0, -1):\n"
        "    print(f'm=0.{i}'); subprocess.run(['true']); time.sleep(0.2)\n"
        "time.sleep(300)\n"
    )
    flags = ["-stop-rule", "m;0.5;less;0", "-s-earlystop", services.address]
    began = time.monotonic()
    code, _, err = run_pod(tmp_path, services, python(script), *flags, "--grace", "5")
    assert code == 0, err
    assert time.monotonic() - began < 60
    assert services.calls.index("marked") > 0
    assert services.rows[:5] == [("m", f"0.{i}") for i in range(9, 4, -1)]
    assert ("m", "0.1") in services.rows, "what it still prints is added"
    (marker,) = tmp_path.glob("[0-9]*.pid")
    assert marker.read_text().strip() in {"early-stopped", "completed"}


@needs_namespace
def test_a_training_that_ended_before_the_collector_came_still_counts(
    tmp_path: Path, services: Services
) -> None:
    code, _, err = run_pod(tmp_path, services, "sh -c 'echo m=1'", before="sleep 1.5")
    assert code == 0, err
    assert services.rows == [("m", "1")]
    assert "ended before this collector started" in err


def test_processes_that_vanish_are_no_trouble() -> None:
    children = [subprocess.Popen(["true"]) for _ in range(20)]
    for _ in range(20):
        assert os.getpid() in {process.pid for process in processes()}
    for child in children:
        child.wait()
    assert read(children[0].pid) is None


def test_all_descendants_are_found() -> None:
    def process(pid: int, parent: int) -> Process:
        return Process(pid, parent, "0", "")

    every = [process(1, 0), process(2, 1), process(3, 2), process(4, 1), process(5, 9)]
    assert [p.pid for p in descendants(1, every)] == [2, 4, 3]


@pytest.mark.parametrize(
    ("format_", "path", "directory"),
    [("TEXT", "/a/b/m.log", "/a/b"), (None, "/a/tf/", "/a/tf"), (None, "/a/tf", "/a/tf")],
)
def test_markers_stand_beside_the_file_or_in_the_directory(
    format_: str | None, path: str, directory: str
) -> None:
    assert metrics_directory(CollectorArgs(trial="t", metrics=("m",), format=format_, path=path)) == directory
