"""Why a trial's pods failed: infrastructure, which may be retried, or the training itself. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from signal import Signals
from typing import Any, Final

JSON = dict[str, Any]

_POD_REASONS: Final = frozenset(
    {
        "Evicted",
        "NodeLost",
        "NodeShutdown",
        "NodeAffinity",
        "Preempting",
        "Shutdown",
        "Terminated",
        "UnexpectedAdmissionError",
    }
)
"""`status.reason` of a pod that its node, and not its training, ended (kubelet, node lifecycle controller)."""
_DISRUPTION: Final = "DisruptionTarget"
"""The condition of a pod that was preempted, evicted by the API, or taint-evicted."""
_WAITING: Final = frozenset(
    {
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImageInspectError",
        "ImagePullBackOff",
        "InvalidImageName",
        "RegistryUnavailable",
        "RunContainerError",
    }
)
"""`waiting.reason` of a container that the node could not start."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why an attempt ended, or does not begin."""

    infrastructure: bool
    reason: str
    """One word: Evicted, OOMKilled, Error, …"""
    message: str
    """A sentence that names pod, container and node."""
    pod: str = ""
    container: str = ""
    """The container whose log tells more; "" where none ran."""
    node: str = ""


def stuck(pods: Iterable[Mapping[str, Any]]) -> Cause | None:
    """A pod that cannot start, and why; None: none is stuck."""
    for pod in pods:
        name, node = _identity(pod)
        for status in _container_statuses(pod):
            waiting = (status.get("state") or {}).get("waiting") or {}
            if waiting.get("reason") in _WAITING:
                said = f"pod {name}, container {status.get('name')}: {waiting['reason']}: {waiting.get('message', '')}"
                return Cause(True, waiting["reason"], said.rstrip(": "), name, "", node)
    return None


def cause(pods: Sequence[Mapping[str, Any]], primary: str) -> Cause | None:
    """Why the pods of a failed workload failed; the primary container first. None: no pod tells.

    A container that was killed for memory, or ended with a status of its own, is the training's failure;
    a pod that its node gave up on is the infrastructure's.
    """
    failed = [pod for pod in pods if (pod.get("status") or {}).get("phase") == "Failed"] or list(pods)
    for pod in failed:
        found = _of_node(pod)
        if found:
            return found
    for pod in failed:
        found = _of_containers(pod, primary)
        if found:
            return found
    return stuck(failed)


def _of_node(pod: Mapping[str, Any]) -> Cause | None:
    name, node = _identity(pod)
    status = pod.get("status") or {}
    if status.get("reason") in _POD_REASONS:
        message = f"pod {name} on node {node or '?'}: {status['reason']}: {status.get('message', '')}".rstrip(
            ": "
        )
        return Cause(True, status["reason"], message, name, "", node)
    for condition in status.get("conditions") or ():
        if condition.get("type") == _DISRUPTION and condition.get("status") == "True":
            reason = condition.get("reason") or _DISRUPTION
            message = f"pod {name} on node {node or '?'}: {reason}: {condition.get('message', '')}".rstrip(
                ": "
            )
            return Cause(True, reason, message, name, "", node)
    return None


def _of_containers(pod: Mapping[str, Any], primary: str) -> Cause | None:
    name, node = _identity(pod)
    statuses = sorted(_container_statuses(pod), key=lambda status: status.get("name") != primary)
    for status in statuses:
        ended = (status.get("state") or {}).get("terminated") or (status.get("lastState") or {}).get(
            "terminated"
        )
        if ended and ended.get("exitCode"):
            said = f"container {status.get('name')} of pod {name}: {describe(ended)}"
            return Cause(False, ended.get("reason") or "Error", said, name, str(status.get("name")), node)
    return None


def describe(ended: Mapping[str, Any]) -> str:
    """A terminated container's end in words: `OOMKilled, exit code 137 (SIGKILL)`."""
    code = int(ended.get("exitCode") or 0)
    number = int(ended.get("signal") or 0) or (code - 128 if 128 < code < 128 + 65 else 0)
    try:
        signal = f" ({Signals(number).name})" if number else ""
    except ValueError:
        signal = f" (signal {number})"
    reason = ended.get("reason") or "Error"
    told = str(ended.get("message") or "").strip()
    return f"{reason}, exit code {code}{signal}" + (f": {told}" if told else "")


def _container_statuses(pod: Mapping[str, Any]) -> list[JSON]:
    status = pod.get("status") or {}
    return [*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())]


def _identity(pod: Mapping[str, Any]) -> tuple[str, str]:
    return str(pod["metadata"].get("name")), str((pod.get("spec") or {}).get("nodeName") or "")
