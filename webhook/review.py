"""What an admission handler answers: a verdict with a patch, or a refusal with its causes."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

JSON = dict[str, Any]


class Reason(StrEnum):
    """Why a request is refused: the metric's label, the Event's reason and the code in the answer."""

    PRIMARY_CONTAINER_MISSING = "PrimaryContainerMissing"
    ENTRYPOINT_UNKNOWN = "EntrypointUnknown"
    UNSUPPORTED_POD = "UnsupportedPod"
    UNSUPPORTED_MOUNT = "UnsupportedMount"
    OWNER_UNREADABLE = "OwnerUnreadable"
    TRIAL_UNREADABLE = "TrialUnreadable"
    INVALID = "Invalid"
    NAMESPACE_NOT_LABELLED = "NamespaceNotLabelled"
    CONFIGURATION = "Configuration"
    DEADLINE = "Deadline"


class Cause(NamedTuple):
    """One fault of an object, as `Status.details.causes` has it."""

    field: str
    """Kubernetes field path, `spec.parameters[0].feasibleSpace.min`."""
    message: str
    reason: str = "FieldValueInvalid"
    """FieldValueInvalid, FieldValueRequired, FieldValueNotSupported, FieldValueDuplicate, FieldValueForbidden"""


class Refusal(Exception):  # noqa: N818 - a verdict, not an error of ours
    """The request is refused; the message names the object, the field and the next step."""

    def __init__(self, reason: Reason, message: str, causes: Sequence[Cause] = (), code: int = 403) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.causes = tuple(causes)
        self.code = code


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to a request that was understood."""

    patch: tuple[JSON, ...] = ()
    """JSON Patch operations; empty: nothing to change."""
    warnings: tuple[str, ...] = ()
    """Shown by kubectl to whoever made the request."""
    refusal: Refusal | None = None
    decision: str = ""
    """One word or sentence for the log: injected, or why not."""
