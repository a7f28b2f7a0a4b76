"""Conditions: what counts as met, and what is refused by name."""

from typing import Any

import pytest

from controller.gjson import ConditionError, Met, evaluate, unsupported

JSON = dict[str, Any]


def workload(*conditions: JSON, **status: Any) -> JSON:
    return {"kind": "Job", "status": {"conditions": list(conditions), **status}}


COMPLETE = {"type": "Complete", "status": "True", "reason": "R", "message": "M"}
MET = [
    (
        "Katib's for a Job",
        'status.conditions.#(type=="Complete")#|#(status=="True")#',
        workload(COMPLETE),
        Met("R", "M"),
    ),
    (
        "Katib's for a Workflow",
        'status.[@this].#(phase=="Succeeded")#',
        workload(phase="Succeeded", message="ok"),
        Met("", "ok"),
    ),
    (
        "an object",
        'status.conditions.#(type=="Complete")',
        workload(COMPLETE | {"status": "False"}),
        Met("R", "M"),
    ),
    ("a list of strings", "status.done", workload(done=["x"]), Met()),
    ("a reason that is no string", "status.conditions", workload({"reason": 3}), Met()),
]
NOT_MET = [
    ("an empty list", 'status.conditions.#(type=="Failed")#|#(status=="True")#', workload(COMPLETE)),
    (
        "status False",
        'status.conditions.#(type=="Complete")#|#(status=="True")#',
        workload(COMPLETE | {"status": "False"}),
    ),
    ("nothing there", "status.nothing", workload()),
    ("no status yet", 'status.conditions.#(type=="Complete")#|#(status=="True")#', {"kind": "Job"}),
    ("no expression", "", workload(COMPLETE)),
]


@pytest.mark.parametrize(("expression", "of", "expected"), [m[1:] for m in MET], ids=[m[0] for m in MET])
def test_is_met(expression: str, of: JSON, expected: Met) -> None:
    assert evaluate(of, expression) == expected


@pytest.mark.parametrize(("expression", "of"), [n[1:] for n in NOT_MET], ids=[n[0] for n in NOT_MET])
def test_is_not_met(expression: str, of: JSON) -> None:
    assert evaluate(of, expression) is None


@pytest.mark.parametrize(
    "expression", ['status.conditions.#(type=="Complete").status', "status.conditions.#", "kind"]
)
def test_a_single_value_is_refused_in_words(expression: str) -> None:
    with pytest.raises(ConditionError, match="never counts as met"):
        evaluate(workload(COMPLETE), expression)


@pytest.mark.parametrize(
    ("expression", "part"),
    [
        ("status.@keys", "@keys"),
        ("status|@values", "@values"),
        ("status.@tostr", "@tostr"),
        ("@fromstr", "@fromstr"),
        ("{a,b}|@group", "@group"),
        ("@dig:a", "@dig"),
        ('status.!"x"', "!literal"),
    ],
)
def test_what_is_not_evaluated_is_refused_by_name(expression: str, part: str) -> None:
    with pytest.raises(ConditionError, match=part):
        evaluate(workload(), expression)


@pytest.mark.parametrize(
    "expression", ['a.#(b=="@keys")#', 'a.#(b!="x")#', "@this", "status.[@this]", "a.@reverse"]
)
def test_what_only_looks_like_it_passes(expression: str) -> None:
    assert unsupported(expression) == ""
