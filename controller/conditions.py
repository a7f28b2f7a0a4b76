"""A Trial's conditions, as Katib's clients read them: the last one is the state. Pure."""

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

JSON = dict[str, Any]

MESSAGE_CHARACTERS: Final = 32_768
"""The longest message that metav1.Condition allows."""
FINAL: Final = ("Succeeded", "Failed", "Killed", "MetricsUnavailable")


class Condition(NamedTuple):
    """What a condition says."""

    type: str
    status: str
    reason: str
    message: str


def conditions(trial: Mapping[str, Any]) -> list[JSON]:
    """The Trial's conditions, oldest first."""
    return list((trial.get("status") or {}).get("conditions") or ())


def has(trial: Mapping[str, Any], of_type: str) -> bool:
    """Whether a condition of this type is True."""
    return any(c.get("type") == of_type and c.get("status") == "True" for c in conditions(trial))


def ended(trial: Mapping[str, Any]) -> bool:
    """Whether nothing more is decided of the trial but what early stopping left to do."""
    return any(has(trial, of_type) for of_type in FINAL)


def with_condition(held: Sequence[JSON], condition: Condition, now: dt.datetime) -> list[JSON]:
    """Put a condition last, in the place of one of its type.

    The same status, reason and message: nothing changes. `lastTransitionTime` moves with the status only.
    """
    stamp = rfc3339(now)
    before = next((c for c in held if c.get("type") == condition.type), None)
    message = condition.message[:MESSAGE_CHARACTERS]
    wanted = {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": message,
    }
    if before is not None and wanted.items() <= before.items():
        return list(held)
    same = before is not None and before.get("status") == condition.status
    moved = before.get("lastTransitionTime", stamp) if before is not None and same else stamp
    fresh = {**wanted, "lastUpdateTime": stamp, "lastTransitionTime": moved}
    return [*(c for c in held if c is not before), fresh]


def without_running(held: Sequence[JSON], now: dt.datetime) -> list[JSON]:
    """Set Running to False where it is there, in its place, so that it is not the state."""
    stamp = rfc3339(now)
    return [
        {**c, "status": "False", "lastUpdateTime": stamp, "lastTransitionTime": stamp}
        if c.get("type") == "Running" and c.get("status") != "False"
        else c
        for c in held
    ]


def rfc3339(moment: dt.datetime) -> str:
    """A time as the API server writes it."""
    return moment.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
