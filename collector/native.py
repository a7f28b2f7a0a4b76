"""The native sidecar's lifecycle: training has ended when the kubelet says SIGTERM; `tap` ends it early."""

import os
import signal
import time
from typing import TYPE_CHECKING, Protocol

from collector import place
from collector.say import Once, say

if TYPE_CHECKING:
    from collector.wiring import Make


class Terminated(Protocol):
    """The signals taken so far."""

    terminated: bool
    pipe: int


class Native:
    """See `lifecycle.Surroundings`."""

    patience = 60.0  # a signal wakes the loop up

    def __init__(self, signals: Terminated, directory: str) -> None:
        self._signals = signals
        self._directory = directory
        self._control = -1
        self._once = Once()

    def ended(self) -> bool:
        """The kubelet ends the sidecar when all main containers have ended."""
        return self._signals.terminated

    def killed(self) -> bool:
        """Tap's end mark names the signal; without tap it cannot be told."""
        end = end_mark(f"{self._directory}/out")
        return "signal" in end and end.get("stopped") != "1"

    def stop_training(self) -> bool:
        """Write a byte into the FIFO; it is kept open, so that the byte waits for a `tap` that comes later."""
        try:
            if self._control < 0:
                flags = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC
                self._control = os.open(f"{self._directory}/control", flags)
            os.write(self._control, b"s")
        except OSError as error:
            self._once.trouble("control", f"{self._directory}/control: {error.strerror}; trying again")
            return False
        return True


def end_mark(prefix: str) -> dict[str, str]:
    """Read `PREFIX.end` (docs/tap.md); empty where there is none."""
    try:
        with open(f"{prefix}.end", encoding="ascii", errors="replace") as file:  # noqa: PTH123
            lines = [line.split(None, 1) for line in file]
    except OSError:
        return {}
    return {line[0]: line[1].strip() for line in lines if len(line) == 2}


def start(argv: list[str], signals: Terminated, make: "Make | None" = None) -> int:
    """Place `tap`, which lets the training begin, and collect until the end, whatever goes wrong between.

    Args:
        argv: the command line, without the program's name.
        signals: those taken since the start of the process.
        make: makes the source of a Custom collector; without, the kind says which it is.
    """
    directory = place.private_directory()
    if place.DIRECTORY_ENV in os.environ:
        os.makedirs(directory, exist_ok=True)  # noqa: PTH103
    placed = not _follows_files(argv) and _place(directory)
    pause = 1.0
    said = ""

    def ready() -> None:
        """Let the training begin."""
        nonlocal placed
        placed = placed or _place(directory)
        while not placed and os.path.isdir(directory) and not signals.terminated:  # noqa: PTH112
            time.sleep(0.5)
            placed = _place(directory)

    while True:
        try:
            from collector import wiring  # noqa: PLC0415 - placing tap comes before everything else

            wiring.collect(argv, signals, directory, make, ready)
            return 0
        except ValueError as error:
            ready()
            say(f"this configuration cannot work, so no metric is collected; training goes on: {error}")
            while not signals.terminated:
                signal.pause()
            return 0
        except Exception as error:  # a sidecar that exits is not started again at the pod's end
            ready()
            if signals.terminated and said:
                return 0
            if repr(error) != said:
                import traceback  # noqa: PLC0415

                said = repr(error)
                say(
                    "unexpected trouble, starting over from the checkpoint: "
                    + traceback.format_exc().rstrip()
                )
            time.sleep(0 if signals.terminated else pause)
            pause = min(pause * 2, 30.0)


def _follows_files(argv: list[str]) -> bool:
    """Say whether what stands in files before training matters: then training begins once it has been looked at.

    argv is not parsed yet; a word too many that looks so costs the training some milliseconds.
    """
    return any(word.rpartition("=")[2] in {"File", "TensorFlowEvent"} for word in argv)


def _place(directory: str) -> bool:
    if not os.path.isdir(directory):  # noqa: PTH112 - Katib's lifecycle has no private volume
        return False
    try:
        place.place(directory, place.own_tap())
    except OSError as error:
        say(f"tap cannot be placed in {directory}: {error}; trying again")
        return False
    return True
