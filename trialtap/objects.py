"""Katib's Trial and Experiment as typed models; what they do not know is kept.

They are for reading: a model takes every object that runs under Katib, and says in its error which
field it cannot read. Rules about what is sensible stand in the webhook's validation, not here.
"""

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from trialtap import names


class Model(BaseModel):
    """Base: camelCase outside, snake_case inside, unknown fields kept, null read as absent."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="allow", frozen=True)


class Metadata(Model):
    """The parts of ObjectMeta that trialtap reads."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class MetricStrategy(Model):
    """Which of a metric's values stands for it."""

    name: str
    value: str
    """min, max or latest"""


class Objective(Model):
    """What a trial is judged by."""

    type: str = ""
    """minimize or maximize"""
    goal: float | None = None
    objective_metric_name: str = ""
    additional_metric_names: list[str] | None = None
    metric_strategies: list[MetricStrategy] | None = None

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

    name: str
    value: str
    comparison: str
    start_step: int = 0


class ParameterAssignment(Model):
    """A hyperparameter and its value in this trial."""

    name: str
    value: str


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


class MetricsSource(Model):
    """What a collector reads."""

    file_system_path: FileSystemPath | None = None
    http_get: HTTPGet | None = None
    filter: MetricsFilter | None = None


class Collector(Model):
    """Which collector; a Custom one brings its own container."""

    kind: str | None = None
    custom_collector: dict[str, Any] | None = None


class MetricsCollectorSpec(Model):
    """How a trial's metrics are collected. The properties give Katib's defaults where nothing is said."""

    collector: Collector | None = None
    source: MetricsSource | None = None

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
    early_stopping_rules: list[EarlyStoppingRule] | None = None
    run_spec: dict[str, Any] | None = None
    retain_run: bool = False
    metrics_collector: MetricsCollectorSpec = Field(default_factory=MetricsCollectorSpec)
    primary_pod_labels: dict[str, str] | None = None
    primary_container_name: str = ""
    success_condition: str = ""
    failure_condition: str = ""
    labels: dict[str, str] | None = None


class Trial(Model):
    """One run of a training job with one set of hyperparameters."""

    api_version: str = names.API_VERSION
    kind: str = "Trial"
    metadata: Metadata = Field(default_factory=Metadata)
    spec: TrialSpec = Field(default_factory=TrialSpec)
    status: dict[str, Any] | None = None
