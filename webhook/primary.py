"""What the primary pod of a trial gets, by collector kind."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from trialtap import names
from trialtap.objects import Trial
from webhook import command, katibconfig, platform, resources, sidecar, volumes
from webhook.build import Injection
from webhook.review import JSON, Reason, Refusal
from webhook.sidecar import KINDS, WITHOUT_SIDECAR
from webhook.surroundings import Surroundings

INJECTED: Final = "injected"
_UNBUFFERED: Final[JSON] = {"name": "PYTHONUNBUFFERED", "value": "1"}
"""A pipe is no terminal: Python would keep lines back for minutes."""


def wraps(trial: Trial) -> bool:
    """Whether the training runs through `tap`: to copy its output, or to be stopped early."""
    kind = trial.spec.metrics_collector.kind
    if kind == "Custom" and not _native_custom(trial):
        return False
    return kind in KINDS and (KINDS[kind].copies or bool(trial.spec.early_stopping_rules))


def custom_name(trial: Trial) -> str:
    """Name of a Custom collector's container; empty: the trial has none."""
    collector = trial.spec.metrics_collector.collector
    if collector is None or collector.kind != "Custom":
        return ""
    return str((collector.custom_collector or {}).get("name") or names.COLLECTOR_CONTAINER)


def plan(pod: JSON, trial: Trial, surroundings: Surroundings, base: Injection) -> Injection:
    """Complete an injection that so far holds what every pod of the trial gets.

    Raises:
        Refusal: the pod must not be created as it is.
    """
    kind = trial.spec.metrics_collector.kind
    container = pod["spec"]["containers"][base.container or 0]
    base = _with_suggestion_volume(pod, trial, surroundings, base)
    if kind in WITHOUT_SIDECAR:
        ruled = f"trial {trial.metadata.name!r}: early-stopping rules do nothing with collector kind {kind}"
        return replace(
            base,
            decision=f"no sidecar: with kind {kind} the training reports by itself",
            warnings=base.warnings + ((ruled,) if trial.spec.early_stopping_rules else ()),
        )
    if kind not in KINDS:
        raise Refusal(
            Reason.INVALID,
            f'Trial "{trial.metadata.name}": spec.metricsCollector.collector.kind: {kind!r} is not one of'
            f" {', '.join((*KINDS, WITHOUT_SIDECAR[0]))}",
        )
    platform.refuse_unsupported(pod)
    if wraps(trial) and trial.spec.early_stopping_rules:
        platform.refuse_endless_restart(pod, container)
    if kind == "Custom":
        base = _with_custom(pod, trial, surroundings, base, container)
    else:
        base = _with_sidecar(pod, trial, surroundings, base, container)
    return base if base.sidecar is None else _with_pod_fields(pod, surroundings, base)


def _with_sidecar(
    pod: JSON, trial: Trial, surroundings: Surroundings, base: Injection, container: JSON
) -> Injection:
    source, settings = trial.spec.metrics_collector, surroundings.settings
    kind = KINDS[source.kind]
    if present := _present(pod, kind.container, trial):
        return replace(base, decision=INJECTED, sidecar=present)
    sharing = (
        volumes.share(pod, container, source.path, directory=kind.directory)
        if kind.files
        else volumes.Sharing()
    )
    if sharing.fault:
        return _unobserved(base, sharing.fault)
    address, early_warnings = early_stopping_address(trial, surroundings)
    config = katibconfig.collector(surroundings.katib_config, source.kind)
    private = volumes.free_name(names.PRIVATE_VOLUME, pod)
    args = sidecar.collector_args(
        trial,
        pod,
        container,
        settings=settings,
        namespace=surroundings.namespace,
        early_stop_address=address,
        wait_all=config.wait_all,
    )
    wanted = (
        settings.sidecar.resources if config.resources is None else sidecar.resources_of(config.resources)
    )
    built = sidecar.build(
        source.kind,
        args,
        pod=pod,
        container=container,
        settings=settings,
        config=config,
        resources=resources.for_sidecar(pod, wanted, surroundings.limit_ranges),
        mounts=[_private_mount(private), *sharing.collector_mounts],
        env=sharing.collector_env,
    )
    warnings = (
        *sharing.warnings,
        *(platform.unreadable_files_warnings(pod, container) if kind.files else ()),
        *(platform.tty_warnings(container) if kind.copies else ()),
        *early_warnings,
    )
    base = replace(
        base,
        decision=INJECTED,
        sidecar=built,
        volumes=(
            *base.volumes,
            {"name": private, "emptyDir": {}},
            *_present_volumes(sharing),
            *_own(pod, surroundings),
        ),
        mounts=(*base.mounts, *_training_mounts(sharing)),
        warnings=(*base.warnings, *warnings),
    )
    return _through_tap(trial, surroundings, base, container, private) if wraps(trial) else base


