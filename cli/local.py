"""The programs that `trialtap run` starts: certificates, DB manager, webhook and EarlyStopping service."""

import base64
import contextlib
import json
import os
import select
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Self

import grpc
import httpx
import jsonpatch
import yaml

from cli.trialpod import TrialPod
from trialtap import __version__, messages
from trialtap.observation import Summary, summarize
from trialtap.points import MetricPoint, format_time, parse_time

JSON = dict[str, Any]

_READY_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.25
COLLECTOR_IMAGE: Final = f"trialtap-collector:{__version__}"
_PACKAGE = Path(__file__).resolve().parent.parent / "collector"


class LocalError(Exception):
    """A program of ours did not start, or the webhook refused the pod; the message says why."""


class Services:
    """DB manager, webhook and EarlyStopping service, up from `__enter__` to `__exit__`.

    Attributes:
        database: HOST:PORT of the DB manager.
        page: URL of the page with curves.
        webhook: https://HOST:PORT of the webhook.
    """

    def __init__(self, trial: TrialPod, scratch: Path, database: str | None, http: str) -> None:
        self._trial = trial
        self._scratch = scratch
        self._file = Path(database).absolute() if database else scratch / "metrics.db"
        self._http = http
        self._programs: list[subprocess.Popen[str]] = []
        self._early_stopping: grpc.Server | None = None
        self.early_stopped = False
        self.database = self.page = self.webhook = ""
        self.certificates = scratch / "certificates"
        self.entrypoints: Mapping[str, Sequence[str]] = {
            COLLECTOR_IMAGE: (sys.executable, "-P", "-m", "collector")
        }
        self.path = os.pathsep.join(
            (str(Path(sys.executable).parent), str(_PACKAGE), os.environ.get("PATH", os.defpath))
        )

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for program in reversed(self._programs):
            program.send_signal(signal.SIGTERM)
            try:
                program.wait(10)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()
        self._programs.clear()
        if self._early_stopping:
            self._early_stopping.stop(grace=0)

    def _start(self) -> None:
        names = [word for name in ("localhost", "127.0.0.1") for word in ("--name", name)]
        self._once("certs", ["issue", "--out", str(self.certificates), *names])
        address = ["--listen", "127.0.0.1:0", "--http", self._http, "--database", f"sqlite:///{self._file}"]
        ready = self._serve("dbmanager", address)
        self.database, self.page = ready["grpc"], f"http://{ready['http']}/"
        objects, settings = self._scratch / "objects.json", self._scratch / "settings.yaml"
        objects.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": self._trial.owners}))
        settings.write_text(yaml.safe_dump(self._settings()))
        files = ["--cert", str(self.certificates / "tls.crt"), "--key", str(self.certificates / "tls.key")]
        files += ["--objects", str(objects), "--settings", str(settings)]
        ready = self._serve("webhook", ["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", *files])
        self.webhook = f"https://{ready['https']}"

    def _settings(self) -> JSON:
        return {
            "dbAddress": self.database,
            "earlyStoppingAddress": self._serve_early_stopping(),
            "sidecar": {"image": COLLECTOR_IMAGE},
            "entrypointLookup": {"enabled": False},
        }

    def _once(self, program: str, argv: Sequence[str]) -> None:
        done = subprocess.run(  # noqa: S603 - our own program
            [sys.executable, "-P", "-m", program, *argv], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise LocalError(_last_line(done.stderr, program))

    def _serve(self, program: str, argv: Sequence[str]) -> dict[str, str]:
        """Start a server and read its ready line, `PROGRAM ready key=value …`."""
        log = self._scratch / f"{program}.log"
        with log.open("w") as errors:
            process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-P", "-m", program, *argv],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self._programs.append(process)
        assert process.stdout is not None  # noqa: S101 - Popen was told to make a pipe
        deadline = time.monotonic() + _READY_SECONDS
        while time.monotonic() < deadline:
            if not select.select([process.stdout], [], [], 1.0)[0]:
                continue
            line = process.stdout.readline()
            if line.startswith(f"{program} ready "):
                threading.Thread(target=_drain, args=(process,), daemon=True).start()
                return dict(word.split("=", 1) for word in line.split()[2:])
            if not line:
                process.wait()
                raise LocalError(_last_line(log.read_text(), program))
        raise LocalError(f"not ready within {_READY_SECONDS:.0f} s; {_last_line(log.read_text(), program)}")

    def _serve_early_stopping(self) -> str:
        """Serve what a collector calls before it stops a training."""

        def set_trial_status(_request: object, _context: object) -> object:
            self.early_stopped = True
            return messages.SetTrialStatusReply()

        method = messages.SET_TRIAL_STATUS
        handler = grpc.unary_unary_rpc_method_handler(
            set_trial_status, method.request.FromString, method.reply.SerializeToString
        )
        self._early_stopping = grpc.server(ThreadPoolExecutor(1))
        self._early_stopping.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(method.service, {method.name: handler}),)
        )
        port = self._early_stopping.add_insecure_port("127.0.0.1:0")
        self._early_stopping.start()
        return f"127.0.0.1:{port}"


