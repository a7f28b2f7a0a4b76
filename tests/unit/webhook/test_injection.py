"""An injection's steps one by one, and pods and trials that nobody thought of."""

import copy
import json
from typing import Any

import jsonpatch
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.support.admission import RECORDED, TESTS, load_case, merged, recorded
from trialtap.argv import parse
from trialtap.objects import Trial
from webhook import build, injection
from webhook.injection import Entrypoint, Injection, Surroundings
from webhook.review import Refusal
from webhook.settings import EntrypointLookup, Settings

CASES = [load_case(file) for file in sorted((TESTS / "golden" / "pods").glob("*/case.yaml"))]


def of(name: str) -> tuple[dict[str, Any], Trial]:
    """Pod and trial of a recorded request."""
    document = recorded(name)
    trial = next(item for item in document["objects"] if item["kind"] == "Trial")
    return document["review"]["request"]["object"], Trial.model_validate(trial)


def planned(name: str) -> tuple[dict[str, Any], Injection]:
    pod, trial = of(name)
    return pod, injection.plan(pod, trial, Surroundings(namespace="hpo"))


@pytest.mark.parametrize("step", build.STEPS, ids=lambda step: step.__name__)
@pytest.mark.parametrize(
    "name", ["job-stdout", "job-file-text", "job-custom", "job-push", "pytorchjob-worker"]
)
def test_a_step_done_twice_is_done_once(step: Any, name: str) -> None:
    pod, plan = planned(name)
    once = step(pod, plan)
    assert step(once, plan) is once


@pytest.mark.parametrize("step", build.STEPS, ids=lambda step: step.__name__)
def test_a_step_changes_nothing_that_it_was_given(step: Any) -> None:
    pod, plan = planned("job-stdout")
    before = copy.deepcopy(pod)
    step(pod, plan)
    assert pod == before


def test_an_injection_shares_what_stays_with_the_pod_it_was_given() -> None:
    pod, plan = planned("job-stdout")
    after = build.inject(pod, plan)
    assert after["metadata"]["managedFields"] is pod["metadata"]["managedFields"]
    assert after["spec"]["tolerations"] is pod["spec"]["tolerations"]
    assert after["spec"]["volumes"][0] is pod["spec"]["volumes"][0]


def test_a_verdict_s_patch_makes_the_injected_pod() -> None:
    pod, trial = of("job-stdout")
    verdict = injection.admit(pod, trial, Surroundings(namespace="hpo"))
    assert jsonpatch.apply_patch(pod, list(verdict.patch)) == build.inject(*planned("job-stdout"))


def test_the_same_pod_of_another_trial_is_not_taken_for_injected() -> None:
    _, trial = of("job-stdout")
    injected = build.inject(*planned("job-stdout"))
    other = trial.model_copy(update={"metadata": trial.metadata.model_copy(update={"name": "other"})})
    with pytest.raises(Refusal, match=r'not the one of Trial "other"'):
        injection.plan(injected, other, Surroundings(namespace="hpo"))


LOOK_UPS = [
    ("job-no-command", {}, "registry.example.com/train:1"),
    ("job-stdout", {}, None),
    ("job-stdout", {"spec": {"metricsCollector": {"collector": {"kind": "Push"}}}}, None),
    ("job-no-command", {"spec": {"metricsCollector": {"collector": {"kind": "File"}}}}, None),
    ("job-no-command", {"spec": {"primaryPodLabels": {"role": "chief"}}}, None),
    ("job-no-command", {"spec": {"primaryContainerName": "absent"}}, None),
]


@pytest.mark.parametrize(("name", "changes", "image"), LOOK_UPS)
def test_only_an_image_that_must_be_known_is_looked_up(
    name: str, changes: dict[str, Any], image: str | None
) -> None:
    document = recorded(name)
    trial = next(item for item in document["objects"] if item["kind"] == "Trial")
    pod = document["review"]["request"]["object"]
    assert injection.image_to_look_up(pod, Trial.model_validate(merged(trial, changes))) == image


