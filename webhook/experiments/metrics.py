"""Rules that an Experiment and a Trial share: objective, collector and its source, early-stopping rules."""

import math
import posixpath
from collections import Counter
from collections.abc import Sequence
from typing import Final

import re2

from trialtap.argv import COMPARISONS
from trialtap.objects import EarlyStoppingRule, MetricsCollectorSpec, Objective
from webhook.experiments.faults import Faults

OBJECTIVE_TYPES: Final = ("minimize", "maximize")
STRATEGIES: Final = ("min", "max", "latest")
KINDS: Final = ("StdOut", "File", "TensorFlowEvent", "PrometheusMetric", "Custom", "Push", "None")
"""`None` is what older objects say for Push."""
PUSHED: Final = frozenset({"Push", "None"})
FORMATS: Final = ("TEXT", "JSON")


def check_objective(objective: Objective | None, faults: Faults) -> None:
    """Check `spec.objective`."""
    path = "spec.objective"
    if objective is None:
        faults.required(path, "say which metric to minimize or maximize")
        return
    if objective.type not in OBJECTIVE_TYPES:
        faults.unsupported(f"{path}.type", objective.type, OBJECTIVE_TYPES)
    if objective.goal is not None and not math.isfinite(objective.goal):
        faults.invalid(f"{path}.goal", objective.goal, "must be a finite number")
    if not objective.objective_metric_name:
        faults.required(f"{path}.objectiveMetricName", "name the metric that trials are judged by")
    seen = {objective.objective_metric_name} - {""}
    _check_name(objective.objective_metric_name, f"{path}.objectiveMetricName", faults)
    for index, name in enumerate(objective.additional_metric_names or ()):
        here = f"{path}.additionalMetricNames[{index}]"
        if not name:
            faults.required(here, "a metric's name is not empty")
        elif name in seen:
            said = "is the objective" if name == objective.objective_metric_name else "is named before"
            faults.duplicate(here, name, f"this metric {said}")
        seen.add(name)
        _check_name(name, here, faults)
    _check_strategies(objective, faults)


def _check_name(name: str, path: str, faults: Faults) -> None:
    if ";" in name:
        faults.invalid(
            path, name, 'must not contain ";", which separates names on the collector\'s command line'
        )
    elif len(name) > 255:
        faults.invalid(path, name, "must be at most 255 characters, as the database holds no longer ones")


def _check_strategies(objective: Objective, faults: Faults) -> None:
    collected = [name for name in objective.metric_names if name]
    counted = Counter(strategy.name for strategy in objective.metric_strategies or ())
    for index, strategy in enumerate(objective.metric_strategies or ()):
        here = f"spec.objective.metricStrategies[{index}]"
        if strategy.name not in collected:
            faults.unsupported(f"{here}.name", strategy.name, collected)
        elif counted[strategy.name] > 1:
            faults.duplicate(f"{here}.name", strategy.name, "a metric has one strategy")
        if strategy.value not in STRATEGIES:
            faults.unsupported(f"{here}.value", strategy.value, STRATEGIES)


def check_collector(spec: MetricsCollectorSpec | None, path: str, faults: Faults) -> None:
    """Check a collector and its source, after defaulting.

    Args:
        spec: the collector.
        path: `spec.metricsCollectorSpec` of an Experiment, `spec.metricsCollector` of a Trial.
        faults: what is wrong is added.
    """
    if spec is None:
        return
    kind = spec.collector.kind if spec.collector else None
    if kind is not None and kind not in KINDS:
        faults.unsupported(f"{path}.collector.kind", kind, KINDS[:-1])
        return
    check = {
        "File": _check_file,
        "TensorFlowEvent": _check_directory,
        "PrometheusMetric": _check_http,
        "Custom": _check_custom,
    }.get(spec.kind)
    if check:
        check(spec, path, faults)
    for index, pattern in enumerate(spec.filters):
        _check_pattern(pattern, f"{path}.source.filter.metricsFormat[{index}]", faults)


