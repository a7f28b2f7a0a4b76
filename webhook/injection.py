"""Decides what a pod of a trial gets, and answers with the patch: pure, and idempotent on its own output."""

from typing import Final

from trialtap import names
from trialtap.objects import Trial
from webhook import custom, patch, platform, primary
from webhook.build import Injection, inject
from webhook.command import Entrypoint
from webhook.review import JSON, Reason, Refusal, Verdict
from webhook.surroundings import Subject, Surroundings

__all__ = [
    "Entrypoint",
    "Injection",
    "Surroundings",
    "admit",
    "image_to_look_up",
    "inject",
    "needs_suggestion",
    "plan",
]

_LABEL_LENGTH: Final = 63
"""Longest value of a label (Kubernetes API); a Trial's name may be longer."""
_KATIB_LABELS: Final = "katib.kubeflow.org/"


def admit(pod: JSON, trial: Trial, surroundings: Surroundings) -> Verdict:
    """`plan`, `inject` and the JSON Patch between the two pods, as one verdict (a refusal stands in it)."""
    try:
        injection = plan(pod, trial, surroundings)
    except Refusal as refusal:
        return Verdict(refusal=refusal, decision=refusal.message)
    changes = patch.diff(pod, inject(pod, injection))
    return Verdict(patch=changes, warnings=injection.warnings, decision=injection.decision)


def image_to_look_up(pod: JSON, trial: Trial) -> str | None:
    """Image whose entrypoint `plan` needs in `Surroundings.entrypoint`; None: it needs none."""
    index = _primary_container(pod, trial)
    if index is None or _lacking_label(pod, trial) or _injected_by_katib(pod, trial):
        return None
    container = pod["spec"]["containers"][index]
    if container.get("command") or not primary.wraps(trial):
        return None
    return container.get("image") or None


def needs_suggestion(trial: Trial, pod: JSON) -> bool:
    """Whether `plan` would use `Surroundings.suggestion`: for its volume, or its EarlyStopping service."""
    if names.EXPERIMENT_LABEL not in (trial.metadata.labels or {}):
        return False
    return _primary_container(pod, trial) is not None and not _lacking_label(pod, trial)


def plan(pod: JSON, trial: Trial, surroundings: Surroundings) -> Injection:
    """Decide what a pod of a trial gets.

    - A pod that Katib's webhook injected is left alone.
    - Every pod of the trial gets labels; the environment goes where the primary container is.
    - The sidecar goes to primary pods: those with every one of `primaryPodLabels`, or all without any.
    - A pod without the primary container is refused where that must be a mistake (the labels say that it
      is primary; or it is the pod of the Trial's own Job): the trial would run unobserved for ever.

    Raises:
        Refusal: the pod must not be created as it is; the message says what to change.
    """
    if name := _injected_by_katib(pod, trial):
        return Injection(
            decision="already injected by Katib's webhook",
            warnings=(f"container {name!r} was added by Katib's webhook: trialtap leaves this pod alone",),
        )
    labels, named = _labels(pod, trial)
    index = _primary_container(pod, trial)
    lacking = _lacking_label(pod, trial)
    if index is None and not lacking:
        _refuse_missing_container(pod, trial, surroundings)
    warnings = platform.istio_warnings(pod, surroundings.namespace_labels)
    if index is None or lacking:
        why = f"not the primary pod, which has the label {lacking}" if lacking else _no_container(trial)
        return Injection(
            decision=f"no sidecar: {why}",
            labels=labels,
            container=index,
            env=() if index is None else (_trial_name_env(trial, label=named),),
            warnings=warnings if lacking else (*warnings, _no_container_warning(trial)),
        )
    base = Injection(
        decision="",
        labels=labels,
        container=index,
        env=(_trial_name_env(trial, label=named),),
        warnings=warnings,
    )
    return primary.plan(Subject(pod, pod["spec"]["containers"][index], trial, surroundings), base)


def _labels(pod: JSON, trial: Trial) -> tuple[dict[str, str], bool]:
    """Labels that the pod gets, and whether the trial's name is among them (it may be too long for a label).

    Labels that decide which pod is primary are never taken from the trial: every pod would be.
    """
    present = (pod.get("metadata") or {}).get("labels") or {}
    deciding = trial.spec.primary_pod_labels or {}
    labels = {
        key: value
        for key, value in (trial.metadata.labels or {}).items()
        if key.startswith(_KATIB_LABELS) or (key not in present and key not in deciding)
    }
    named = len(trial.metadata.name) <= _LABEL_LENGTH
    if named:
        labels[names.TRIAL_LABEL] = trial.metadata.name
    return labels, named


def _trial_name_env(trial: Trial, *, label: bool) -> JSON:
    """`KATIB_TRIAL_NAME`, from the pod's label as with Katib, or as it is where no label can hold it."""
    if not label:
        return {"name": names.TRIAL_NAME_ENV, "value": trial.metadata.name}
    path = f"metadata.labels['{names.TRIAL_LABEL}']"
    return {"name": names.TRIAL_NAME_ENV, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def _primary_container(pod: JSON, trial: Trial) -> int | None:
    """Index of the primary container; a trial that names none means a pod's only one."""
    wanted, containers = trial.spec.primary_container_name, pod["spec"].get("containers") or ()
    if not wanted and len(containers) == 1:
        return 0
    return next((i for i, container in enumerate(containers) if container.get("name") == wanted), None)


def _lacking_label(pod: JSON, trial: Trial) -> str:
    """The first of `primaryPodLabels` that the pod has not, as `key=value`; empty: it is primary."""
    present = (pod.get("metadata") or {}).get("labels") or {}
    wanted = trial.spec.primary_pod_labels or {}
    return next((f"{key}={value}" for key, value in wanted.items() if present.get(key) != value), "")


def _injected_by_katib(pod: JSON, trial: Trial) -> str:
    """Name of the collector that Katib's webhook put among the ordinary containers; empty: none.

    A Custom one is injected by us in the very same way, so that one is no sign.
    """
    for container in pod["spec"].get("containers") or ():
        name = container.get("name")
        if name in (names.LOGGER_CONTAINER, names.COLLECTOR_CONTAINER) and name != custom.name_of(trial):
            return str(name)
    return ""


def _refuse_missing_container(pod: JSON, trial: Trial, surroundings: Surroundings) -> None:
    if not trial.spec.primary_pod_labels and not surroundings.own_job:
        return
    have = ", ".join(str(container.get("name")) for container in pod["spec"].get("containers") or ())
    wanted = trial.spec.primary_container_name
    raise Refusal(
        Reason.PRIMARY_CONTAINER_MISSING,
        f'{platform.describe(pod)} of Trial "{trial.metadata.name}" has no container {wanted!r}, which'
        f" spec.primaryContainerName names; it has {have}: correct trialTemplate.primaryContainerName of the"
        " Experiment, or the container's name",
    )


def _no_container(trial: Trial) -> str:
    return f"no container {trial.spec.primary_container_name!r} (primaryContainerName)"


def _no_container_warning(trial: Trial) -> str:
    return (
        f"trial {trial.metadata.name!r}: this pod has no container {trial.spec.primary_container_name!r} and gets no"
        " metrics collector; set primaryPodLabels in the trial template if another pod is the primary one"
    )
