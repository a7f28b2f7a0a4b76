"""All rules of an Experiment and of a Trial, over what was read from outside. Pure, and it never raises."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from trialtap import names
from trialtap.objects import Experiment, ExperimentSpec, Trial
from webhook.experiments import conditions, defaults, job, metrics, podtypes, reading, space, template, update
from webhook.experiments.faults import Faults
from webhook.review import JSON

RESUME_POLICIES: Final = ("Never", "LongRunning", "FromVolume")
_NAME: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_NAME_LIMIT: Final = 40
_LABEL_LIMIT: Final = 63


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What is judged besides the object itself."""

    namespace_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the object's namespace (Istio's stand there)."""
    config_map_template: JSON | None = None
    """The parsed template from a ConfigMap; None: there is none, or it could not be had."""
    katib_config: JSON | None = None
    """The parsed `katib-config.yaml`; None: there is none."""
    image_from_katib_config: bool = False
    """Collector kinds need an entry with an image there."""
    existing_volume: str = ""
    """Name of the PersistentVolume of FromVolume when it is there already."""


def check_experiment(new: JSON, old: JSON | None, around: Surroundings, faults: Faults) -> None:
    """Judge an Experiment.

    Args:
        new: the object, defaulted.
        old: the stored one, defaulted; None on CREATE.
        around: what was read from outside.
        faults: what is wrong is added.
    """
    model = reading.read(Experiment, new, faults)
    _check_name(model, faults)
    _check_counts(model.spec, faults)
    metrics.check_objective(model.spec.objective, faults)
    _check_algorithms(model.spec, faults)
    if model.spec.resume_policy not in RESUME_POLICIES:
        faults.unsupported("spec.resumePolicy", model.spec.resume_policy, RESUME_POLICIES)
    space.check(model.spec, faults)
    template.check(model.spec, around.config_map_template, faults)
    collector = model.spec.metrics_collector_spec
    metrics.check_collector(collector, "spec.metricsCollectorSpec", faults)
    if model.spec.early_stopping and collector and collector.kind in metrics.PUSHED:
        faults.forbidden(
            "spec.earlyStopping", "with collector kind Push nobody looks at the metrics in the pod"
        )
    _check_katib_config(model.spec, around, faults)
    if around.existing_volume:
        faults.forbidden(
            "spec.resumePolicy",
            f"FromVolume keeps its state in PersistentVolume {around.existing_volume}, which is there already: "
            "remove it, or name the experiment otherwise",
        )
    if old is not None:
        update.check(old, new, model, faults)
    _warn(model.spec, around, faults)


def _check_name(model: Experiment, faults: Faults) -> None:
    name = model.metadata.name
    extra = model.metadata.model_extra or {}
    if not name and extra.get("generateName"):
        return  # the API server has yet to make the name
    if not _NAME.fullmatch(name) or len(name) > _NAME_LIMIT:
        faults.invalid(
            "metadata.name",
            name,
            f"must be lower-case letters, digits and dashes, start with a letter and have at most {_NAME_LIMIT} characters",
        )
        return
    algorithm = model.spec.algorithm.algorithm_name if model.spec.algorithm else ""
    service = f"{name}-{algorithm}"
    if len(service) > _LABEL_LIMIT:
        faults.invalid(
            "metadata.name",
            name,
            f"is too long: the suggestion's Service {service} would have {len(service)} characters of {_LABEL_LIMIT}",
        )


def _check_counts(spec: ExperimentSpec, faults: Faults) -> None:
    most = spec.max_trial_count
    if spec.max_failed_trial_count is not None and spec.max_failed_trial_count < 0:
        faults.invalid("spec.maxFailedTrialCount", spec.max_failed_trial_count, "must not be negative")
    for path, count in (("spec.maxTrialCount", most), ("spec.parallelTrialCount", spec.parallel_trial_count)):
        if count is not None and count <= 0:
            faults.invalid(path, count, "must be greater than 0")
    for path, count in (
        ("spec.maxFailedTrialCount", spec.max_failed_trial_count),
        ("spec.parallelTrialCount", spec.parallel_trial_count),
    ):
        if most is not None and count is not None and count > most:
            faults.invalid(path, count, f"must not be greater than maxTrialCount, which is {most}")


def _check_algorithms(spec: ExperimentSpec, faults: Faults) -> None:
    if spec.algorithm is None:
        faults.required("spec.algorithm", "name the algorithm that proposes trials, such as random")
    elif not spec.algorithm.algorithm_name:
        faults.required(
            "spec.algorithm.algorithmName", "name the algorithm that proposes trials, such as random"
        )
    if spec.early_stopping is not None and not spec.early_stopping.algorithm_name:
        faults.required("spec.earlyStopping.algorithmName", "name the algorithm, such as medianstop")
    for path, algorithm in (("spec.algorithm", spec.algorithm), ("spec.earlyStopping", spec.early_stopping)):
        seen: set[str] = set()
        for index, setting in enumerate((algorithm.algorithm_settings if algorithm else None) or ()):
            here = f"{path}.algorithmSettings[{index}].name"
            if not setting.name:
                faults.required(here, "name the setting")
            elif setting.name in seen:
                faults.duplicate(here, setting.name, "this setting stands there before")
            seen.add(setting.name)


_CONFIGURED: Final = (
    ("spec.algorithm.algorithmName", "suggestions", "algorithmName"),
    ("spec.earlyStopping.algorithmName", "earlyStoppings", "algorithmName"),
    ("spec.metricsCollectorSpec.collector.kind", "metricsCollectors", "kind"),
)


def _check_katib_config(spec: ExperimentSpec, around: Surroundings, faults: Faults) -> None:
    """Check that what Katib runs for the experiment has an image in `katib-config`."""
    if around.katib_config is None:
        return
    runtime = around.katib_config.get("runtime")
    collector = spec.metrics_collector_spec
    wanted = (
        spec.algorithm.algorithm_name if spec.algorithm else "",
        spec.early_stopping.algorithm_name if spec.early_stopping else "",
        collector.kind if collector and around.image_from_katib_config else "",
    )
    for name, (path, section, key) in zip(wanted, _CONFIGURED, strict=True):
        if not name or name in {"Custom", *metrics.PUSHED}:
            continue
        entries = runtime.get(section) if isinstance(runtime, dict) else None
        known = [
            entry[key]
            for entry in (entries if isinstance(entries, list) else ())
            if isinstance(entry, dict) and isinstance(entry.get(key), str) and entry.get("image")
        ]
        if name not in known:
            faults.unsupported(path, name, known)


def _warn(spec: ExperimentSpec, around: Surroundings, faults: Faults) -> None:
    chosen = spec.trial_template
    if chosen is None:
        return
    body = chosen.trial_spec or around.config_map_template or {}
    warn_of_istio(body, around.namespace_labels, "spec.trialTemplate", faults)
    collector = spec.metrics_collector_spec
    if collector and collector.kind in {"File", "TensorFlowEvent"} and not chosen.retain:
        _warn_of_lost_files(body, chosen.primary_container_name, collector.path, faults)


def _warn_of_lost_files(body: JSON, primary: str, path: str, faults: Faults) -> None:
    """Metrics files on an emptyDir go with the pod; only what the database holds stays."""
    for _, pod in podtypes.pod_specs(body, ""):
        for container in pod["containers"]:
            mounts = container.get("volumeMounts") or ()
            held = any(isinstance(m, dict) and path.startswith(str(m.get("mountPath"))) for m in mounts)
            if container["name"] == primary and not held:
                faults.warn(
                    f"spec.trialTemplate.retain: false, and {path} is on no volume of the template's own: the file goes "
                    "with the pod, its metrics stay in the database"
                )


def warn_of_istio(body: JSON, namespace_labels: Mapping[str, str], path: str, faults: Faults) -> None:
    """A mesh proxy that is no native sidecar keeps a Job's pod from ever completing."""
    enabled = namespace_labels.get("istio-injection") == "enabled" or "istio.io/rev" in namespace_labels
    if enabled and template.istio_pods(body):
        faults.warn(
            f"{path}: its pods get an Istio sidecar, and where that is no native sidecar they never complete: label "
            'the pod template sidecar.istio.io/inject: "false"'
        )


