"""Success and failure conditions: GJSON paths over a workload, and what counts as met.

Evaluated by `pygjson` (gjson.rs). It silently gives nothing for some parts of GJSON's syntax; an
expression with one of those is refused by name instead.
"""

import re
from dataclasses import dataclass
from typing import Any, Final

import orjson
import pygjson

_UNKNOWN: Final = ("@keys", "@values", "@tostr", "@fromstr", "@group", "@dig")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_LITERAL = re.compile(r"(?:^|[.|\[{,:])!")


class ConditionError(ValueError):
    """An expression that cannot be evaluated, or whose result cannot count; the message says why."""


@dataclass(frozen=True, slots=True)
class Met:
    """A condition that is met, with what its first element says."""

    reason: str = ""
    message: str = ""


def unsupported(expression: str) -> str:
    """The first part of an expression that is not evaluated here; "" when all of it is."""
    bare = _QUOTED.sub('""', expression)
    for modifier in _UNKNOWN:
        if re.search(rf"{modifier}(?![A-Za-z])", bare):
            return modifier
    return "!literal" if _LITERAL.search(bare) else ""


def evaluate(workload: dict[str, Any], expression: str) -> Met | None:
    """Whether a condition is met: its result is an object, or a list that is not empty.

    Returns:
        The reason and message of the first element, as far as they are strings; None: not met.

    Raises:
        ConditionError: the expression has a part that is not evaluated here, or gives a single value.
    """
    if not expression:
        return None
    part = unsupported(expression)
    if part:
        raise ConditionError(f"{expression!r} uses {part}, which is not evaluated here: write it otherwise")
    result = pygjson.get(orjson.dumps(workload).decode(), expression)
    if not result.exists():
        return None
    value = _plain(result)
    if isinstance(value, list):
        if not value:
            return None
        value = value[0]
        if not isinstance(value, dict):
            return Met()
    elif not isinstance(value, dict):
        raise ConditionError(
            f"{expression!r} gives the single value {value!r}, which never counts as met; an object or a list does, "
            'as status.conditions.#(type=="Complete")#|#(status=="True")# gives'
        )
    return Met(_text(value.get("reason")), _text(value.get("message")))


def _plain(result: Any) -> Any:
    """A result as plain Python, whose parts pygjson wraps again."""
    value = result.value if isinstance(result, pygjson.Result) else result
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
