"""Puts a decided injection into a pod: a fold over small steps, each pod in, pod out, each idempotent."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from trialtap import names
from webhook.review import JSON


class Injection(NamedTuple):
    """What one pod gets, decided; `inject` puts it in. Everything in it is ready to be placed."""

    decision: str
    """`injected`, or why the pod gets no sidecar: text of the annotation `trialtap/decision`."""
    labels: Mapping[str, str] = MappingProxyType({})
    """Labels that the pod has afterwards."""
    container: int | None = None
    """Index of the primary container in `spec.containers`; None: the pod has none."""
    sidecar: JSON | None = None
    """The collector's container; None: none is added."""
    native: bool = True
    """The sidecar is an init container with restartPolicy Always, else an ordinary container."""
    volumes: tuple[JSON, ...] = ()
    """Volumes that are added to the pod."""
    mounts: tuple[JSON, ...] = ()
    """Mounts that are added to the primary container."""
    env: tuple[JSON, ...] = ()
    """Environment that the primary container gets where it has no variable of that name."""
    command: tuple[str, ...] | None = None
    """The primary container's command afterwards; None: untouched."""
    args: tuple[str, ...] | None = None
    """The primary container's args afterwards; None: untouched."""
    pull_secret: str = ""
    """Name added to imagePullSecrets; empty: none."""
    share_processes: bool = False
    """The pod gets a shared process namespace (Custom collectors of Katib's lifecycle)."""
    grace: int | None = None
    """terminationGracePeriodSeconds afterwards; None: untouched."""
    warnings: tuple[str, ...] = ()
    """Shown by kubectl to whoever made the pod."""


def inject(pod: JSON, injection: Injection) -> JSON:
    """Put an injection into a pod: a new pod that shares every unchanged part with the old one.

    Injecting again changes nothing, except that the sidecar moves behind a native sidecar that somebody
    added behind it in the meantime.
    """
    for step in STEPS:
        pod = step(pod, injection)
    return pod


def label_with_trial(pod: JSON, injection: Injection) -> JSON:
    """Set the trial's labels."""
    return _with_metadata(pod, "labels", injection.labels)


def note_decision(pod: JSON, injection: Injection) -> JSON:
    """Annotate the pod with what was decided, for `kubectl describe pod`."""
    return _with_metadata(pod, "annotations", {names.DECISION_ANNOTATION: injection.decision})


def name_trial_in_env(pod: JSON, injection: Injection) -> JSON:
    """Give the primary container its environment."""
    return _with_container(pod, injection, lambda c: _with_items(c, "env", injection.env, "name"))


def add_volumes(pod: JSON, injection: Injection) -> JSON:
    """Add the volumes that the sidecar and the training share."""
    return _with_spec(pod, _with_items(pod["spec"], "volumes", injection.volumes, "name"))


def mount_in_training(pod: JSON, injection: Injection) -> JSON:
    """Mount what the primary container shares with the sidecar."""
    return _with_container(
        pod, injection, lambda c: _with_items(c, "volumeMounts", injection.mounts, "mountPath")
    )


def run_through_tap(pod: JSON, injection: Injection) -> JSON:
    """Put the primary container's command behind `tap`."""

    def run(container: JSON) -> JSON:
        changes: JSON = {}
        if injection.command is not None:
            changes["command"] = list(injection.command)
        if injection.args is not None:
            changes["args"] = list(injection.args)
        return _changed(container, changes)

    return _with_container(pod, injection, run)


def add_sidecar(pod: JSON, injection: Injection) -> JSON:
    """Add the sidecar as the last one, or move it behind a native sidecar that stands behind it.

    The kubelet starts init containers in order and ends native sidecars in reverse: the last one ends
    first, while a mesh's proxy still carries its traffic.
    """
    sidecar = injection.sidecar
    if sidecar is None:
        return pod
    field_name = "initContainers" if injection.native else "containers"
    containers: list[JSON] = pod["spec"].get(field_name) or []
    place = next((i for i, other in enumerate(containers) if other.get("name") == sidecar["name"]), None)
    if place is None:
        return _with_spec(pod, {**pod["spec"], field_name: [*containers, sidecar]})
    behind = containers[place + 1 :]
    if not injection.native or not any(other.get("restartPolicy") == "Always" for other in behind):
        return pod
    moved = [*containers[:place], *behind, containers[place]]
    return _with_spec(pod, {**pod["spec"], field_name: moved})


def add_pull_secret(pod: JSON, injection: Injection) -> JSON:
    """Let the kubelet pull the sidecar's image; what the pod has stays."""
    if not injection.pull_secret:
        return pod
    secret = ({"name": injection.pull_secret},)
    return _with_spec(pod, _with_items(pod["spec"], "imagePullSecrets", secret, "name"))


def set_pod_fields(pod: JSON, injection: Injection) -> JSON:
    """Share the process namespace and lengthen the grace period, where that was decided."""
    changes: JSON = {}
    if injection.share_processes:
        changes["shareProcessNamespace"] = True
    if injection.grace is not None:
        changes["terminationGracePeriodSeconds"] = injection.grace
    return _with_spec(pod, _changed(pod["spec"], changes))


STEPS: Final[tuple[Callable[[JSON, Injection], JSON], ...]] = (
    label_with_trial,
    note_decision,
    name_trial_in_env,
    add_volumes,
    mount_in_training,
    run_through_tap,
    add_sidecar,
    add_pull_secret,
    set_pod_fields,
)


def _changed(document: JSON, changes: Mapping[str, Any]) -> JSON:
    """The document with these fields; itself when they have these values already."""
    if all(key in document and document[key] == value for key, value in changes.items()):
        return document
    return {**document, **changes}


def _with_items(document: JSON, field_name: str, items: Iterable[JSON], key: str) -> JSON:
    """The document with the items whose `key` no item of the list has yet appended to the list."""
    present: list[JSON] = document.get(field_name) or []
    taken = {item.get(key) for item in present}
    new = [item for item in items if item[key] not in taken]
    return {**document, field_name: [*present, *new]} if new else document


def _with_metadata(pod: JSON, field_name: str, entries: Mapping[str, str]) -> JSON:
    metadata = pod.get("metadata") or {}
    present = metadata.get(field_name) or {}
    changed = _changed(present, entries)
    return pod if changed is present else {**pod, "metadata": {**metadata, field_name: changed}}


def _with_spec(pod: JSON, spec: JSON) -> JSON:
    return pod if spec is pod["spec"] else {**pod, "spec": spec}


def _with_container(pod: JSON, injection: Injection, change: Callable[[JSON], JSON]) -> JSON:
    """Change the primary container, where the pod has it."""
    index = injection.container
    if index is None:
        return pod
    containers = pod["spec"]["containers"]
    changed = change(containers[index])
    if changed is containers[index]:
        return pod
    return _with_spec(
        pod, {**pod["spec"], "containers": [*containers[:index], changed, *containers[index + 1 :]]}
    )
