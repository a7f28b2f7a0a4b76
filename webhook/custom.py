"""Custom collectors: a user's own container, injected as Katib does it or as a native sidecar."""

from collections.abc import Iterable

from trialtap import names
from trialtap.objects import Trial
from webhook import resources, sidecar, volumes
from webhook.build import Injection
from webhook.review import JSON, Reason, Refusal
from webhook.settings import Settings
from webhook.surroundings import Subject


def given(trial: Trial) -> JSON:
    """The container as the trial holds it; empty where it holds none."""
    collector = trial.spec.metrics_collector.collector
    return (collector.custom_collector if collector else None) or {}


def is_native(trial: Trial) -> bool:
    """Whether it says `restartPolicy: Always`, and so lives as our own sidecar does."""
    return given(trial).get("restartPolicy") == "Always"


def name_of(trial: Trial) -> str:
    """Name of the container; "" where the kind is not Custom."""
    if trial.spec.metrics_collector.kind != "Custom":
        return ""
    return str(given(trial).get("name") or names.COLLECTOR_CONTAINER)


def share(subject: Subject, *, writable: bool) -> volumes.Sharing:
    """How it sees the metrics: as its source says; a source without a path shares nothing.

    Raises:
        Refusal: the trial holds no container, or its path cannot be shared.
    """
    _check(subject.trial)
    source = subject.trial.spec.metrics_collector.source
    where = source.file_system_path if source else None
    if where is None or not where.path:
        return volumes.Sharing()
    directory = where.kind == "Directory"
    return volumes.share(subject, where.path, directory=directory, writable=writable)


def plan(subject: Subject, base: Injection) -> Injection:
    """Inject it as Katib does: an ordinary container and a shared process namespace.

    Images in the field wait for the training's processes, which they see there. A pod in the host's process
    namespace sees them anyway, and Kubernetes refuses both at once.
    """
    trial, pod = subject.trial, subject.pod
    name = name_of(trial)
    if name == subject.container.get("name"):
        raise Refusal(
            Reason.INVALID,
            f'Trial "{trial.metadata.name}": spec.metricsCollector.collector.customCollector.name: {name!r} is the'
            " primary container's name; name the collector otherwise",
        )
    sharing = share(subject, writable=True)
    if sharing.fault:
        warning = f"no metrics collector is injected, nobody will see this trial's metrics: {sharing.fault}"
        return base._replace(decision=f"no sidecar: {sharing.fault}", warnings=(*base.warnings, warning))
    rules = (
        f"trial {trial.metadata.name!r}: its early-stopping rules are left to the Custom collector; with"
        " customCollector.restartPolicy: Always trialtap looks at them",
    )
    container = {**given(trial), "name": name}
    return base._replace(
        sidecar=_with(container, "volumeMounts", sharing.collector_mounts, "mountPath"),
        native=False,
        share_processes=not pod["spec"].get("hostPID"),
        volumes=(*base.volumes, *sharing.volumes),
        mounts=(*base.mounts, *sharing.training_mounts),
        warnings=base.warnings + sharing.warnings + (rules if trial.spec.early_stopping_rules else ()),
    )


def build(subject: Subject, args: list[str], mounts: Iterable[JSON], env: Iterable[JSON] = ()) -> JSON:
    """The container as a native sidecar: told, equipped and ended like ours, its own fields going first.

    It gets our argv where it has no `args` of its own, and our resources and securityContext where it has
    none (its file system stays writable, since nobody knows what it writes). With early-stopping rules the
    training waits for the `tap` that it puts in place, as ours does.
    """
    trial, settings = subject.trial, subject.settings
    token = [mount for mount in sidecar.own_mounts(settings) if mount["name"] == names.TOKEN_VOLUME]
    container = {**given(trial), "name": name_of(trial)}
    container = _with(container, "volumeMounts", [*mounts, *token], "mountPath")
    container = _with(container, "env", [*sidecar.environment(settings), *env], "name")
    if not container.get("args"):
        container["args"] = args
    if trial.spec.early_stopping_rules:
        container.setdefault("lifecycle", sidecar.WAIT_READY)
    if "securityContext" not in container:
        context = sidecar.security_context(subject.pod, subject.container, like_training=True)
        container["securityContext"] = {k: v for k, v in context.items() if k != "readOnlyRootFilesystem"}
    if not container.get("resources"):
        ranges = subject.surroundings.limit_ranges
        container["resources"] = resources.for_sidecar(subject.pod, settings.sidecar.resources, ranges)
    return container


def own_volumes(settings: Settings) -> list[JSON]:
    """The token's volume; the API token stays a Custom collector's own affair."""
    return [volume for volume in sidecar.own_volumes(settings) if volume["name"] == names.TOKEN_VOLUME]


def _check(trial: Trial) -> None:
    """Refuse what can be no container: the CRD takes anything, and the API server would name the pod's field."""
    field, container = "spec.metricsCollector.collector.customCollector", given(trial)
    fault = (
        "" if isinstance(container.get("image"), str) else "needs the container that collects, with an image"
    )
    for name in ("env", "volumeMounts"):
        items = container.get(name)
        if items and not (isinstance(items, list) and all(isinstance(item, dict) for item in items)):
            fault = f"{name} is no list of objects"
    if fault:
        raise Refusal(Reason.INVALID, f'Trial "{trial.metadata.name}": {field}: {fault}')


def _with(container: JSON, field: str, items: Iterable[JSON], key: str) -> JSON:
    """The container with the items that its own list lacks appended to it."""
    present = container.get(field) or []
    taken = [item.get(key) for item in present]
    new = [item for item in items if item[key] not in taken]
    return {**container, field: [*present, *new]} if new else container
