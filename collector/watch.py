"""Waits until something may have changed: inotify where the node allows it, a slow poll as the net under it."""

import os
import select
import time
from collections.abc import Sequence
from typing import Any, Final

from collector.say import Once

POLL: Final = 2.0
"""Seconds between two looks where inotify tells of changes (some file systems do not)."""
FAST_POLL: Final = 0.1
"""Seconds between two looks where nothing tells of changes."""
SPACING: Final = 0.004
"""Seconds between two looks at least: a file written to without pause is read in pieces, not byte by byte."""

_MODIFY, _ATTRIB, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x4, 0x40, 0x80, 0x100, 0x200
_CHANGES: Final = _MODIFY | _ATTRIB | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
_ONLY_DIRECTORY: Final = 0x01000000


class Watch:
    """Wakes up on changes in directories, on a byte in the pipe, and by the clock.

    Attributes:
        pipe: write end of the pipe; non-blocking.
    """

    def __init__(self, inotify: bool = True) -> None:
        self._read, self.pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._read, select.POLLIN)
        self._once = Once()
        self._libc: Any = None
        self._inotify = -1
        self._watched: dict[str, int] = {}
        self._registered = False
        self._last = 0.0
        if inotify:
            self._begin()

    def _begin(self) -> None:
        # inotify_simple would import enum and run ldconfig to find libc; three calls need neither.
        import ctypes  # noqa: PLC0415

        try:
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._inotify = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, AttributeError):
            self._inotify = -1
        if self._inotify < 0:
            self._fall_back(ctypes.get_errno())

    def _fall_back(self, number: int) -> None:
        self._once.trouble(
            "inotify", f"inotify cannot be had ({os.strerror(number)}): looking every {FAST_POLL} s"
        )

    def directories(self, paths: Sequence[str]) -> None:
        """Watch these directories; those that are not there yet are tried again at the next call."""
        if self._inotify < 0:
            return
        for path in paths:
            if path in self._watched:
                continue
            import ctypes  # noqa: PLC0415

            number = self._libc.inotify_add_watch(
                self._inotify, os.fsencode(path or "."), ctypes.c_uint32(_CHANGES | _ONLY_DIRECTORY)
            )
            if number >= 0:
                self._watched[path] = number
            elif ctypes.get_errno() == 28:  # ENOSPC: the user's limit of watches
                self._fall_back(28)
                os.close(self._inotify)
                self._inotify = -1
                return

    def wait(self, seconds: float, files: bool = True) -> None:
        """Wait at most so long for a byte in the pipe or, if `files`, for a change in a directory."""
        watching = files and self._inotify >= 0
        limit = POLL if watching and self._watched else FAST_POLL
        if files and self._registered != watching:
            self._registered = watching
            if watching:
                self._poll.register(self._inotify, select.POLLIN)
        elif not files and self._registered:
            self._poll.unregister(self._inotify)
            self._registered = False
        ready = self._poll.poll(max(0.0, min(seconds, limit if files else seconds)) * 1000)
        early = self._last + SPACING - time.monotonic()
        if ready and early > 0:
            time.sleep(early)
        self._last = time.monotonic()
        for fd, _ in ready:
            self._drain(fd)

    def _drain(self, fd: int) -> None:
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return
        if fd == self._inotify and self._watched:
            # A directory that was removed and made again needs a new watch: IN_IGNORED says which.
            at = 0
            while at + 16 <= len(data):
                number = int.from_bytes(data[at : at + 4], "little", signed=True)
                mask = int.from_bytes(data[at + 4 : at + 8], "little")
                if mask & 0x8000:
                    self._watched = {path: n for path, n in self._watched.items() if n != number}
                at += 16 + int.from_bytes(data[at + 12 : at + 16], "little")


def give_back() -> None:
    """Return to the kernel what importing has used for a moment: 1 to 5 MiB, which the pod would pay for."""
    import ctypes  # noqa: PLC0415
    import gc  # noqa: PLC0415

    gc.collect()
    try:
        libc = ctypes.CDLL(None)
        libc.mallopt(-8, 1)  # M_ARENA_MAX: threads share one heap, instead of leaving gaps in several
        libc.malloc_trim(0)
    except (OSError, AttributeError):
        return  # musl's malloc keeps nothing back
