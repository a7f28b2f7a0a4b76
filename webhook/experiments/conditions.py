"""Rules of success and failure conditions, which are GJSON paths over the workload object."""

from typing import Final

from webhook.experiments.faults import Faults

_CLOSING: Final = {"(": ")", "[": "]", "{": "}"}
_SCALAR_FIELDS: Final = frozenset(
    {"type", "status", "reason", "message", "phase", "lastTransitionTime", "lastUpdateTime", "lastProbeTime"}
)
"""Fields of a Kubernetes condition or status that hold one string."""


def check(expression: str, path: str, faults: Faults) -> None:
    """Refuse unbalanced brackets and quotes; warn of a path whose result can never count as met."""
    if not expression:
        faults.required(
            path, "say by a GJSON path when the workload counts so; kinds without a default need it"
        )
        return
    fault = unbalanced(expression)
    if fault:
        faults.invalid(path, expression, fault)
    elif is_scalar(expression):
        faults.warn(
            f"{path}: {expression!r} gives a single value, which never counts as met; only an object or a non-empty "
            'list does, as status.conditions.#(type=="Complete")#|#(status=="True")# gives'
        )


def unbalanced(expression: str) -> str:
    """What is wrong with the brackets or quotes; "" when nothing is."""
    open_brackets: list[str] = []
    quoted = escaped = False
    for character in expression:
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif character == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif character in _CLOSING:
            open_brackets.append(character)
        elif character in _CLOSING.values() and (
            not open_brackets or _CLOSING[open_brackets.pop()] != character
        ):
            return f'"{character}" closes nothing'
    if quoted:
        return 'a quote (") is not closed'
    return f'"{open_brackets[-1]}" is not closed' if open_brackets else ""


def parts(expression: str) -> list[str]:
    """The components of a path, split at `.` and `|` outside brackets and quotes."""
    found, depth, quoted, escaped = [""], 0, False, False
    for character in expression:
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif character == '"':
            quoted = not quoted
        elif not quoted and character in _CLOSING:
            depth += 1
        elif not quoted and character in _CLOSING.values():
            depth -= 1
        elif not quoted and not depth and character in ".|":
            found.append("")
            continue
        found[-1] += character
    return found


def is_scalar(expression: str) -> bool:
    """Whether a path's result can only be a number or a string, whatever the workload."""
    components = parts(expression)
    last = components[-1]
    if last == "#":  # the length of a list
        return True
    if last not in _SCALAR_FIELDS or len(components) < 2:
        return False
    before = components[-2]
    # `#(type=="X").status` picks one element's string; after `#(…)#` or `#` the strings make a list.
    return (before.startswith("#(") and before.endswith(")")) or (before == "status" and last == "phase")