def _with_custom(
    pod: JSON, trial: Trial, surroundings: Surroundings, base: Injection, container: JSON
) -> Injection:
    """A user's own collector: as Katib injects it, or like ours when it says `restartPolicy: Always`."""
    source = trial.spec.metrics_collector
    given = source.collector.custom_collector if source.collector else None
    if not given:
        raise Refusal(
            Reason.INVALID,
            f'Trial "{trial.metadata.name}": spec.metricsCollector.collector.customCollector is missing; kind Custom'
            " needs the container that collects",
        )
    native, name = _native_custom(trial), custom_name(trial)
    others = pod["spec"].get("initContainers" if native else "containers") or ()
    if present := next((other for other in others if other.get("name") == name), None):
        shared = not native and not pod["spec"].get("hostPID")
        return replace(base, decision=INJECTED, sidecar=present, native=native, share_processes=shared)
    sharing = _custom_sharing(pod, trial, container, native=native)
    if sharing.fault:
        return _unobserved(base, sharing.fault)
    custom = {**given, "name": name}
    mounted = {mount.get("mountPath") for mount in given.get("volumeMounts") or ()}
    mounts = [mount for mount in sharing.collector_mounts if mount["mountPath"] not in mounted]
    base = replace(
        base,
        decision=INJECTED,
        native=native,
        volumes=(*base.volumes, *_present_volumes(sharing)),
        mounts=(*base.mounts, *_training_mounts(sharing)),
        warnings=(*base.warnings, *sharing.warnings),
    )
    if native:
        return _native(pod, trial, surroundings, base, container, custom, mounts)
    rules = (
        f"trial {trial.metadata.name!r}: its early-stopping rules are left to the Custom collector; with"
        " customCollector.restartPolicy: Always trialtap looks at them",
    )
    return replace(
        base,
        sidecar=_appended(custom, "volumeMounts", mounts),
        share_processes=not pod["spec"].get("hostPID"),
        warnings=base.warnings + (rules if trial.spec.early_stopping_rules else ()),
    )


def _native(
    pod: JSON,
    trial: Trial,
    surroundings: Surroundings,
    base: Injection,
    container: JSON,
    custom: JSON,
    mounts: list[JSON],
) -> Injection:
    """A Custom collector made with our SDK: told, equipped and ended like our own sidecar."""
    settings = surroundings.settings
    private = volumes.free_name(names.PRIVATE_VOLUME, pod)
    address, warnings = early_stopping_address(trial, surroundings)
    token = [mount for mount in sidecar.own_mounts(settings) if mount["name"] == names.TOKEN_VOLUME]
    custom = _appended(custom, "volumeMounts", [_private_mount(private), *mounts, *token])
    custom = _appended(custom, "env", sidecar.environment(settings))
    if not custom.get("args"):
        custom["args"] = sidecar.collector_args(
            trial,
            pod,
            container,
            settings=settings,
            namespace=surroundings.namespace,
            early_stop_address=address,
            wait_all=None,
        )
    if wraps(trial):
        custom.setdefault("lifecycle", sidecar.WAIT_READY)
    added = [v for v in sidecar.own_volumes(settings) if v["name"] == names.TOKEN_VOLUME]
    base = replace(
        base,
        sidecar=custom,
        volumes=(*base.volumes, {"name": private, "emptyDir": {}}, *added),
        warnings=(*base.warnings, *warnings),
    )
    return _through_tap(trial, surroundings, base, container, private) if wraps(trial) else base