def _check_pattern(pattern: str, path: str, faults: Faults) -> None:
    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error)
        faults.invalid(path, pattern, f"must be an RE2 pattern: {reason}")
        return
    if compiled.groups < 2:
        faults.invalid(
            path,
            pattern,
            f"must have two capturing groups, the metric's name and its value, and has {compiled.groups}; "
            r"an example is ([\w-]+)\s*:\s*([+-]?\d+\.?\d*)",
        )


def _check_file(spec: MetricsCollectorSpec, path: str, faults: Faults) -> None:
    here = f"{path}.source.fileSystemPath"
    given = spec.source.file_system_path if spec.source else None
    if given is None or given.kind != "File":
        faults.unsupported(f"{here}.kind", given.kind if given else None, ["File"])
    _check_path(spec.path, f"{here}.path", faults)
    if posixpath.dirname(posixpath.normpath(spec.path)) == "/":
        faults.invalid(
            f"{here}.path", spec.path, "must be in a folder below /, which becomes a volume of the pod"
        )
    if given is None or given.format not in FORMATS:
        faults.unsupported(f"{here}.format", given.format if given else None, FORMATS)
    elif given.format == "JSON" and spec.filters:
        faults.forbidden(
            f"{path}.source.filter", "JSON lines are read by their keys: remove filter, or use TEXT"
        )


def _check_directory(spec: MetricsCollectorSpec, path: str, faults: Faults) -> None:
    here = f"{path}.source.fileSystemPath"
    given = spec.source.file_system_path if spec.source else None
    if given is None or given.kind != "Directory":
        faults.unsupported(f"{here}.kind", given.kind if given else None, ["Directory"])
    _check_path(spec.path, f"{here}.path", faults)
    if posixpath.normpath(spec.path) == "/":
        faults.invalid(
            f"{here}.path", spec.path, "must be a folder below /, which becomes a volume of the pod"
        )
    if given is not None and given.format:
        faults.forbidden(f"{here}.format", "event files have one format: remove it")


def _check_path(given: str, path: str, faults: Faults) -> None:
    if not posixpath.isabs(given):
        faults.invalid(path, given, "must be an absolute path")
    elif ".." in given.split("/"):
        faults.invalid(path, given, 'must not contain ".."')


def _check_http(spec: MetricsCollectorSpec, path: str, faults: Faults) -> None:
    here = f"{path}.source.httpGet"
    port = str(spec.port)
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        faults.invalid(f"{here}.port", spec.port, "must be a port number from 1 to 65535")
    if not spec.path.startswith("/"):
        faults.invalid(f"{here}.path", spec.path, "must start with /")


def _check_custom(spec: MetricsCollectorSpec, path: str, faults: Faults) -> None:
    container = spec.collector.custom_collector if spec.collector else None
    here = f"{path}.collector.customCollector"
    if not container:
        faults.required(here, "give the container that collects the metrics")
        return
    for field in ("name", "image"):
        if not isinstance(container.get(field), str) or not container[field]:
            faults.required(f"{here}.{field}", f"a container needs its {field}")
    given = spec.source.file_system_path if spec.source else None
    if given and given.path:
        _check_path(given.path, f"{path}.source.fileSystemPath.path", faults)


def check_rules(
    rules: Sequence[EarlyStoppingRule], objective: Objective | None, kind: str, faults: Faults
) -> None:
    """Check a Trial's early-stopping rules: their metrics must be collected by somebody who looks."""
    path = "spec.earlyStoppingRules"
    if rules and kind in PUSHED:
        faults.forbidden(
            path, "with collector kind Push nobody looks at the metrics in the pod, so no rule can stop it"
        )
    collected = [name for name in (objective.metric_names if objective else ()) if name]
    for index, rule in enumerate(rules):
        here = f"{path}[{index}]"
        if rule.name not in collected:
            faults.unsupported(f"{here}.name", rule.name, collected)
        if rule.comparison not in COMPARISONS:
            faults.unsupported(f"{here}.comparison", rule.comparison, COMPARISONS)
        try:
            finite = math.isfinite(float(rule.value))
        except ValueError:
            finite = False
        if not finite:
            faults.invalid(f"{here}.value", rule.value, "must be a finite number written as a string")
        if rule.start_step < 0:
            faults.invalid(f"{here}.startStep", rule.start_step, "must not be negative")
