"""GJSON conditions: brackets and quotes, and paths that can only give a scalar."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.experiments import conditions


@pytest.mark.parametrize(
    "expression",
    [
        'status.conditions.#(type=="Complete")#|#(status=="True")#',
        'status.[@this].#(phase=="Succeeded")#',
        r"status.conditions.#(message%\"*\(done*\")#",
        'a.#(b=="(")#',
        "status",
    ],
)
def test_a_sound_condition_passes(expression: str) -> None:
    assert conditions.unbalanced(expression) == ""
    assert not conditions.is_scalar(expression)


@pytest.mark.parametrize("expression", ['a.#(b=="c"', "a)", "a[b}", 'a.#(b=="c)#', "a.{b"])
def test_an_unbalanced_one_is_told_what_is_open(expression: str) -> None:
    assert conditions.unbalanced(expression)


@pytest.mark.parametrize(
    "expression",
    [
        'status.conditions.#(type=="Complete").status',
        "status.conditions.#",
        'c.#(type=="a")|reason',
        "status.phase",
    ],
)
def test_a_path_to_one_value_is_scalar(expression: str) -> None:
    assert conditions.is_scalar(expression)


@pytest.mark.parametrize(
    "expression",
    ['c.#(type=="a")#.status', "status.conditions.#.status", "status.conditions", "status.status"],
)
def test_a_path_to_a_list_or_to_who_knows_what_is_not(expression: str) -> None:
    assert not conditions.is_scalar(expression)


@given(st.text(alphabet='ab.|#()[]{}"\\=@'))
def test_no_expression_makes_it_raise(expression: str) -> None:
    conditions.unbalanced(expression)
    conditions.is_scalar(expression)
    assert "".join(conditions.parts(expression)) == expression.replace(".", "").replace("|", "") or any(
        character in expression for character in '()[]{}"\\'
    )
