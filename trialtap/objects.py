"""Katib's Trial and Experiment as typed models; what they do not know is kept.

They are for reading: a model takes every object that runs under Katib, and says in its error which
field it cannot read. Every field has a default, as in Katib's own types. Rules about what is sensible stand in the webhook's validation, not here.
"""

from collections.abc import Sequence
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from trialtap import names


class Model(BaseModel):
    """Base: camelCase outside, snake_case inside, unknown fields kept, null read as absent."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="allow",
        frozen=True,
        use_attribute_docstrings=True,
    )


class Metadata(Model):
    """The parts of ObjectMeta that trialtap reads."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class MetricStrategy(Model):
    """Which of a metric's values stands for it."""

    name: str = ""
    value: str = ""
    """min, max or latest"""


class Objective(Model):
    """What a trial is judged by."""

    type: str = ""
    """minimize or maximize"""
    goal: float | None = None
    """The value at which the experiment is done."""
    objective_metric_name: str = ""
    """The metric that trials are judged by."""
    additional_metric_names: list[str] | None = None
    """Metrics that are collected besides."""
    metric_strategies: list[MetricStrategy] | None = None
    """Which value of each metric counts; by default min when minimizing, max when maximizing."""

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The objective's name, then the additional ones."""
        return (self.objective_metric_name, *(self.additional_metric_names or ()))

    @property
    def strategies(self) -> dict[str, str]:
        """A strategy for every metric: the given ones, else min when minimizing and max when maximizing."""
        default = "min" if self.type == "minimize" else "max"
        given = {s.name: s.value for s in self.metric_strategies or ()}
        return {name: given.get(name, default) for name in self.metric_names}


class EarlyStoppingRule(Model):
    """A rule; training is stopped when every rule is met."""

    name: str = ""
    value: str = ""
    comparison: str = ""
    """equal, less or greater"""
    start_step: int = 0
    """The report of the metric, counted from 1, from which on the rule is looked at."""


class ParameterAssignment(Model):
    """A hyperparameter and its value in this trial."""

    name: str = ""
    value: str = ""


class FileSystemPath(Model):
    """Where a training writes its metrics."""

    path: str | None = None
    kind: str | None = None
    """File or Directory"""
    format: str | None = None
    """TEXT or JSON"""


class HTTPGet(Model):
    """Where a training serves its metrics."""

    path: str | None = None
    port: int | str | None = None


class MetricsFilter(Model):
    """RE2 patterns with two groups, name and value."""

    metrics_format: list[str] | None = None
    """RE2 patterns whose first group is a metric's name and whose second is its value."""


class MetricsSource(Model):
    """What a collector reads."""

    file_system_path: FileSystemPath | None = None
    """File and TensorFlowEvent: where the training writes."""
    http_get: HTTPGet | None = None
    """PrometheusMetric: where the training serves."""
    filter: MetricsFilter | None = None
    """How metrics look in text."""


class Collector(Model):
    """Which collector; a Custom one brings its own container."""

    kind: str | None = None
    """StdOut, File, TensorFlowEvent, PrometheusMetric, Custom or Push"""
    custom_collector: dict[str, Any] | None = None
    """Custom: the container that collects."""


class MetricsCollectorSpec(Model):
    """How a trial's metrics are collected. The properties give Katib's defaults where nothing is said."""

    collector: Collector | None = None
    """Which collector; StdOut by default."""
    source: MetricsSource | None = None
    """What it reads."""

    @property
    def kind(self) -> str:
        """The collector's kind, StdOut by default."""
        return (self.collector.kind if self.collector else None) or "StdOut"

    @property
    def path(self) -> str:
        """File, directory or URL path; "" where the kind has none."""
        source = self.source or MetricsSource()
        if self.kind == "PrometheusMetric":
            return (source.http_get.path if source.http_get else None) or "/metrics"
        given = source.file_system_path.path if source.file_system_path else None
        return given or _DEFAULT_PATHS.get(self.kind, "")

    @property
    def format(self) -> str:
        """TEXT or JSON."""
        given = self.source.file_system_path.format if self.source and self.source.file_system_path else None
        return given or "TEXT"

    @property
    def port(self) -> int | str:
        """Port to scrape, or its name among the container's ports."""
        given = self.source.http_get.port if self.source and self.source.http_get else None
        return given or 8080

    @property
    def filters(self) -> tuple[str, ...]:
        """The user's patterns."""
        given = self.source.filter.metrics_format if self.source and self.source.filter else None
        return tuple(given or ())


_DEFAULT_PATHS: Final = {
    "StdOut": names.METRICS_FILE,
    "File": names.METRICS_FILE,
    "TensorFlowEvent": names.TFEVENT_DIRECTORY,
}


