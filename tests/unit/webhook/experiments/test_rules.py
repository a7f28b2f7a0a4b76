"""Each rule of an Experiment fails for itself alone; what runs under Katib passes."""

import copy
import json
import sys
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.support.experiments import BASE, CASES, changed, trial
from webhook.experiments import defaults, rules

RULES = yaml.safe_load((CASES / "rules.yaml").read_text())
VALID = yaml.safe_load((CASES / "valid.yaml").read_text())
JSON = dict[str, Any]


@pytest.mark.parametrize("case", RULES, ids=[case["name"] for case in RULES])
def test_a_rule_is_broken_alone(case: JSON) -> None:
    found = rules.faults_of(changed(case["set"])).causes
    assert [[cause.field, cause.reason.removeprefix("FieldValue")] for cause in found] == case["faults"], (
        found
    )
    assert case.get("says", "") in "\n".join(cause.message for cause in found)


@pytest.mark.parametrize("case", VALID, ids=[case["name"] for case in VALID])
def test_nothing_is_wrong_with(case: JSON) -> None:
    found = rules.faults_of(changed(case["set"]))
    assert found.causes == []
    assert case.get("warns", "") in "\n".join(found.warnings)
    if "warns" not in case and "File" not in json.dumps(case) and "TensorFlowEvent" not in json.dumps(case):
        assert found.warnings == []


@pytest.mark.parametrize("case", VALID, ids=[case["name"] for case in VALID])
def test_defaulting_twice_is_defaulting_once_and_what_was_valid_stays_so(case: JSON) -> None:
    raw = changed(case["set"])
    before = copy.deepcopy(raw)
    once = defaults.experiment(raw)
    assert raw == before, "the object that was given is changed"
    assert defaults.experiment(once) == once
    assert rules.faults_of(once).causes == []


def test_all_faults_are_told_at_once() -> None:
    broken = changed(
        {
            "/spec/objective/type": "x",
            "/spec/algorithm": None,
            "/spec/maxTrialCount": -1,
            "/metadata/name": "A",
        }
    )
    fields = {cause.field for cause in rules.faults_of(broken).causes}
    assert {"spec.objective.type", "spec.algorithm", "spec.maxTrialCount", "metadata.name"} <= fields


