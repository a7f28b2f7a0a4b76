"""The webhook as a process, as its image runs it."""

import datetime as dt
import json
import re
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from certs import files, issue
from tests.support.cluster import wait_until


class Webhook:
    """`python -m webhook` in a folder of its own; `start`, then `stop`."""

    def __init__(self, folder: Path, *arguments: str | Path) -> None:
        self.folder = folder
        self._arguments = [str(argument) for argument in arguments]
        self.url = ""
        self.metrics_url = ""
        self._process: subprocess.Popen[str]
        self.issue()

    @property
    def ca(self) -> bytes:
        return (self.folder / "ca.crt").read_bytes()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.folder / "ca.crt")

    def issue(self) -> None:
        """A new CA and certificate into the folder."""
        now, life = dt.datetime.now(dt.UTC), dt.timedelta(days=1)
        authority = issue.authority(now, life)
        served = issue.leaf(authority, ["127.0.0.1", "localhost"], now, life)
        files.write(self.folder, ca=authority.certificate, certificate=served.certificate, key=served.key)

    def start(self, listen: str = "127.0.0.1:0") -> "Webhook":
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "webhook",
                    "--listen",
                    listen,
                    "--metrics-listen",
                    "127.0.0.1:0",
                    "--cert",
                    str(self.folder / "tls.crt"),
                    "--key",
                    str(self.folder / "tls.key"),
                    *self._arguments,
                ],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        found = re.fullmatch(r"webhook ready https=(\S+) metrics=(\S+)\n", line)
        assert found, line + self.log
        self.url, self.metrics_url = f"https://{found[1]}", f"http://{found[2]}"
        return self

    def wait_ready(self) -> "Webhook":
        """Wait until the caches are filled."""
        with httpx.Client(verify=self.context) as client:
            wait_until(
                lambda: client.get(f"{self.url}/readyz").status_code == 200, 30, "the webhook to be ready"
            )
        return self

    def stop(self) -> int:
        """End it in good order; its exit status."""
        self._process.terminate()
        try:
            return self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(encoding="utf-8")

    def admissions(self, **fields: Any) -> list[dict[str, Any]]:
        """The log's lines of admissions that have these values."""
        lines = [json.loads(line) for line in self.log.splitlines() if line.startswith("{")]
        return [line for line in lines if all(line.get(key) == value for key, value in fields.items())]

    def metric(self, name: str) -> float:
        """One sample of the metrics, labels and all: `trialtap_webhook_trials`; 0 where it is not there."""
        for line in httpx.get(f"{self.metrics_url}/metrics").text.splitlines():
            if line.startswith(name + " "):
                return float(line.rpartition(" ")[2])
        return 0.0

    def memory(self) -> int:
        """Resident bytes."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) * 1024

    def cpu_seconds(self) -> float:
        """CPU time used so far, in seconds."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100

    def wait_for_log(self, text: str, seconds: float = 20) -> None:
        until = time.monotonic() + seconds
        while text not in self.log:
            assert time.monotonic() < until, f"{text!r} not in {self.log}"
            time.sleep(0.05)
