"""What one reconciliation may do; each is safe to do again."""

from dataclasses import dataclass, field
from typing import Any

JSON = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Annotate:
    """Change the Trial's annotations (None removes) and add or take away its finalizer."""

    annotations: dict[str, str | None] = field(default_factory=dict)
    finalizer: bool | None = None


@dataclass(frozen=True, slots=True)
class PatchStatus:
    """Write these fields of the Trial's status."""

    status: JSON


@dataclass(frozen=True, slots=True)
class Create:
    """Make the workload."""

    body: JSON


@dataclass(frozen=True, slots=True)
class DeleteWorkload:
    """Delete the workload of this UID, its pods first."""

    uid: str


@dataclass(frozen=True, slots=True)
class DeleteRows:
    """Delete what the database holds of the trial."""


@dataclass(frozen=True, slots=True)
class ReadRows:
    """Read the trial's rows and decide again."""


@dataclass(frozen=True, slots=True)
class ReadLog:
    """Read the last lines of a container's log and decide again."""

    pod: str
    container: str


@dataclass(frozen=True, slots=True)
class Emit:
    """Put an Event on the Trial."""

    type: str
    """Normal or Warning"""
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Look again after so many seconds, whatever happens until then."""

    seconds: float
    settling: bool = False
    """The time from the first of these on is what `Observed.waited` counts."""


Action = Annotate | PatchStatus | Create | DeleteWorkload | DeleteRows | ReadRows | ReadLog | Emit | Wait