def _drain(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None  # noqa: S101 - Popen was told to make a pipe
    for _ in process.stdout:
        pass


def _last_line(text: str, program: str) -> str:
    """The last thing that a program said, with its name before it."""
    lines = text.strip().splitlines() or ["ended without a word"]
    return f"{program}: {lines[-1].removeprefix(f'{program}: ')}"


def admit(trial: TrialPod, services: Services) -> JSON:
    """Send the pod to the webhook as an AdmissionReview and apply the patch that comes back.

    Raises:
        LocalError: the webhook refused the pod or did not answer.
    """
    context = ssl.create_default_context(cafile=str(services.certificates / "ca.crt"))
    try:
        answer = httpx.post(
            f"{services.webhook}/mutate-pod?timeout=10s", json=trial.review(), verify=context, timeout=15
        )
    except httpx.HTTPError as error:
        raise LocalError(f"webhook: {error}") from None
    if answer.status_code != httpx.codes.OK:
        raise LocalError(f"webhook: HTTP {answer.status_code}: {answer.text.strip()}")
    response = answer.json()["response"]
    if not response["allowed"]:
        raise LocalError(f"refused by the webhook: {response['status']['message']}")
    if "patch" not in response:
        return trial.pod
    patched: JSON = jsonpatch.apply_patch(trial.pod, json.loads(base64.b64decode(response["patch"])))
    return patched


class Watcher:
    """Tells of each point that the DB manager holds, as it comes."""

    def __init__(self, trial: TrialPod, address: str, tell: Callable[[str], None]) -> None:
        self._trial = trial
        self._tell = tell
        self._channel = grpc.insecure_channel(address)
        method = messages.GET
        self._get = self._channel.unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.reply.FromString,
        )
        self._since = ""
        self._seen: Counter[tuple[str, str]] = Counter()
        """Name and value of the rows at `_since` that were told already."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=5)
        self._channel.close()

    def finish(self) -> dict[str, Summary]:
        """Tell what is left, and summarize every row of the trial."""
        self._stop.set()
        self._thread.join(timeout=5)
        self._look()
        return summarize(self._rows(""))

    def _loop(self) -> None:
        while not self._stop.wait(_LOOK_SECONDS):
            with contextlib.suppress(grpc.RpcError):
                self._look()

    def _rows(self, since: str) -> Iterator[MetricPoint]:
        request = messages.GetObservationLogRequest(
            trial_name=self._trial.name, namespace=self._trial.namespace, start_time=since
        )
        for row in self._get(request, timeout=10).observation_log.metric_logs:
            step = row.step if row.HasField("step") else None
            yield MetricPoint(row.metric.name, row.metric.value, parse_time(row.time_stamp), step)

    def _look(self) -> None:
        told = Counter(self._seen)
        fresh = []
        for point in self._rows(self._since):
            key = (point.name, point.value)
            at_edge = format_time(point.time) == self._since
            if at_edge and told[key] > 0:
                told[key] -= 1
                continue
            fresh.append(point)
            stamp = format_time(point.time)
            if stamp != self._since:
                self._since, self._seen = stamp, Counter()
            self._seen[key] += 1
        for step, points in _by_line(fresh):
            values = "  ".join(f"{point.name}={point.value}" for point in points)
            self._tell(f"in the database: {values}" + (f"  (step {step})" if step is not None else ""))


def _by_line(points: Sequence[MetricPoint]) -> Iterator[tuple[int | None, list[MetricPoint]]]:
    """Points of one time and step, together."""
    group: list[MetricPoint] = []
    for point in points:
        if group and (point.time, point.step) != (group[0].time, group[0].step):
            yield group[0].step, group
            group = []
        group.append(point)
    if group:
        yield group[0].step, group
