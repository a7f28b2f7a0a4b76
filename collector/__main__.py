"""The sidecar: `python -m collector ARGV`.

Its first acts, before argv, configuration or network: take signals, then make the FIFO and place `tap`,
since the training waits for it. It never exits by itself: a native sidecar in back-off is not started again.
"""

import os
import signal
import sys
from types import FrameType

TYPE_CHECKING = False  # importing typing would come before the signal handlers
if TYPE_CHECKING:
    from collector.wiring import Make


class Signals:
    """Whether the end was asked for, and a pipe that says so to whoever waits."""

    def __init__(self) -> None:
        self.terminated = False
        self.pipe = -1
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._take)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def _take(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.terminated = True
        if self.pipe >= 0:
            try:
                os.write(self.pipe, b"s")
            except OSError:
                return  # full: it will be looked at anyway


def main(argv: list[str], make: "Make | None" = None) -> int:
    """Run until SIGTERM and what has to be done after it; the exit status is 0 then.

    `make` makes the source of a Custom collector of its arguments; without, `--kind` says which it is.
    """
    signals = Signals()
    from collector import native  # noqa: PLC0415 - signals first

    if argv and argv[0] in {"-h", "--help"}:
        from trialtap.argv import parser  # noqa: PLC0415

        parser().print_help()
        return 0
    return native.start(argv, signals, make)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
