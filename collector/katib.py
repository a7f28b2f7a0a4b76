"""Katib's lifecycle: the pod's containers share one process namespace, and Katib's webhook wrapped the command.

The primary container runs, in a shell of its own, `COMMAND 1>FILE 2>&1 && echo completed > DIR/$$.pid`. So the
training is the process that no process of this namespace started (its parent is 0: the container runtime)
and whose command line holds `echo completed > DIR/`; it has ended when that process is gone, well when the
file named after it says `completed`. Other containers, which may never end, are not looked at.
To stop it early, `early-stopped` is written there first (then the shell reports success), and every process
below it is ended.

Processes come and go while they are looked at: what cannot be read has gone.
"""

import os
import signal
import time
from typing import Final, NamedTuple

from collector.native import Terminated
from collector.say import Once, say
from trialtap.argv import CollectorArgs

COMPLETED: Final = "completed"
EARLY_STOPPED: Final = "early-stopped"
_LATE: Final = 3.0
"""Seconds after which a metrics file without a training means that training ended before we came."""


class Process(NamedTuple):
    """A process as /proc tells of it."""

    pid: int
    parent: int
    start: str
    """Ticks since boot: with the pid it names one process for ever."""
    command: str


def processes(proc: str = "/proc") -> list[Process]:
    """List all processes that can be read."""
    found = []
    for name in os.listdir(proc):  # noqa: PTH208
        if name.isdigit() and (process := read(int(name), proc)) is not None:
            found.append(process)
    return found


def read(pid: int, proc: str = "/proc") -> Process | None:
    """Read one process; None when it has gone, or has ended and only waits to be reaped."""
    try:
        with open(f"{proc}/{pid}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            fields = file.read().rpartition(")")[2].split()
        with open(f"{proc}/{pid}/cmdline", "rb") as raw:  # noqa: PTH123
            command = raw.read().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return None
    if len(fields) < 20 or fields[0] in "ZX":
        return None
    return Process(pid, int(fields[1]), fields[19], command)


def descendants(root: int, every: list[Process]) -> list[Process]:
    """List all processes below one, children before grandchildren."""
    children: dict[int, list[Process]] = {}
    for process in every:
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    queue = [root]
    for pid in queue:
        below = children.get(pid, [])
        found += below
        queue += [process.pid for process in below]
    return found


def metrics_directory(args: CollectorArgs) -> str:
    """Give the directory that holds the markers: that of the file, or the directory that is read."""
    return os.path.dirname(args.path) if args.format else args.path.rstrip("/")  # noqa: PTH120


def hidden_folder(args: CollectorArgs) -> str:
    """Make the folder for checkpoint and spool in the metrics volume; where that fails, in /tmp."""
    for base in (metrics_directory(args), "/tmp"):  # noqa: S108 - of this container alone
        folder = f"{base}/.trialtap"
        try:
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103
        except OSError as error:
            say(f"{folder} cannot be made: {error.strerror}")
            continue
        if os.access(folder, os.W_OK):
            return folder
    return folder


class Katib:
    """See `lifecycle.Surroundings`."""

    def __init__(self, args: CollectorArgs, signals: Terminated, proc: str = "/proc") -> None:
        """Look for nothing yet.

        Args:
            args: the command line; `poll` and `timeout` are this lifecycle's.
            signals: SIGTERM ends it as well.
            proc: where processes are listed.
        """
        self.patience = min(args.poll, 1.0)
        self._args = args
        self._signals = signals
        self._proc = proc
        self._directory = metrics_directory(args)
        self._primary: Process | None = None
        self._begun = time.monotonic()
        self._looked = 0.0
        self._gone = False
        self._stopping: list[Process] | None = None
        self._kill_at = 0.0
        self._once = Once()

    def ended(self) -> bool:
        """The training's process has gone, or the pod is being ended."""
        if self._signals.terminated or self._gone:
            return True
        now = time.monotonic()
        if now < self._looked + self.patience:
            return False
        self._looked = now
        self._gone = self._look(now)
        return self._gone

    def _look(self, now: float) -> bool:
        if self._primary is not None:
            same = read(self._primary.pid, self._proc)
            if same is not None and same.start == self._primary.start:
                if self._stopping is not None:
                    self._finish_off(now)
                return False
            marker = self._marker(self._primary.pid)
            say(f"training (process {self._primary.pid}) has ended, marker: {marker or 'none, so it failed'}")
            return True
        self._primary = self._find()
        if self._primary is not None:
            say(f"training is process {self._primary.pid}")
            return False
        if self._markers() or (now > self._begun + _LATE and self._has_files()):
            say("training ended before this collector started: reading what it left")
            return True
        if self._args.timeout and now > self._begun + self._args.timeout:
            say(f"no training began within {self._args.timeout:g} s (-timeout)")
            return True
        self._once.trouble("find", f"waiting for a process with 'echo {COMPLETED} > {self._directory}/…'")
        return False

    def _find(self) -> Process | None:
        for process in processes(self._proc):
            before, found, after = process.command.partition(f"echo {COMPLETED} > {self._directory}/")
            if process.parent == 0 and before and found and ".pid" in after and process.pid != os.getpid():
                return process
        return None

    def _markers(self) -> list[str]:
        try:
            names = os.listdir(self._directory)  # noqa: PTH208
        except OSError:
            return []
        return [name for name in names if name.endswith(".pid") and name[:-4].isdigit()]

    def _has_files(self) -> bool:
        """The shell makes the metrics file before the training starts; event files come with the training."""
        if self._args.format:
            return os.path.exists(self._args.path)  # noqa: PTH110
        try:
            return any(not name.startswith(".") for name in os.listdir(self._directory))  # noqa: PTH208
        except OSError:
            return False

    def _marker(self, pid: int) -> str:
        try:
            with open(f"{self._directory}/{pid}.pid", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
                return file.readline().strip()
        except OSError:
            return ""

    def killed(self) -> bool:
        """A shell hides by what its command ended."""
        return False

    def stop_training(self) -> bool:
        """Write the marker, then ask every process below the training's shell to end."""
        if self._primary is None:
            self._primary = self._find()
        if self._primary is None:
            self._once.trouble("stop", "no training's process is there that could be stopped; looking again")
            return False
        path = f"{self._directory}/{self._primary.pid}.pid"
        try:
            with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123
                file.write(EARLY_STOPPED + "\n")
        except OSError as error:
            self._once.trouble("marker", f"{path} cannot be written: {error.strerror}; trying again")
            return False
        self._stopping = descendants(self._primary.pid, processes(self._proc))
        for process in self._stopping:
            _signal(process, signal.SIGTERM)
        self._kill_at = time.monotonic() + self._args.grace
        return True

    def _finish_off(self, now: float) -> None:
        """After the grace, kill what is still there, and what it has started since."""
        if now < self._kill_at or self._primary is None:
            return
        for process in descendants(self._primary.pid, processes(self._proc)):
            _signal(process, signal.SIGKILL)


def _signal(process: Process, number: int) -> None:
    try:
        os.kill(process.pid, number)
    except OSError as error:
        if not isinstance(error, ProcessLookupError):
            say(f"process {process.pid} cannot be sent signal {number}: {error.strerror}")