DEFAULTS = [
    ("counts and policy", {}, ["parallelTrialCount"], 3),
    ("counts and policy", {}, ["resumePolicy"], "Never"),
    ("a collector", {}, ["metricsCollectorSpec"], {"collector": {"kind": "StdOut"}}),
    (
        "a File collector's source",
        {"/spec/metricsCollectorSpec": {"collector": {"kind": "File"}}},
        ["metricsCollectorSpec", "source", "fileSystemPath"],
        {"path": "/var/log/katib/metrics.log", "kind": "File", "format": "TEXT"},
    ),
    (
        "an event collector's source",
        {"/spec/metricsCollectorSpec": {"collector": {"kind": "TensorFlowEvent"}}},
        ["metricsCollectorSpec", "source", "fileSystemPath"],
        {"path": "/var/log/katib/tfevent/", "kind": "Directory"},
    ),
    (
        "a Prometheus collector's source, given in part",
        {
            "/spec/metricsCollectorSpec": {
                "collector": {"kind": "PrometheusMetric"},
                "source": {"httpGet": {"port": 9}},
            }
        },
        ["metricsCollectorSpec", "source", "httpGet"],
        {"port": 9, "path": "/metrics"},
    ),
    (
        "a collector object without kind is left so",
        {"/spec/metricsCollectorSpec": {"collector": {}}},
        ["metricsCollectorSpec"],
        {"collector": {}},
    ),
    (
        "strategies, min when minimizing",
        {},
        ["objective", "metricStrategies"],
        [{"name": "loss", "value": "min"}, {"name": "accuracy", "value": "min"}],
    ),
    (
        "a strategy that is given stays",
        {
            "/spec/objective/type": "maximize",
            "/spec/objective/metricStrategies": [{"name": "accuracy", "value": "latest"}],
        },
        ["objective", "metricStrategies"],
        [{"name": "accuracy", "value": "latest"}, {"name": "loss", "value": "max"}],
    ),
    ("a distribution", {}, ["parameters", 0, "feasibleSpace", "distribution"], "uniform"),
    (
        "a Job's condition",
        {},
        ["trialTemplate", "successCondition"],
        'status.conditions.#(type=="Complete")#|#(status=="True")#',
    ),
    (
        "a PyTorchJob's labels",
        {"/spec/trialTemplate/trialSpec": {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob"}},
        ["trialTemplate", "primaryPodLabels"],
        {"training.kubeflow.org/job-role": "master"},
    ),
    (
        "the launcher of an MPIJob of v2beta1",
        {"/spec/trialTemplate/trialSpec": {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob"}},
        ["trialTemplate", "primaryPodLabels"],
        {"training.kubeflow.org/job-role": "launcher"},
    ),
    (
        "a TrainJob's first node",
        {
            "/spec/trialTemplate/trialSpec": {
                "apiVersion": "trainer.kubeflow.org/v1alpha1",
                "kind": "TrainJob",
            }
        },
        ["trialTemplate", "primaryPodLabels"],
        {"jobset.sigs.k8s.io/replicatedjob-name": "node", "batch.kubernetes.io/job-completion-index": "0"},
    ),
    (
        "no batch defaults for a Volcano Job",
        {"/spec/trialTemplate/trialSpec": {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job"}},
        ["trialTemplate", "primaryContainerName"],
        "training",
    ),
]


@pytest.mark.parametrize(
    ("changes", "path", "expected"), [d[1:] for d in DEFAULTS], ids=[d[0] for d in DEFAULTS]
)
def test_a_default_is_filled_in(changes: JSON, path: list[str | int], expected: Any) -> None:
    found: Any = defaults.experiment(changed(changes))["spec"]
    for part in path:
        found = found[part]
    assert found == expected


def test_a_volcano_job_gets_no_conditions() -> None:
    volcano = {"/spec/trialTemplate/trialSpec": {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job"}}
    assert "successCondition" not in defaults.experiment(changed(volcano))["spec"]["trialTemplate"]


SUCCEEDED = {"type": "Succeeded", "status": "True", "reason": "ExperimentMaxTrialsReached"}
UPDATES = [
    ("the three counts may change", {}, {"/spec/maxTrialCount": 20, "/spec/parallelTrialCount": 2}, []),
    ("nothing else may", {}, {"/spec/objective/goal": 1}, ["spec.objective"]),
    (
        "maxTrialCount exceeds the trials made",
        {"trials": 12},
        {"/spec/maxTrialCount": 12},
        ["spec.maxTrialCount"],
    ),
    (
        "a completed one goes on with LongRunning",
        {"conditions": [SUCCEEDED], "trials": 12},
        {"/spec/maxTrialCount": 20},
        [],
    ),
    (
        "not when it failed",
        {"conditions": [{"type": "Failed", "status": "True"}]},
        {"/spec/maxTrialCount": 20},
        ["spec"],
    ),
    (
        "not when the goal was reached",
        {"conditions": [{**SUCCEEDED, "reason": "ExperimentGoalReached"}]},
        {"/spec/maxTrialCount": 20},
        ["spec"],
    ),
]


@pytest.mark.parametrize(
    ("status", "changes", "fields"), [u[1:] for u in UPDATES], ids=[u[0] for u in UPDATES]
)
def test_an_update(status: JSON, changes: JSON, fields: list[str]) -> None:
    old = changed({"/spec/resumePolicy": "LongRunning"}) | {"status": status}
    found = rules.faults_of(changed(changes, old), old)
    assert [cause.field for cause in found.causes] == fields, found.causes


def test_a_completed_experiment_that_never_resumes_is_told_so() -> None:
    old = BASE | {"status": {"conditions": [SUCCEEDED]}}
    found = rules.faults_of(changed({"/spec/maxTrialCount": 20}, old), old)
    assert [cause.field for cause in found.causes] == ["spec.resumePolicy"]


def test_more_trials_at_once_than_are_left_is_warned_of() -> None:
    old = BASE | {"status": {"trials": 10}}
    assert (
        "only 2 are left"
        in rules.faults_of(
            changed({"/spec/parallelTrialCount": 3, "/spec/maxTrialCount": 12}, old), old
        ).warnings[-1]
    )


TRIALS = [
    ("a Trial made by hand gets its defaults", {}, []),
    (
        "rules",
        {
            "/spec/earlyStoppingRules": [
                {"name": "loss", "value": "0.3", "comparison": "less", "startStep": 4}
            ]
        },
        [],
    ),
    (
        "a run object's name is there",
        {"/spec/runSpec/metadata": {"name": "random-abcd1234", "namespace": "hpo"}},
        [],
    ),
    (
        "a rule on a metric nobody collects",
        {"/spec/earlyStoppingRules": [{"name": "f1", "value": "1", "comparison": "less"}]},
        ["spec.earlyStoppingRules[0].name"],
    ),
    (
        "a rule's comparison",
        {"/spec/earlyStoppingRules": [{"name": "loss", "value": "1", "comparison": "below"}]},
        ["spec.earlyStoppingRules[0].comparison"],
    ),
    (
        "a rule's value",
        {"/spec/earlyStoppingRules": [{"name": "loss", "value": "x", "comparison": "less"}]},
        ["spec.earlyStoppingRules[0].value"],
    ),
    (
        "a rule's startStep",
        {"/spec/earlyStoppingRules": [{"name": "loss", "value": "1", "comparison": "less", "startStep": -1}]},
        ["spec.earlyStoppingRules[0].startStep"],
    ),
    (
        "rules with Push",
        {
            "/spec/earlyStoppingRules": [{"name": "loss", "value": "1", "comparison": "less"}],
            "/spec/metricsCollector": {"collector": {"kind": "Push"}},
        },
        ["spec.earlyStoppingRules"],
    ),
    (
        "a collector",
        {"/spec/metricsCollector": {"collector": {"kind": "stdout"}}},
        ["spec.metricsCollector.collector.kind"],
    ),
    ("a condition", {"/spec/successCondition": "a.#("}, ["spec.successCondition"]),
    (
        "a kind without default conditions",
        {"/spec/runSpec/kind": "Train", "/spec/runSpec/apiVersion": "a/v1"},
        ["spec.successCondition", "spec.failureCondition"],
    ),
    (
        "no run object",
        {"/spec/runSpec": None, "/spec/successCondition": "a", "/spec/failureCondition": "b"},
        ["spec.runSpec"],
    ),
    (
        "a run object without kind",
        {"/spec/runSpec/kind": None, "/spec/successCondition": "a", "/spec/failureCondition": "b"},
        ["spec.runSpec.kind"],
    ),
    (
        "a primary container that the Job lacks",
        {"/spec/primaryContainerName": "trainer"},
        ["spec.primaryContainerName"],
    ),
    ("no primary container", {"/spec/primaryContainerName": None}, ["spec.primaryContainerName"]),
    (
        "two values of one parameter",
        {"/spec/parameterAssignments": [{"name": "a", "value": "1"}, {"name": "a", "value": "2"}]},
        ["spec.parameterAssignments[1].name"],
    ),
    (
        "a Job that batch/v1 would refuse",
        {"/spec/runSpec/spec/parallelism": "two"},
        ["spec.runSpec.spec.parallelism"],
    ),
    ("a name that is no label", {"/metadata/name": "a" * 64}, ["metadata.name"]),
    ("retries", {"/metadata/annotations": {"trialtap/max-retries": "3"}}, []),
    (
        "retries that are no number",
        {"/metadata/annotations": {"trialtap/max-retries": "some"}},
        ["metadata.annotations[trialtap/max-retries]"],
    ),
    (
        "no objective",
        {"/spec/objective": None},
        ["spec.objective.type", "spec.objective.objectiveMetricName"],
    ),
]


@pytest.mark.parametrize(("changes", "fields"), [t[1:] for t in TRIALS], ids=[t[0] for t in TRIALS])
def test_a_trial(changes: JSON, fields: list[str]) -> None:
    found = rules.faults_of(trial(changes))
    assert [cause.field for cause in found.causes] == fields, found.causes


SURROUNDINGS = [
    (
        "an algorithm that katib-config lacks",
        {"katib_config": {"runtime": {"suggestions": [{"algorithmName": "tpe", "image": "i"}]}}},
        ["spec.algorithm.algorithmName"],
    ),
    (
        "an algorithm whose entry has no image",
        {"katib_config": {"runtime": {"suggestions": [{"algorithmName": "random"}]}}},
        ["spec.algorithm.algorithmName"],
    ),
    (
        "an algorithm that it has",
        {"katib_config": {"runtime": {"suggestions": [{"algorithmName": "random", "image": "i"}]}}},
        [],
    ),
    (
        "a collector kind, when images come from there",
        {
            "katib_config": {"runtime": {"suggestions": [{"algorithmName": "random", "image": "i"}]}},
            "image_from_katib_config": True,
        },
        ["spec.metricsCollectorSpec.collector.kind"],
    ),
    ("a volume that is there already", {"existing_volume": "random-random-hpo"}, ["spec.resumePolicy"]),
]


@pytest.mark.parametrize(
    ("around", "fields"), [s[1:] for s in SURROUNDINGS], ids=[s[0] for s in SURROUNDINGS]
)
def test_what_stands_around_is_judged(around: JSON, fields: list[str]) -> None:
    found = rules.faults_of(BASE, around=rules.Surroundings(**around))
    assert [cause.field for cause in found.causes] == fields


@pytest.mark.parametrize("labels", [{"istio-injection": "enabled"}, {"istio.io/rev": "1-26"}])
def test_istio_that_is_not_turned_off_is_warned_of(labels: dict[str, str]) -> None:
    around = rules.Surroundings(namespace_labels=labels)
    assert "sidecar.istio.io/inject" in rules.faults_of(BASE, around=around).warnings[0]
    off = changed(
        {
            "/spec/trialTemplate/trialSpec/spec/template/metadata": {
                "labels": {"sidecar.istio.io/inject": "false"}
            }
        }
    )
    assert rules.faults_of(off, around=around).warnings == []


def leaves(node: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(leaf for key, child in children for leaf in leaves(child, (*path, key)))]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.data())
def test_the_validator_never_raises(data: st.DataObject) -> None:
    raw = changed(data.draw(st.sampled_from(VALID))["set"]) if data.draw(st.booleans()) else trial()
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from([p for p in leaves(raw) if p and p[0] == "spec"]))
        node: Any = raw
        for part in path[:-1]:
            node = node[part]
        node[path[-1]] = data.draw(ANYTHING)
    found = rules.faults_of(raw)
    assert all(cause.field and cause.message for cause in found.causes)


def test_deep_nesting_is_no_error_of_ours() -> None:
    deep: JSON = {}
    for _ in range(sys.getrecursionlimit() // 4):
        deep = {"a": deep}
    rules.faults_of(changed({"/spec/trialTemplate/trialSpec/spec/extra": deep}))