def test_an_injected_pod_needs_no_second_look_up() -> None:
    pod, trial = of("job-no-command")
    surroundings = Surroundings(namespace="hpo", entrypoint=Entrypoint(("python3",), ("x",)))
    injected = build.inject(pod, injection.plan(pod, trial, surroundings))
    assert injection.image_to_look_up(injected, trial) is None


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("job-stdout", True),
        ("pytorchjob-master", True),
        ("pytorchjob-worker", False),
        ("custom-crd-helper", False),
    ],
)
def test_the_suggestion_is_needed_for_primary_pods(name: str, needed: bool) -> None:
    pod, trial = of(name)
    labels = {**(trial.metadata.labels or {}), "katib.kubeflow.org/experiment": "e"}
    trial = trial.model_copy(update={"metadata": trial.metadata.model_copy(update={"labels": labels})})
    assert injection.needs_suggestion(trial, pod) is needed
    bare = trial.model_copy(update={"metadata": trial.metadata.model_copy(update={"labels": None})})
    assert injection.needs_suggestion(bare, pod) is False


@pytest.mark.parametrize("case", [c for c in CASES if not c.refused], ids=lambda case: case.name)
def test_the_collector_can_read_what_it_is_told(case: Any) -> None:
    pod = jsonpatch.apply_patch(case.before, list(case.answer().patch))
    for container in pod["spec"].get("initContainers") or ():
        args = container.get("args") or []
        if "--kind" in args:
            assert parse([word.replace("$$", "$") for word in args]).namespace == "hpo"


JSON_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.text(alphabet="ab/$(;.", max_size=4)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(st.sampled_from(["name", "kind", "path", "x"]), inner, max_size=2),
    ),
    max_leaves=4,
)


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place of a document that a value can be put at."""
    children = (
        document.items()
        if isinstance(document, dict)
        else enumerate(document)
        if isinstance(document, list)
        else ()
    )
    return (
        [path, *(place for key, child in children for place in places(child, (*path, key)))]
        if path
        else [place for key, child in children for place in places(child, (key,))]
    )


WITH_ALL = {
    "restartPolicy": "Always",
    "env": [{"name": "A", "value": "b"}],
    "volumeMounts": [{"name": "v", "mountPath": "/x"}],
}
TRIALS = [
    merged(next(o for o in recorded(name)["objects"] if o["kind"] == "Trial"), changes)
    for name, changes in (
        ("job-file-text", {}),
        ("job-early-stopping", {}),
        ("job-custom", {}),
        ("job-custom", {"spec": {"metricsCollector": {"collector": {"customCollector": WITH_ALL}}}}),
        ("job-prometheus", {}),
    )
]
READ = ("metricsCollector", "objective", "earlyStoppingRules", "primaryContainerName", "primaryPodLabels")
"""What is read of a Trial's spec."""


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_trial_of_any_shape_is_answered_or_refused(data: st.DataObject) -> None:
    """Whoever writes a Trial writes whatever he likes: fields are replaced by anything."""
    raw = copy.deepcopy(data.draw(st.sampled_from(TRIALS)))
    place = data.draw(st.sampled_from([p for p in places(raw["spec"]) if p[0] in READ]))
    target = raw["spec"]
    for key in place[:-1]:
        target = target[key]
    target[place[-1]] = data.draw(JSON_VALUES)
    try:
        trial = Trial.model_validate(raw)
    except ValidationError:
        return  # the webhook says TrialUnreadable
    pod, _ = of("job-file-text")
    verdict = injection.admit(pod, trial, Surroundings(namespace="hpo"))
    json.dumps(verdict.patch)
    assert verdict.decision


@settings(max_examples=100)
@given(JSON_VALUES, JSON_VALUES)
def test_what_others_wrote_beside_the_trial_is_read_leniently(config: Any, suggestion: Any) -> None:
    pod, trial = of("job-early-stopping")
    surroundings = Surroundings(
        namespace="hpo",
        settings=Settings(entrypoint_lookup=EntrypointLookup()),
        katib_config={"runtime": config},
        suggestion={"metadata": {"name": "s"}, "spec": {"algorithm": suggestion}},
    )
    assert injection.admit(pod, trial, surroundings).refusal is None


def test_every_recorded_request_is_used_here_or_among_the_golden_pods() -> None:
    assert {case.base for case in CASES} <= {file.stem for file in RECORDED.glob("*.json")}
