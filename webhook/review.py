"""AdmissionReview in, verdict out: what a handler is asked and what it answers (admission.k8s.io/v1)."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

import orjson

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
    encoded: str = ""
    """The patch as the answer carries it, where that is known already (`encode`)."""


REVIEW_API_VERSION: Final = "admission.k8s.io/v1"


class Malformed(ValueError):  # noqa: N818 - the answer to a request, not an error of ours
    """The body is no AdmissionReview that can be answered: an HTTP status, not a verdict."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Request:
    """The part of an AdmissionRequest that decides anything (admission.k8s.io/v1)."""

    uid: str
    operation: str
    """CREATE, UPDATE, DELETE or CONNECT"""
    kind: str
    group: str
    version: str
    namespace: str
    """Namespace of the request, which the object itself may lack; "" for what lives in none."""
    name: str
    """Name of the object; "" while the API server has yet to make one from generateName."""
    subresource: str
    object: JSON
    """The object as asked for; empty on DELETE."""
    old_object: JSON
    """The object as stored; empty on CREATE."""
    dry_run: bool
    user: JSON
    """`userInfo` of whoever asks: username, uid, groups, extra."""

    @property
    def label(self) -> str:
        """The object's name as people know it: its name, or its generateName and `…`."""
        metadata = self.object.get("metadata") or {}
        generate = metadata.get("generateName") if isinstance(metadata, dict) else None
        return self.name or (f"{generate}…" if generate else "?")


def parse(body: bytes) -> Request:
    """Read an AdmissionReview.

    Raises:
        Malformed: it is no JSON, no AdmissionReview of v1, or lacks its request's uid; with the HTTP status.
    """
    try:
        review = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Malformed(400, f"body: not JSON: {error}") from None
    if not isinstance(review, dict) or review.get("kind") != "AdmissionReview":
        raise Malformed(400, f"body: must be an AdmissionReview of {REVIEW_API_VERSION}")
    if review.get("apiVersion") != REVIEW_API_VERSION:
        raise Malformed(
            400,
            f"apiVersion: {review.get('apiVersion')!r} is not answered here: "
            f"list v1 in the webhook's admissionReviewVersions",
        )
    request = review.get("request")
    if not isinstance(request, dict):
        raise Malformed(400, "request: missing")
    return _request(request)


def _request(request: JSON) -> Request:
    get = request.get
    kind = get("kind")
    kind = kind if isinstance(kind, dict) else {}
    uid, operation, name_of_kind = get("uid"), get("operation"), kind.get("kind")
    if not (isinstance(uid, str) and uid):
        raise Malformed(400, "request.uid: missing")
    if not (isinstance(operation, str) and operation):
        raise Malformed(400, "request.operation: missing")
    if not (isinstance(name_of_kind, str) and name_of_kind):
        raise Malformed(400, "request.kind.kind: missing")
    return Request(
        uid,
        operation,
        name_of_kind,
        kind.get("group") or "",
        kind.get("version") or "",
        _typed("namespace", get("namespace"), str) or "",
        _typed("name", get("name"), str) or "",
        _typed("subResource", get("subResource"), str) or "",
        _typed("object", get("object"), dict) or {},
        _typed("oldObject", get("oldObject"), dict) or {},
        get("dryRun") is True,
        _typed("userInfo", get("userInfo"), dict) or {},
    )


def _typed(key: str, value: Any, kind: type) -> Any:
    """The value, which may be missing.

    Raises:
        Malformed: it is of another type.
    """
    if value is not None and type(value) is not kind:
        raise Malformed(400, f"request.{key}: must be {'a string' if kind is str else 'an object'}")
    return value


def answer(request: Request, verdict: Verdict) -> bytes:
    """The AdmissionReview that carries a verdict back.

    Raises:
        Malformed: the patch is nested too deeply to be written (only parts of the request can be that deep).
    """
    response: JSON = {"uid": request.uid, "allowed": verdict.refusal is None}
    if verdict.refusal is not None:
        response["status"] = status_of(request, verdict.refusal)
    elif verdict.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = verdict.encoded or encode(verdict.patch)
    if verdict.warnings:
        response["warnings"] = [bounded(warning, WARNING_CHARACTERS) for warning in verdict.warnings]
    return orjson.dumps(
        {"apiVersion": REVIEW_API_VERSION, "kind": "AdmissionReview", "response": response},
    )


def encode(patch: tuple[JSON, ...]) -> str:
    """A patch as an AdmissionReview carries it: JSON in base64.

    Raises:
        Malformed: it is nested too deeply to be written (only parts of the request can be that deep).
    """
    try:
        return b64encode(orjson.dumps(patch)).decode("ascii")
    except TypeError as error:
        raise Malformed(400, f"request.object: cannot be patched: {error}") from None


WARNING_CHARACTERS: Final = 512
"""Longer warnings may be cut by the API server (it keeps 4096 characters of all warnings of a request)."""


def bounded(text: str, most: int) -> str:
    """The text, cut with `…` when it is longer than `most` characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def status_of(request: Request, refusal: Refusal) -> JSON:
    """The `metav1.Status` that kubectl prints for a refusal."""
    status: JSON = {
        "status": "Failure",
        "message": refusal.message,
        "reason": str(refusal.reason),
        "code": refusal.code,
    }
    details: JSON = {"name": request.name, "group": request.group, "kind": request.kind}
    if refusal.causes:
        details["causes"] = [
            {"reason": c.reason, "message": c.message, "field": c.field} for c in refusal.causes
        ]
    status["details"] = details
    return status