def check_trial(new: JSON, around: Surroundings, faults: Faults) -> None:
    """Judge a Trial, defaulted."""
    model = reading.read(Trial, new, faults)
    spec = model.spec
    if len(model.metadata.name) > _LABEL_LIMIT:
        faults.invalid(
            "metadata.name",
            model.metadata.name,
            f"must be at most {_LABEL_LIMIT} characters: it becomes a label",
        )
    metrics.check_objective(spec.objective, faults)
    metrics.check_collector(spec.metrics_collector, "spec.metricsCollector", faults)
    metrics.check_rules(spec.early_stopping_rules or (), spec.objective, spec.metrics_collector.kind, faults)
    conditions.check(spec.success_condition, "spec.successCondition", faults)
    conditions.check(spec.failure_condition, "spec.failureCondition", faults)
    _check_assignments(model, faults)
    _check_retries(model, faults)
    if not spec.primary_container_name:
        faults.required("spec.primaryContainerName", "name the container that trains")
    if not spec.run_spec:
        faults.required("spec.runSpec", "give the object that the trial runs")
        return
    for name in ("apiVersion", "kind"):
        if not isinstance(spec.run_spec.get(name), str) or not spec.run_spec[name]:
            faults.required(f"spec.runSpec.{name}", "every Kubernetes object has it")
    if podtypes.of_workload(spec.run_spec) == podtypes.JOB:
        job.check(spec.run_spec, "spec.runSpec", faults)
    template.check_primary(
        spec.run_spec, spec.primary_container_name, "spec.runSpec", "spec.primaryContainerName", faults
    )
    warn_of_istio(spec.run_spec, around.namespace_labels, "spec.runSpec", faults)


def _check_assignments(model: Trial, faults: Faults) -> None:
    seen: set[str] = set()
    for index, assignment in enumerate(model.spec.parameter_assignments or ()):
        here = f"spec.parameterAssignments[{index}].name"
        if not assignment.name:
            faults.required(here, "name the parameter")
        elif assignment.name in seen:
            faults.duplicate(here, assignment.name, "this parameter has a value before")
        seen.add(assignment.name)


def _check_retries(model: Trial, faults: Faults) -> None:
    given = (model.metadata.annotations or {}).get(names.MAX_RETRIES_ANNOTATION)
    if given is not None and not (given.isascii() and given.isdigit()):
        faults.invalid(
            f"metadata.annotations[{names.MAX_RETRIES_ANNOTATION}]",
            given,
            "must be a whole number, 0 for no retry",
        )


def faults_of(new: JSON, old: JSON | None = None, around: Surroundings | None = None) -> Faults:
    """Default and judge one Experiment or Trial: for the command line and tests."""
    faults = Faults()
    if new.get("kind") == "Trial":
        check_trial(defaults.trial(new), around or Surroundings(), faults)
    else:
        stored = None if old is None else defaults.experiment(old)
        check_experiment(defaults.experiment(new), stored, around or Surroundings(), faults)
    return faults
