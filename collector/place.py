"""Puts the control FIFO and `tap` into the private volume, before anything else is done.

`tap --wait-ready` looks for the executable file alone, so it comes last, whole, by rename.
"""

import os

from trialtap.names import PRIVATE_DIRECTORY

DIRECTORY_ENV = "TRIALTAP_DIRECTORY"
TAP_ENV = "TRIALTAP_TAP"


def private_directory() -> str:
    """Give the private volume's path."""
    return os.environ.get(DIRECTORY_ENV) or PRIVATE_DIRECTORY


def own_tap() -> str:
    """Give the path of the `tap` that this image holds."""
    return os.environ.get(TAP_ENV) or os.path.join(os.path.dirname(__file__), "tap")  # noqa: PTH118, PTH120


def place(directory: str, tap: str) -> None:
    """Make the FIFO, then copy `tap` beside it; what is there already stays.

    The FIFO is open to all users, since the training's may be any.

    Raises:
        OSError: the directory cannot be written, or `tap` cannot be read.
    """
    control = f"{directory}/control"
    if not os.path.exists(control):  # noqa: PTH110
        os.mkfifo(control)
    os.chmod(control, 0o666)  # noqa: PTH101, S103 - mkfifo's mode goes through the umask
    target = f"{directory}/tap"
    if os.access(target, os.X_OK):
        return
    new = f"{target}.new"
    with open(tap, "rb") as source, open(new, "wb") as copy:  # noqa: PTH123
        while piece := source.read(1 << 16):
            copy.write(piece)
        os.fchmod(copy.fileno(), 0o755)
    os.rename(new, target)  # noqa: PTH104
