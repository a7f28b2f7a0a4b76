"""Programs of ours as processes: started, their ready line read, ended in good order or killed."""

import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path


class Program:
    """`python -m NAME …` until `stop` or `kill`; its ready line's fields are attributes of `ready`."""

    def __init__(self, name: str, log: Path, *arguments: str | Path) -> None:
        self._name = name
        self._log = log
        self._arguments = [str(argument) for argument in arguments]
        self.ready: dict[str, str] = {}
        self._process: subprocess.Popen[str]

    def start(self) -> "Program":
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._name, *self._arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        until = time.monotonic() + 60
        line = ""
        while time.monotonic() < until and not line:
            if select.select([self._process.stdout], [], [], 1.0)[0]:
                line = self._process.stdout.readline()
                assert line, self.log
        assert line.startswith(f"{self._name} ready "), line + self.log
        self.ready = dict(word.split("=", 1) for word in line.split()[2:])
        return self

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> int:
        self._process.terminate()
        try:
            return self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def memory(self) -> int:
        """Resident bytes."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) * 1024
