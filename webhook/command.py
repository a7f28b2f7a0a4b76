"""A container's command behind `tap`, every argument byte for byte what the kubelet would have run."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trialtap import names
from webhook.review import JSON

_EXPANDED = re.compile(r"\$(?=[$(])")
DEFAULT_KEEP: Final = 1 << 30
"""Bytes of its copy that `tap` keeps when it is not told."""


@dataclass(frozen=True, slots=True)
class Entrypoint:
    """What an image runs when its container says nothing, as its configuration has it."""

    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()


def escape(text: str) -> str:
    """Write a string so that the kubelet's expansion of `$(VAR)` and `$$` gives it back as it is.

    The kubelet reads `$(NAME)` as a variable and `$$` as `$` in a container's command and args
    (Kubernetes API, Container.command), and leaves any other `$` alone.
    """
    return _EXPANDED.sub("$$", text)


def is_wrapped(container: JSON) -> bool:
    """Whether the container runs through `tap` already."""
    command: list[str] = container.get("command") or []
    return bool(command) and command[0] == names.TAP


def tap_argv(*, copy: bool, keep: int) -> tuple[str, ...]:
    """The words before the training's own command.

    Args:
        copy: `tap` writes a copy of the output (StdOut); else it only waits for an early stop.
        keep: bytes of the copy to keep while nobody reads it.
    """
    output = ("--to", names.TAP_OUTPUT) if copy else ()
    bound = ("--keep", str(keep)) if copy and keep != DEFAULT_KEEP else ()
    return (names.TAP, *output, "--control", names.TAP_CONTROL, *bound, "--")


def wrap(
    container: JSON, tap: Sequence[str], image: Entrypoint | None
) -> tuple[tuple[str, ...], tuple[str, ...] | None] | None:
    """The container's command and args behind `tap`.

    What the spec holds stays in its field, so that the kubelet expands it as before. What comes from the
    image was never expanded and is escaped. An image's CMD counts only where the container has no args.

    Returns:
        (command, args), args None when they stay as they are; or None where there is nothing to run:
        the container sets no command, and `image` is None or empty.
    """
    if command := container.get("command"):
        return (*tap, *command), None
    if image is None:
        return None
    given = container.get("args")
    words = tuple(map(escape, image.entrypoint))
    if given:
        return (*tap, *words), None
    cmd = tuple(map(escape, image.cmd))
    if not words and not cmd:
        return None
    return (*tap, *words), cmd or None
