"""Katib's defaults for an Experiment, and for what a Trial made by hand leaves out. Pure: raw objects in and out."""

from collections.abc import Mapping
from typing import Any, Final

from trialtap import names
from trialtap.kinds import defaults_of
from webhook.review import JSON

DEFAULT_COUNT: Final = 3
"""parallelTrialCount where none is given."""


_SOURCES: Final[Mapping[str, JSON]] = {
    "File": {"fileSystemPath": {"path": names.METRICS_FILE, "kind": "File", "format": "TEXT"}},
    "TensorFlowEvent": {"fileSystemPath": {"path": names.TFEVENT_DIRECTORY, "kind": "Directory"}},
    "PrometheusMetric": {"httpGet": {"path": "/metrics", "port": 8080}},
}


def experiment(raw: JSON) -> JSON:
    """Give a copy with Katib's defaults filled in; what has the wrong type is left for validation to name.

    Filling in twice gives the same as once.
    """
    spec = raw.get("spec")
    if not isinstance(spec, dict):
        return raw
    filled = dict(spec)
    _fill(filled, "parallelTrialCount", DEFAULT_COUNT)
    _fill(filled, "resumePolicy", "Never")
    _change(filled, "objective", _strategies)
    _change(filled, "parameters", _distributions)
    if filled.get("metricsCollectorSpec") is None:
        filled["metricsCollectorSpec"] = {"collector": {"kind": "StdOut"}}
    _change(filled, "metricsCollectorSpec", _collector)
    _change(filled, "trialTemplate", _template)
    return {**raw, "spec": filled}


def trial(raw: JSON) -> JSON:
    """Give a copy of a Trial with what ours assumes where it says nothing: strategies, collector, conditions."""
    spec = raw.get("spec")
    if not isinstance(spec, dict):
        return raw
    filled = dict(spec)
    _change(filled, "objective", _strategies)
    if filled.get("metricsCollector") is None:
        filled["metricsCollector"] = {"collector": {"kind": "StdOut"}}
    _change(filled, "metricsCollector", _collector)
    _conditions(filled, filled.get("runSpec"))
    return {**raw, "spec": filled}


def _fill(target: JSON, key: str, value: Any) -> None:
    """Set a field that is absent, null, empty or zero, which Go's types cannot tell apart."""
    if target.get(key) in (None, "", 0) and target.get(key) is not False:
        target[key] = value


def _change(target: JSON, key: str, change: Any) -> None:
    value = target.get(key)
    if isinstance(value, dict | list):
        target[key] = change(value)


def _strategies(objective: Any) -> Any:
    if not isinstance(objective, dict) or objective.get("type") not in ("minimize", "maximize"):
        return objective
    extra = objective.get("additionalMetricNames")
    given = objective.get("metricStrategies") or []
    wanted = [objective.get("objectiveMetricName"), *(extra if isinstance(extra, list) else [])]
    if not isinstance(given, list) or not all(isinstance(item, dict) for item in given):
        return objective
    known = {item.get("name") for item in given if isinstance(item.get("name"), str)}
    value = "min" if objective["type"] == "minimize" else "max"
    new = [
        {"name": name, "value": value}
        for name in dict.fromkeys(w for w in wanted if isinstance(w, str) and w)
        if name not in known
    ]
    return {**objective, "metricStrategies": [*given, *new]} if new else objective


def _distributions(parameters: Any) -> Any:
    if not isinstance(parameters, list):
        return parameters
    return [_with_distribution(item) for item in parameters]


def _with_distribution(parameter: Any) -> Any:
    if not isinstance(parameter, dict) or not isinstance(parameter.get("feasibleSpace"), dict):
        return parameter
    space = dict(parameter["feasibleSpace"])
    _fill(space, "distribution", "uniform")
    return {**parameter, "feasibleSpace": space}


def _collector(spec: Any) -> Any:
    """Fill in the source of a kind that has one; a collector without a kind is left as it is."""
    if not isinstance(spec, dict):
        return spec
    if spec.get("collector") is None:
        spec = {**spec, "collector": {"kind": "StdOut"}}
    collector = spec["collector"]
    kind = collector.get("kind") if isinstance(collector, dict) else None
    source = spec.get("source")
    default = _SOURCES.get(kind) if isinstance(kind, str) else None
    if default is None or not isinstance(source, dict | None):
        return spec
    return {**spec, "source": _merged(default, source or {})}


def _merged(default: JSON, given: JSON) -> JSON:
    """Give what is given, with what is missing in it from the default, at every depth."""
    result = dict(given)
    for key, value in default.items():
        there = result.get(key)
        if isinstance(value, dict) and isinstance(there, dict | None):
            result[key] = _merged(value, there or {})
        else:
            _fill(result, key, value)
    return result


def _template(template: Any) -> Any:
    if not isinstance(template, dict):
        return template
    filled = dict(template)
    _conditions(filled, template.get("trialSpec"))
    found = defaults_of(template.get("trialSpec"))
    if found and found.primary_pod_labels and not filled.get("primaryPodLabels"):
        filled["primaryPodLabels"] = dict(found.primary_pod_labels)
    return filled


def _conditions(target: JSON, workload: object) -> None:
    found = defaults_of(workload)
    if found:
        _fill(target, "successCondition", found.success)
        _fill(target, "failureCondition", found.failure)
