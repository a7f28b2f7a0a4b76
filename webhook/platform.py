"""What the platform cannot do with a sidecar: refused or warned about, each with its reason."""

from collections.abc import Mapping
from typing import Any

from webhook.review import JSON, Reason, Refusal


def describe(pod: JSON) -> str:
    """Name a pod in a message; it may have only a generateName."""
    metadata = pod.get("metadata") or {}
    name = metadata.get("name") or f"{metadata.get('generateName') or ''}…"
    return f'pod "{name}"'


def refuse_unsupported(pod: JSON) -> None:
    """Refuse pods in which the collector, a Linux container, cannot run.

    Raises:
        Refusal: the pod is one for Windows, or has hostProcess containers.
    """
    spec = pod["spec"]
    if (spec.get("os") or {}).get("name") == "windows":
        raise Refusal(
            Reason.UNSUPPORTED_POD,
            f"{describe(pod)}: spec.os.name is windows and the metrics collector runs on Linux only;"
            " use collector kind Push",
        )
    contexts = [spec.get("securityContext"), *(c.get("securityContext") for c in spec.get("containers", ()))]
    if any((((context or {}).get("windowsOptions")) or {}).get("hostProcess") for context in contexts):
        raise Refusal(
            Reason.UNSUPPORTED_POD,
            f"{describe(pod)}: hostProcess containers are Windows', where the metrics collector cannot run;"
            " use collector kind Push",
        )


def refuse_endless_restart(pod: JSON, container: JSON) -> None:
    """Refuse early stopping where the kubelet would start the stopped training again.

    Raises:
        Refusal: restartPolicy of container or pod is Always, or a restart rule covers exit code 0.
    """
    policy = container.get("restartPolicy") or pod["spec"].get("restartPolicy") or "Always"
    if policy == "Always" or any(map(_restarts_success, container.get("restartPolicyRules") or ())):
        raise Refusal(
            Reason.UNSUPPORTED_POD,
            f"{describe(pod)}: the trial has early-stopping rules, and container {container['name']!r} would be"
            " started again after an early stop (restartPolicy Always); set restartPolicy to Never or OnFailure,"
            " or leave earlyStopping out of the Experiment",
        )


def _restarts_success(rule: JSON) -> bool:
    codes = rule.get("exitCodes") or {}
    zero = 0 in (codes.get("values") or ())
    return rule.get("action") == "Restart" and (zero if codes.get("operator") == "In" else not zero)


def istio_warnings(pod: JSON, namespace_labels: Mapping[str, str]) -> tuple[str, ...]:
    """Warn of an Istio proxy that is no native sidecar: the trial's workload would never complete beside it."""
    metadata: Mapping[str, Any] = pod.get("metadata") or {}
    inject = (metadata.get("labels") or {}).get("sidecar.istio.io/inject")
    there = any(container.get("name") == "istio-proxy" for container in pod["spec"].get("containers", ()))
    opted_in = (
        inject == "true"
        or namespace_labels.get("istio-injection") == "enabled"
        or "istio.io/rev" in namespace_labels
    )
    not_native = (metadata.get("annotations") or {}).get("sidecar.istio.io/nativeSidecar") == "false"
    coming = opted_in and inject != "false" and not_native
    if not there and not coming:
        return ()
    return (
        f"{describe(pod)}: Istio's proxy is an ordinary container here and goes on running when the training has"
        ' ended, so the trial would not complete; set the label sidecar.istio.io/inject: "false" in the pod template,'
        " or use Istio's native sidecars",
    )


def tty_warnings(container: JSON) -> tuple[str, ...]:
    """Warn that with a terminal stdout and stderr are one stream."""
    if not container.get("tty"):
        return ()
    return (
        f"container {container['name']!r} has tty: true, so its stdout and stderr are one stream for the collector",
    )


def unreadable_files_warnings(pod: JSON, container: JSON) -> tuple[str, ...]:
    """Warn that the sidecar may not read what the training writes, where nobody says who the training is."""
    of_pod: Mapping[str, Any] = pod["spec"].get("securityContext") or {}
    of_training: Mapping[str, Any] = container.get("securityContext") or {}
    if any("runAsUser" in context for context in (of_pod, of_training)) or "fsGroup" in of_pod:
        return ()
    return (
        f"{describe(pod)}: the user of container {container['name']!r} is not known; if it writes its metrics with a"
        " mode that others cannot read, set spec.securityContext.fsGroup (or runAsUser) in the pod template",
    )
