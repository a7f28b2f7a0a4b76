"""The real parts around a collector, as processes: DB manager, a link that can be cut, tap, training."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

from trialtap import messages

ROOT = Path(__file__).parents[2]
TAP = ROOT / "collector/tap"
PYTHON = sys.executable


def until(true: Callable[[], object], seconds: float = 30, what: str = "") -> None:
    """Wait for something to become true; fail after so many seconds."""
    limit = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < limit, f"not within {seconds} s: {what or true}"
        time.sleep(0.02)


class DbManager:
    """`python -m dbmanager` on an SQLite file; it can be killed, stopped and started again."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "rows.db"
        self.log = folder / "dbmanager.log"
        self.process: subprocess.Popen[str] | None = None
        self.address = ""

    def start(self) -> None:
        local = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [PYTHON, "-m", "dbmanager", *local, "--database", f"sqlite:///{self.file}"],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
            )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("dbmanager ready"):
                self.address = next(w for w in line.split() if w.startswith("grpc="))[5:]
                return
        raise AssertionError(self.log.read_text())

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            if self.process.stdout:
                self.process.stdout.close()
            self.process = None

    def rows(self, trial: str, *columns: str) -> list[tuple[Any, ...]]:
        """Read the table itself, in the order in which rows were stored."""
        with sqlite3.connect(f"file:{self.file}?mode=ro", uri=True) as connection:
            query = f"select {', '.join(columns)} from observation_logs where trial_name = ? order by id"  # noqa: S608
            return connection.execute(query, (trial,)).fetchall()


class Link:
    """A gRPC relay before the DB manager that can refuse, and can lose answers after the rows are stored."""

    def __init__(self, target: Callable[[], str]) -> None:
        self.target = target
        self.before: Callable[[], bool] = lambda: False
        self.after: Callable[[], bool] = lambda: False
        self.lost = 0
        self.marked: list[dict[str, str]] = []
        self._channels: dict[str, grpc.Channel] = {}
        self._server = grpc.server(futures.ThreadPoolExecutor(8))
        self._server.add_generic_rpc_handlers((self,))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def service(self, details: Any) -> Any:
        if details.method == messages.SET_TRIAL_STATUS.path:
            return grpc.unary_unary_rpc_method_handler(self._mark)

        def relay(data: bytes, context: grpc.ServicerContext) -> bytes:
            if self.before():
                context.abort(grpc.StatusCode.UNAVAILABLE, "the link is cut")
            channel = self._channels.get(self.target())
            if channel is None:
                channel = self._channels[self.target()] = grpc.insecure_channel(self.target())
            try:
                answer: bytes = channel.unary_unary(details.method)(data, timeout=5)
            except grpc.RpcError as error:
                context.set_trailing_metadata(error.trailing_metadata() or ())
                context.abort(error.code(), error.details() or "")
            if self.after():
                self.lost += 1
                context.abort(grpc.StatusCode.UNAVAILABLE, "the answer was lost")
            return answer

        return grpc.unary_unary_rpc_method_handler(relay)

    def _mark(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        """Stand for the EarlyStopping service: note the trial and the metadata."""
        trial = messages.SetTrialStatusRequest.FromString(data).trial_name
        self.marked.append({"trial": trial, **dict(context.invocation_metadata())})
        return b""

    def close(self) -> None:
        self._server.stop(0).wait()
        for channel in self._channels.values():
            channel.close()


class Pod:
    """The private volume of one pod, its collector and its training behind tap."""

    def __init__(self, folder: Path, address: str, db: DbManager) -> None:
        self.folder = folder
        self.db = db
        self.trial = "trial-1"
        self.directory = folder / "run"
        self.argv = ["-m", "point;other", "-s-db", address, "--kind", "StdOut", "--namespace", "ns"]
        self.collector: subprocess.Popen[bytes] | None = None
        self.err = folder / "collector.err"
        self.out = folder / "collector.out"

    def start(self) -> None:
        environment = {**os.environ, "TRIALTAP_DIRECTORY": str(self.directory), "TRIALTAP_POD_NAME": "pod-1"}
        environment["PYTHONPATH"] = str(ROOT)
        argv = ["-t", self.trial, *self.argv]
        with self.err.open("ab") as err, self.out.open("ab") as out:
            self.collector = subprocess.Popen(
                [PYTHON, "-m", "collector", *argv], env=environment, cwd=self.folder, stdout=out, stderr=err
            )

    def kill(self) -> None:
        assert self.collector is not None
        self.collector.kill()
        self.collector.wait()

    def train(self, script: str, *argv: str) -> "subprocess.Popen[bytes]":
        """Start a Python script behind tap, as the injected command does."""
        until(lambda: os.access(self.directory / "tap", os.X_OK), what="tap is placed")
        run = str(self.directory)
        command = [f"{run}/tap", "--to", f"{run}/out", "--control", f"{run}/control", "--grace", "2", "--"]
        return subprocess.Popen(
            [*command, PYTHON, "-c", script, *argv],
            stdout=subprocess.DEVNULL,
            cwd=self.folder,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )

    def end(self, seconds: float = 60) -> int:
        """End the sidecar as the kubelet does, and give its exit code."""
        collector = self.collector
        assert collector is not None
        status = Path(f"/proc/{collector.pid}/status")
        term = 1 << (signal.SIGTERM - 1)
        until(
            lambda: int(status.read_text().split("SigCgt:")[1].split()[0], 16) & term, what="it takes signals"
        )
        collector.send_signal(signal.SIGTERM)
        return collector.wait(seconds)

    def stored(self) -> list[tuple[str, str]]:
        """Give name and value of the trial's rows, in the order in which they were stored."""
        return [(name, value) for name, value in self.db.rows(self.trial, "metric_name", "value")]

    def printed(self) -> list[dict[str, Any]]:
        """Give the rows that the collector printed."""
        return [json.loads(line) for line in self.out.read_text().splitlines()]

    def log(self) -> str:
        return self.err.read_text()
