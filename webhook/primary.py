"""What the primary pod of a trial gets, by collector kind."""

from typing import Final

from trialtap import names
from trialtap.objects import Trial
from webhook import command, custom, platform, sidecar, suggestion, volumes
from webhook.build import Injection
from webhook.review import JSON, Reason, Refusal
from webhook.sidecar import KINDS, WITHOUT_SIDECAR
from webhook.surroundings import Subject

INJECTED: Final = "injected"
_UNBUFFERED: Final[JSON] = {"name": "PYTHONUNBUFFERED", "value": "1"}
"""A pipe is no terminal: Python would keep lines back for minutes."""


def wraps(trial: Trial) -> bool:
    """Whether the training runs through `tap`: to copy its output, or to be stopped early."""
    kind = trial.spec.metrics_collector.kind
    if kind not in KINDS or (kind == "Custom" and not custom.is_native(trial)):
        return False
    return KINDS[kind].copies or bool(trial.spec.early_stopping_rules)


def plan(subject: Subject, base: Injection) -> Injection:
    """Complete an injection that so far holds what every pod of the trial gets.

    Raises:
        Refusal: the pod must not be created as it is.
    """
    trial, pod = subject.trial, subject.pod
    kind = trial.spec.metrics_collector.kind
    base = suggestion.with_volume(subject, base)
    if kind in WITHOUT_SIDECAR:
        ruled = f"trial {trial.metadata.name!r}: early-stopping rules do nothing with collector kind {kind}"
        return base._replace(
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
        platform.refuse_endless_restart(pod, subject.container)
    base = base._replace(decision=INJECTED)
    if kind == "Custom" and not custom.is_native(trial):
        return custom.plan(subject, base)
    return _with_native(subject, base)


def _with_native(subject: Subject, base: Injection) -> Injection:
    """The sidecar of ours, or a Custom one that lives as ours does, and what it shares with the training."""
    trial, pod, source = subject.trial, subject.pod, subject.trial.spec.metrics_collector
    kind, is_custom = KINDS[source.kind], source.kind == "Custom"
    name = custom.name_of(trial) if is_custom else kind.container
    if present := _present(subject, name):
        return _with_pod_fields(subject, base._replace(sidecar=present))
    if is_custom:
        sharing = custom.share(subject, writable=False)
    elif kind.files:
        sharing = volumes.share(subject, source.path, directory=kind.directory)
    else:
        sharing = volumes.Sharing()
    if sharing.fault:
        return unobserved(base, sharing.fault)
    address, early_warnings = suggestion.early_stopping_address(subject)
    args = sidecar.collector_args(subject, address)
    private = volumes.free_name(names.PRIVATE_VOLUME, pod)
    mounts = [_private_mount(private), *sharing.collector_mounts]
    make = custom.build if is_custom else sidecar.build
    base = base._replace(
        sidecar=make(subject, args, mounts, sharing.collector_env),
        volumes=(
            *base.volumes,
            {"name": private, "emptyDir": {}},
            *sharing.volumes,
            *_own_volumes(subject),
        ),
        mounts=(*base.mounts, *sharing.training_mounts),
        warnings=(
            *base.warnings,
            *sharing.warnings,
            *(platform.unreadable_files_warnings(pod, subject.container) if kind.files else ()),
            *(platform.tty_warnings(subject.container) if kind.copies else ()),
            *early_warnings,
        ),
    )
    base = _with_pod_fields(subject, base)
    return _through_tap(subject, base, private) if wraps(trial) else base


def unobserved(base: Injection, fault: str) -> Injection:
    """The pod goes without a sidecar, and whoever made it is told."""
    warning = f"no metrics collector is injected, nobody will see this trial's metrics: {fault}"
    return base._replace(decision=f"no sidecar: {fault}", warnings=(*base.warnings, warning))


def _through_tap(subject: Subject, base: Injection, private: str) -> Injection:
    """Run the training through `tap`, with the private volume that holds it.

    Raises:
        Refusal: the container sets no command and its image's is not known; or our directory is taken.
    """
    trial, container = subject.trial, subject.container
    copies = KINDS[trial.spec.metrics_collector.kind].copies
    base = base._replace(
        env=(*base.env, _UNBUFFERED) if copies else base.env,
        mounts=(*base.mounts, _private_mount(private)),
    )
    volumes.refuse_private_clash(container, subject.whose)
    if command.is_wrapped(container):
        return base
    words = command.tap_argv(copy=copies, keep=subject.settings.sidecar.keep)
    wrapped = command.wrap(container, words, subject.surroundings.entrypoint)
    if wrapped is None:
        fault = subject.surroundings.entrypoint_fault or "the image names neither ENTRYPOINT nor CMD"
        raise Refusal(
            Reason.ENTRYPOINT_UNKNOWN,
            f'Trial "{trial.metadata.name}": container {container["name"]!r} sets no `command`, and the'
            f" entrypoint of image {container.get('image')!r} is not known ({fault}); set `command` in the"
            " trial template",
        )
    return base._replace(command=wrapped[0], args=wrapped[1])


def _with_pod_fields(subject: Subject, base: Injection) -> Injection:
    """The pull secret of the sidecar's image, and time to flush."""
    present = subject.pod["spec"].get("terminationGracePeriodSeconds")
    longer = subject.settings.sidecar.flush_grace_seconds and present != subject.grace
    return base._replace(
        pull_secret=subject.settings.sidecar.pull_secret,
        grace=subject.grace if longer else None,
    )


def _present(subject: Subject, name: str) -> JSON | None:
    """The sidecar that an earlier pass put there, as it stands now; None: there is none yet.

    Raises:
        Refusal: another init container bears the name.
    """
    pod, trial = subject.pod, subject.trial
    for other in pod["spec"].get("initContainers") or ():
        if other.get("name") != name:
            continue
        annotations = (pod.get("metadata") or {}).get("annotations") or {}
        noted = annotations.get(names.DECISION_ANNOTATION) == INJECTED
        if other.get("restartPolicy") == "Always" and noted and _is_of(trial, other):
            return dict(other)
        raise Refusal(
            Reason.UNSUPPORTED_POD,
            f"{platform.describe(pod)}: an init container is named {name!r} as the metrics collector is, and is"
            f' not the one of Trial "{trial.metadata.name}"; rename it, or remove it from the pod template',
        )
    return None


def _is_of(trial: Trial, container: JSON) -> bool:
    """Whether a sidecar was made for this trial; a pod template may hold one copied from another pod."""
    if trial.spec.metrics_collector.kind == "Custom":
        return container.get("image") == custom.given(trial).get("image")
    return (container.get("args") or [])[:2] == ["-t", trial.metadata.name]


def _own_volumes(subject: Subject) -> list[JSON]:
    """Volumes of the sidecar alone.

    Raises:
        Refusal: the pod has another volume of such a name.
    """
    kind = subject.trial.spec.metrics_collector.kind
    own = custom.own_volumes(subject.settings) if kind == "Custom" else sidecar.own_volumes(subject.settings)
    by_name = {volume.get("name"): volume for volume in subject.pod["spec"].get("volumes") or ()}
    for volume in own:
        if by_name.get(volume["name"], volume) != volume:
            raise Refusal(
                Reason.UNSUPPORTED_MOUNT,
                f"{platform.describe(subject.pod)} has a volume named {volume['name']!r}, which the metrics"
                " collector needs; rename it in the pod template",
            )
    return own


def _private_mount(volume: str) -> JSON:
    return {"name": volume, "mountPath": names.PRIVATE_DIRECTORY}
