"""The collector's log: one plain line a message on stderr, and messages that are said only once."""

import sys
import time


def say(message: str) -> None:
    """Write one line to the sidecar's log; a log that cannot be written stops nothing."""
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
    try:
        sys.stderr.write(f"{stamp}.{int(now % 1 * 1000):03d}Z trialtap: {message}\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        return


class Once:
    """Says a trouble when it begins and that it is over when it ends, however often it is met between."""

    __slots__ = ("_said",)

    def __init__(self) -> None:
        self._said: dict[str, str] = {}

    def trouble(self, about: str, message: str) -> None:
        """Say `message` about this subject unless it was the last thing said about it."""
        if self._said.get(about) != message:
            self._said[about] = message
            say(message)

    def over(self, about: str, message: str) -> None:
        """Say `message` if there was trouble about this subject."""
        if self._said.pop(about, None) is not None:
            say(message)