class TrialSpec(Model):
    """What a Trial asks for."""

    objective: Objective = Field(default_factory=Objective)
    parameter_assignments: list[ParameterAssignment] | None = None
    """The hyperparameters of this run."""
    early_stopping_rules: list[EarlyStoppingRule] | None = None
    """The training is stopped once every rule is met."""
    run_spec: dict[str, Any] | None = None
    """The Kubernetes object that the trial runs."""
    retain_run: bool = False
    """Keep that object when the trial has ended."""
    metrics_collector: MetricsCollectorSpec = Field(default_factory=MetricsCollectorSpec)
    """How its metrics are collected."""
    primary_pod_labels: dict[str, str] | None = None
    """Labels of the pod whose metrics count; without them every pod's do."""
    primary_container_name: str = ""
    """The container that trains."""
    success_condition: str = ""
    """GJSON path over the object; met when it gives an object or a non-empty list."""
    failure_condition: str = ""
    """The same, looked at first."""
    labels: dict[str, str] | None = None


class Trial(Model):
    """One run of a training job with one set of hyperparameters."""

    api_version: str = names.API_VERSION
    kind: str = "Trial"
    metadata: Metadata = Field(default_factory=Metadata)
    spec: TrialSpec = Field(default_factory=TrialSpec)
    status: dict[str, Any] | None = None


class FeasibleSpace(Model):
    """The values that a parameter may take; numbers are written as strings."""

    min: str | None = None
    max: str | None = None
    list: Sequence[str] | None = None
    """Values of a discrete or categorical parameter."""
    step: str | None = None
    distribution: str | None = None
    """uniform, logUniform, normal or logNormal"""


class Parameter(Model):
    """A hyperparameter."""

    name: str = ""
    parameter_type: str = ""
    """double, int, discrete or categorical"""
    feasible_space: FeasibleSpace | None = None


class AlgorithmSetting(Model):
    """One setting of an algorithm."""

    name: str = ""
    value: str = ""


class Algorithm(Model):
    """A suggestion or early-stopping algorithm."""

    algorithm_name: str = ""
    algorithm_settings: list[AlgorithmSetting] | None = None


class ConfigMapSource(Model):
    """Where a trial template stands in a ConfigMap."""

    config_map_name: str = ""
    config_map_namespace: str = ""
    template_path: str = ""
    """Key of the ConfigMap's data."""


class TrialParameter(Model):
    """A name used in the template as `${trialParameters.NAME}`, and what stands for it."""

    name: str = ""
    description: str | None = None
    reference: str = ""
    """Name of a parameter, or `${trialSpec.…}` for the trial's own metadata."""


class TrialTemplate(Model):
    """What every trial of an experiment runs."""

    retain: bool = False
    """Keep a trial's object when the trial has ended."""
    trial_spec: dict[str, Any] | None = None
    """The Kubernetes object, with ${trialParameters.NAME} where parameters go."""
    config_map: ConfigMapSource | None = None
    """Where the template stands instead."""
    trial_parameters: list[TrialParameter] | None = None
    """What ${trialParameters.NAME} stands for."""
    primary_pod_labels: dict[str, str] | None = None
    """Labels of the pod whose metrics count; without them every pod's do."""
    primary_container_name: str = ""
    """The container that trains."""
    success_condition: str = ""
    """GJSON path over the object; met when it gives an object or a non-empty list."""
    failure_condition: str = ""
    """The same, looked at first."""


class GraphConfig(Model):
    """The shape of the networks that a neural architecture search looks at."""

    num_layers: int | None = None
    input_sizes: list[int] | None = None
    output_sizes: list[int] | None = None


class Operation(Model):
    """An operation that such a network may consist of, with its parameters."""

    operation_type: str = ""
    parameters: list[Parameter] | None = None


class NasConfig(Model):
    """A neural architecture search."""

    graph_config: GraphConfig | None = None
    operations: list[Operation] | None = None


class ExperimentSpec(Model):
    """What an Experiment asks for."""

    parameters: list[Parameter] | None = None
    """The search space."""
    objective: Objective | None = None
    """What trials are judged by."""
    algorithm: Algorithm | None = None
    """What proposes trials."""
    early_stopping: Algorithm | None = None
    """What stops hopeless ones."""
    trial_template: TrialTemplate | None = None
    """What every trial runs."""
    parallel_trial_count: int | None = None
    """How many trials run at once; 3 by default."""
    max_trial_count: int | None = None
    """How many trials are made at most; without it, until the goal is reached."""
    max_failed_trial_count: int | None = None
    """How many trials may fail before the experiment does."""
    metrics_collector_spec: MetricsCollectorSpec | None = None
    """How metrics are collected."""
    nas_config: NasConfig | None = None
    """A neural architecture search, instead of parameters."""
    resume_policy: str | None = None
    """Never, LongRunning or FromVolume"""


class Experiment(Model):
    """A search: many trials, an algorithm that proposes them, an objective that judges them."""

    api_version: str = names.API_VERSION
    kind: str = "Experiment"
    metadata: Metadata = Field(default_factory=Metadata)
    spec: ExperimentSpec = Field(default_factory=ExperimentSpec)
    status: dict[str, Any] | None = None
