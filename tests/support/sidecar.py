"""A collector of any kind as a process, that may be killed and started again."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.collecting import ROOT, DbManager, until


class Sidecar:
    """A collector process over a folder; it may be killed and started again."""

    def __init__(self, folder: Path, db: DbManager, program: tuple[str, ...], *argv: str) -> None:
        self.folder, self.db = folder, db
        self.command = [
            sys.executable,
            *program,
            "-t",
            "trial-1",
            "-s-db",
            db.address,
            "--namespace",
            "ns",
            *argv,
        ]
        self.process: subprocess.Popen[bytes] | None = None
        self.err = folder / "collector.err"

    def start(self) -> None:
        environment = {
            **os.environ,
            "TRIALTAP_DIRECTORY": str(self.folder / "run"),
            "TRIALTAP_POD_NAME": "pod-1",
            "PYTHONPATH": str(ROOT),
        }
        with self.err.open("ab") as err:
            self.process = subprocess.Popen(self.command, env=environment, cwd=self.folder, stderr=err)
        status = Path(f"/proc/{self.process.pid}/status")
        term = 1 << (signal.SIGTERM - 1)
        until(
            lambda: int(status.read_text().split("SigCgt:")[1].split()[0], 16) & term, what="it takes signals"
        )
        if {"File", "TensorFlowEvent"} & set(self.command):
            # What is there before it looks counts as older than the training.
            until((self.folder / "run" / "checkpoint").exists, what="it follows its files")

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(40)

    def rows(self, *columns: str) -> list[tuple[object, ...]]:
        return self.db.rows("trial-1", *(columns or ("metric_name", "value")))
