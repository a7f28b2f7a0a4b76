"""`trialtap db export --tensorboard`: one run a trial, so that `tensorboard --logdir DIR` shows them."""

import json
import re
import time
from collections import Counter
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import Any, Final

from cli.readers import CommandError, Reader
from dbmanager.records import Record
from dbmanager.rows import TrialKey
from trialtap.points import parse_time

LOOK_SECONDS: Final = 2.0
STATE: Final = ".trialtap.json"
"""In every run's folder: the last row written and the counts, so that an export goes on where it ended."""
_UNSAFE: Final = re.compile(r"[^\w.\-]|^\.+")


class Runs:
    """The runs under a folder: DIR/NAMESPACE/TRIAL, further attempts DIR/NAMESPACE/TRIAL.attempt-N."""

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CommandError(f"--tensorboard {folder}: {error.strerror}") from error
        self._folder = folder
        self._writers: dict[Path, Any] = {}
        self._states: dict[TrialKey, dict[str, Any]] = {}
        self.written = 0
        self.skipped = 0
        """Values that are no numbers: a scalar cannot hold them."""

    def export(self, reader: Reader, key: TrialKey) -> None:
        """Append the trial's rows that are not there yet.

        Raises:
            CommandError: the rows cannot be read, or the folder not be written.
        """
        state = self._state(key)
        begin = state["last"]
        try:
            for record in reader.stored(key.name, key.namespace, begin):
                self._write(key, record, state)
                state["last"] = max(state["last"], record.id or 0)
            if state["last"] > begin:
                self._save(key, state)
        except OSError as error:
            raise CommandError(f"--tensorboard {self._folder}: {error.strerror}") from error

    def close(self) -> None:
        """Finish the files."""
        for writer in self._writers.values():
            writer.close()

    def _run(self, key: TrialKey, attempt: int = 0) -> Path:
        name = _UNSAFE.sub("_", key.name) + (f".attempt-{attempt}" if attempt else "")
        return self._folder / _UNSAFE.sub("_", key.namespace or "no-namespace") / name

    def _state(self, key: TrialKey) -> dict[str, Any]:
        if key not in self._states:
            path = self._run(key) / STATE
            found: dict[str, Any] = {"last": 0, "counts": {}}
            if path.exists():
                found = json.loads(path.read_text())
            self._states[key] = {"last": found["last"], "counts": Counter(found["counts"])}
        return self._states[key]

    def _save(self, key: TrialKey, state: dict[str, Any]) -> None:
        """After the events are on the disk: a crash between the two writes some again, never loses one."""
        for writer in self._writers.values():
            writer.flush()
        path = self._run(key) / STATE
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".new").write_text(json.dumps(state))
        path.with_suffix(".new").replace(path)

    def _write(self, key: TrialKey, record: Record, state: dict[str, Any]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415 - 300 ms, for this alone
        from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415
        from tensorboard.summary.writer.event_file_writer import EventFileWriter  # noqa: PLC0415

        attempt = record.attempt or 0
        state["counts"][f"{attempt} {record.name}"] += 1
        value = _scalar(record.value)
        if value is None:
            self.skipped += 1
            return
        run = self._run(key, attempt)
        if run not in self._writers:
            self._writers[run] = EventFileWriter(str(run), filename_suffix=".trialtap")
        step = record.step if record.step is not None else state["counts"][f"{attempt} {record.name}"]
        self._writers[run].add_event(
            Event(
                wall_time=parse_time(record.time) / 1e9,
                step=step,
                summary=Summary(value=[Summary.Value(tag=record.name, simple_value=value)]),
            )
        )
        self.written += 1


def _scalar(text: str) -> float | None:
    """A value as TensorBoard's 32-bit float; past its range it is infinite. None: no number."""
    try:
        value = float(text)
    except ValueError:
        return None
    if isfinite(value) and abs(value) > 3.4e38:
        return float("inf") if value > 0 else float("-inf")
    return value


def export(runs: Runs, reader: Reader, keys: Callable[[], list[TrialKey]], *, follow: bool) -> None:
    """Write every trial once, or go on doing so until interrupted. Raises like `Runs.export`."""
    while True:
        for key in keys():
            runs.export(reader, key)
        if not follow:
            return
        time.sleep(LOOK_SECONDS)