def _through_tap(
    trial: Trial, surroundings: Surroundings, base: Injection, container: JSON, private: str
) -> Injection:
    """Run the training through `tap`, with the private volume that holds it.

    Raises:
        Refusal: the container sets no command and its image's is not known; or our directory is taken.
    """
    volumes.refuse_private_clash(container)
    copies = KINDS[trial.spec.metrics_collector.kind].copies
    env = (*base.env, _UNBUFFERED) if copies else base.env
    mounts = (*base.mounts, _private_mount(private))
    if command.is_wrapped(container):
        return replace(base, env=env, mounts=mounts)
    words = command.tap_argv(copy=copies, keep=surroundings.settings.sidecar.keep)
    wrapped = command.wrap(container, words, surroundings.entrypoint)
    if wrapped is None:
        fault = surroundings.entrypoint_fault or "its image's entrypoint is empty or was not looked up"
        raise Refusal(
            Reason.ENTRYPOINT_UNKNOWN,
            f'Trial "{trial.metadata.name}": container {container["name"]!r} sets no `command`, and the entrypoint of'
            f" image {container.get('image')!r} is not known ({fault}); set `command` in the trial template",
        )
    return replace(base, env=env, mounts=mounts, command=wrapped[0], args=wrapped[1])


def early_stopping_address(trial: Trial, surroundings: Surroundings) -> tuple[str, tuple[str, ...]]:
    """HOST:PORT of the EarlyStopping service, "" without rules; and warnings."""
    if not trial.spec.early_stopping_rules:
        return "", ()
    if surroundings.settings.early_stopping_address:
        return surroundings.settings.early_stopping_address, ()
    service = _suggestion_service(trial, surroundings)
    if service:
        return f"{service}.{surroundings.namespace}:{names.EARLY_STOPPING_PORT}", ()
    return "", (
        f"trial {trial.metadata.name!r} has early-stopping rules, and no EarlyStopping service is known: its experiment"
        " has no Suggestion, and the webhook's earlyStoppingAddress is not set",
    )


def _with_suggestion_volume(
    pod: JSON, trial: Trial, surroundings: Surroundings, base: Injection
) -> Injection:
    """PBT's checkpoints: the suggestion's claim at `suggestion_trial_dir`, each trial in its own folder."""
    algorithm = _algorithm(surroundings.suggestion)
    settings = {item.get("name"): item.get("value") for item in algorithm.get("algorithmSettings") or ()}
    directory = settings.get("suggestion_trial_dir")
    service = _suggestion_service(trial, surroundings)
    if not directory or not service:
        return base
    experiment = (trial.metadata.labels or {}).get(names.EXPERIMENT_LABEL, "")
    claim = {"persistentVolumeClaim": {"claimName": service}}
    present = {v.get("name"): v for v in pod["spec"].get("volumes") or ()}.get(names.SUGGESTION_VOLUME)
    ours = present is not None and present.get("persistentVolumeClaim", {}).get("claimName") == service
    name = names.SUGGESTION_VOLUME if ours else volumes.free_name(names.SUGGESTION_VOLUME, pod)
    mount = {"name": name, "mountPath": directory, "subPath": f"{experiment}/{trial.metadata.name}"}
    return replace(base, volumes=(*base.volumes, {"name": name, **claim}), mounts=(*base.mounts, mount))


