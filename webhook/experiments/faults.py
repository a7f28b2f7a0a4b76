"""Collects what is wrong with an object: every fault with its field path, value and what was expected."""

import difflib
import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from webhook.review import Cause

_SHOWN: Final = 80
"""Characters of a value that a message quotes."""


def quote(value: Any) -> str:
    """A value as messages show it: JSON, cut when it is long."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def nearest(wrong: str, right: Iterable[str]) -> str:
    """`; did you mean "X"?` when one of `right` is close to `wrong`, else ""."""
    folded = {name.casefold(): name for name in right}
    found = difflib.get_close_matches(wrong.casefold(), folded, n=1, cutoff=0.6)
    return f'; did you mean "{folded[found[0]]}"?' if found else ""


class Faults:
    """Faults in the order in which they were found, and warnings of what is legal but likely wrong."""

    def __init__(self) -> None:
        self.causes: list[Cause] = []
        self.warnings: list[str] = []
        self.quoting = True
        """Whether messages quote values; off for what the reader may not be allowed to see."""
        self._unread: set[str] = set()

    def unread(self, path: str) -> None:
        """From now on nothing is said of this field and what lies below it: it could not be read at all."""
        self._unread.add(path)

    def _quote(self, value: Any) -> str:
        return quote(value) if self.quoting else "(not shown)"

    def _add(self, path: str, reason: str, message: str) -> None:
        if not any(path == known or path.startswith((f"{known}.", f"{known}[")) for known in self._unread):
            self.causes.append(Cause(path, message, reason))

    def invalid(self, path: str, value: Any, expected: str) -> None:
        """The value cannot be; `expected` ends the sentence."""
        self._add(path, "FieldValueInvalid", f"Invalid value: {self._quote(value)}: {expected}")

    def required(self, path: str, expected: str) -> None:
        """The field is missing or empty."""
        self._add(path, "FieldValueRequired", f"Required value: {expected}")

    def unsupported(self, path: str, value: Any, allowed: Sequence[str]) -> None:
        """The value is none of a closed set."""
        listed = ", ".join(f'"{item}"' for item in allowed) if self.quoting else "(not shown)"
        hint = nearest(value, allowed) if isinstance(value, str) and self.quoting else ""
        self._add(
            path,
            "FieldValueNotSupported",
            f"Unsupported value: {self._quote(value)}: supported values: {listed}{hint}",
        )

    def duplicate(self, path: str, value: Any, expected: str) -> None:
        """The value stands there before."""
        self._add(path, "FieldValueDuplicate", f"Duplicate value: {self._quote(value)}: {expected}")

    def forbidden(self, path: str, expected: str) -> None:
        """The field may not be set, or not be changed."""
        self._add(path, "FieldValueForbidden", f"Forbidden: {expected}")

    def warn(self, text: str) -> None:
        """Legal, but likely not what was meant."""
        if text not in self.warnings:
            self.warnings.append(text)
