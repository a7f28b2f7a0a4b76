"""Repeats the training's lines on the collector's own stdout, where Katib's UI and SDK read a trial's log."""

import os


class Echo:
    """Writes what has been read, each byte once, however often it is read."""

    __slots__ = ("_done", "_fd")

    def __init__(self, fd: int = 1) -> None:
        self._fd = fd
        self._done: dict[str, tuple[int, int]] = {}

    def __call__(self, stream: str, segment: int, offset: int, data: bytes) -> None:
        """Write the bytes that stand at an offset of a stream's segment, less what was written before."""
        done = self._done.get(stream, (0, 0))
        end = (segment, offset + len(data))
        if end <= done:
            return
        if done[0] == segment and done[1] > offset:
            data = data[done[1] - offset :]
        self._done[stream] = end
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except OSError:
                return  # nobody reads the log: nothing is to stop for that
