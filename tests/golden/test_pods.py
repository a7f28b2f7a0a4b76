"""Every pod that was ever asked for, as it must come out: the whole of it, and what a person says of it.

`pods/CASE/case.yaml` is written by hand: a rule in a sentence, a recorded request, what is changed in it,
and what must then hold. `pods/CASE/pod.yaml` is the whole admitted pod, written by `--update-golden`.
"""

from pathlib import Path

import jsonpatch
import pytest
import yaml

from tests.support.admission import ABSENT, RECORDED, TESTS, Case, at, load_case, recorded

PODS = TESTS / "golden" / "pods"
CASES = {file.parent.name: load_case(file) for file in sorted(PODS.glob("*/case.yaml"))}


@pytest.fixture(params=list(CASES.values()), ids=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


def golden(case: Case) -> Path:
    return PODS / case.name / "pod.yaml"


def test_the_answer_is_what_the_rule_says(case: Case) -> None:
    verdict = case.answer()
    assert (verdict.refusal.reason if verdict.refusal else "") == case.refused, verdict
    said = verdict.refusal.message if verdict.refusal else "\n".join(verdict.warnings)
    for text in case.says:
        assert text in said
    assert not (case.silent and said), said
    assert (not verdict.patch) == bool(case.untouched or case.refused)
    pod = jsonpatch.apply_patch(case.before, list(verdict.patch))
    found = {pointer: at(pod, pointer) for pointer in case.then}
    assert found == case.then
    assert case.then or case.refused or case.untouched, "the case states nothing"


def test_the_whole_pod_is_the_golden_one(case: Case, update_golden: bool) -> None:
    verdict, file = case.answer(), golden(case)
    if verdict.refusal or not verdict.patch:
        assert not file.exists(), f"{file} is stale: nothing is changed in this pod; delete it"
        return
    pod = jsonpatch.apply_patch(case.before, list(verdict.patch))
    if update_golden:
        file.write_text(yaml.safe_dump(pod, sort_keys=False, width=110), encoding="utf-8")
    assert file.exists(), f"{file} is missing: pytest --update-golden writes it"
    assert yaml.safe_load(file.read_text(encoding="utf-8")) == pod


def test_the_answer_to_our_own_output_is_an_empty_patch(case: Case) -> None:
    verdict = case.answer()
    review = case.review
    review["request"]["object"] = jsonpatch.apply_patch(case.before, list(verdict.patch))
    again = case.answer(review)
    assert again.patch == ()
    if verdict.refusal is None:
        assert again.refusal is None
        assert again.decision == verdict.decision


def test_after_one_move_behind_a_late_native_sidecar_nothing_changes_any_more(case: Case) -> None:
    verdict = case.answer()
    pod = jsonpatch.apply_patch(case.before, list(verdict.patch))
    mine = (pod["spec"].get("initContainers") or [{}])[-1]
    if verdict.refusal or mine.get("restartPolicy") != "Always":
        return  # no native sidecar of ours: nothing to move
    mesh = {"name": "mesh-proxy", "image": "registry.example.com/proxy:1", "restartPolicy": "Always"}
    pod["spec"]["initContainers"].append(mesh)
    review = case.review
    review["request"]["object"] = pod
    moved = jsonpatch.apply_patch(pod, list(case.answer(review).patch))
    assert [c["name"] for c in moved["spec"]["initContainers"]][-2:] == ["mesh-proxy", mine["name"]]
    assert moved["spec"]["initContainers"][-1] == mine
    review["request"]["object"] = moved
    assert case.answer(review).patch == ()


def test_every_recorded_pod_is_a_case() -> None:
    pods = {
        file.stem
        for file in RECORDED.glob("*.json")
        if recorded(file.stem)["review"]["request"]["kind"]["kind"] == "Pod"
    }
    assert (
        pods - {case.base for case in CASES.values() if not (case.pod or case.container or case.trial)}
        == set()
    )


def test_every_folder_is_a_case() -> None:
    assert {folder.name for folder in PODS.iterdir() if folder.is_dir()} == set(CASES)


def test_pointers_find_what_they_name() -> None:
    assert at({"a": [{"b/c": 1}]}, "/a/-1/b~1c") == 1
    assert at({"a": 1}, "/b") == ABSENT