def _suggestion_service(trial: Trial, surroundings: Surroundings) -> str:
    """`<suggestion>-<algorithm>`, the name of a suggestion's Service and claim; "" where it is not known."""
    suggestion = surroundings.suggestion or {}
    name = (suggestion.get("metadata") or {}).get("name")
    algorithm = _algorithm(suggestion).get("algorithmName")
    return f"{name}-{algorithm}" if name and algorithm else ""


def _algorithm(suggestion: JSON | None) -> JSON:
    spec = (suggestion or {}).get("spec") or {}
    return spec.get("algorithm") or {}


def _with_pod_fields(pod: JSON, surroundings: Surroundings, base: Injection) -> Injection:
    """The pull secret of the sidecar's image, and time to flush."""
    settings = surroundings.settings.sidecar
    grace = pod["spec"].get("terminationGracePeriodSeconds")
    longer = settings.flush_grace_seconds > (sidecar.DEFAULT_GRACE if grace is None else grace)
    return replace(
        base,
        pull_secret=settings.pull_secret,
        grace=settings.flush_grace_seconds if longer else None,
    )


def _present(pod: JSON, name: str, trial: Trial) -> JSON | None:
    """The sidecar that an earlier pass put there, as it stands now; None: there is none yet.

    Raises:
        Refusal: another init container bears the name.
    """
    for other in pod["spec"].get("initContainers") or ():
        if other.get("name") == name:
            args = other.get("args") or []
            if other.get("restartPolicy") == "Always" and args[:2] == ["-t", trial.metadata.name]:
                return dict(other)
            raise Refusal(
                Reason.UNSUPPORTED_POD,
                f"{platform.describe(pod)}: an init container is named {name!r} as trialtap's sidecar is, and is not"
                f' the one of Trial "{trial.metadata.name}"; rename it, or remove it from the pod template',
            )
    return None


def _native_custom(trial: Trial) -> bool:
    collector = trial.spec.metrics_collector.collector
    given = (collector.custom_collector if collector else None) or {}
    return given.get("restartPolicy") == "Always"


def _custom_sharing(pod: JSON, trial: Trial, container: JSON, *, native: bool) -> volumes.Sharing:
    source = trial.spec.metrics_collector
    where = source.source.file_system_path if source.source else None
    if where is None or not where.path:
        return volumes.Sharing()
    return volumes.share(pod, container, where.path, directory=where.kind == "Directory", writable=not native)


def _unobserved(base: Injection, fault: str) -> Injection:
    warning = f"no metrics collector is injected, nobody will see this trial's metrics: {fault}"
    return replace(base, decision=f"no sidecar: {fault}", warnings=(*base.warnings, warning))


def _private_mount(volume: str) -> JSON:
    return {"name": volume, "mountPath": names.PRIVATE_DIRECTORY}


def _present_volumes(sharing: volumes.Sharing) -> tuple[JSON, ...]:
    return () if sharing.volume is None else (sharing.volume,)


def _training_mounts(sharing: volumes.Sharing) -> tuple[JSON, ...]:
    return () if sharing.mount is None else (sharing.mount,)


def _own(pod: JSON, surroundings: Surroundings) -> list[JSON]:
    """Volumes of the sidecar alone.

    Raises:
        Refusal: the pod has another volume of such a name.
    """
    own = sidecar.own_volumes(surroundings.settings)
    by_name = {volume.get("name"): volume for volume in pod["spec"].get("volumes") or ()}
    for volume in own:
        if by_name.get(volume["name"], volume) != volume:
            raise Refusal(
                Reason.UNSUPPORTED_MOUNT,
                f"{platform.describe(pod)} has a volume named {volume['name']!r}, which trialtap's sidecar needs;"
                " rename it",
            )
    return own


def _appended(container: JSON, field: str, items: Iterable[JSON]) -> JSON:
    present = container.get(field) or []
    taken = {item.get("name") if field == "env" else item.get("mountPath") for item in present}
    new = [item for item in items if item["name" if field == "env" else "mountPath"] not in taken]
    return {**container, field: [*present, *new]} if new else dict(container)
