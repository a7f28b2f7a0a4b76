"""Early-stopping rules: when they are looked at, what they compare, and that a restart forgets nothing."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.stopping import Rules
from trialtap.argv import CollectorArgs, StopRule
from trialtap.points import MetricPoint


def rules(texts: list[str], objective: str = "a", kind: str = "minimize") -> Rules:
    """Make the rules of a trial."""
    return of(tuple(map(StopRule.parse, texts)), objective, kind)


def of(stop_rules: tuple[StopRule, ...], objective: str, kind: str) -> Rules:
    return Rules(
        CollectorArgs(trial="t", metrics=(objective, "z"), objective_type=kind, stop_rules=stop_rules)
    )


def points(text: str) -> list[MetricPoint]:
    """Read `loss=1 acc=2 …` in the order of writing."""
    return [
        MetricPoint(name, value, time)
        for time, (name, value) in enumerate(pair.split("=") for pair in text.split())
    ]


CASES = [
    # name, rules, objective, type, points, how many points it takes to stop (None: never)
    ("without a start step the first report counts", "acc;0.5;less;0", "loss", "minimize", "acc=0.4", 1),
    ("before the start step nothing is met", "acc;0.5;less;3", "loss", "minimize", "acc=0.4 acc=0.4", None),
    ("the start step's own report counts", "acc;0.5;less;3", "loss", "minimize", "acc=0 acc=0 acc=0", 3),
    ("a report after the start step counts", "acc;0.5;less;2", "loss", "minimize", "acc=1 acc=1 acc=0.4", 3),
    ("a value that was met too early is no reason", "acc;0.5;less;2", "loss", "minimize", "acc=0 acc=1", None),
    ("the limit itself is not less", "acc;0.5;less;0", "loss", "minimize", "acc=0.5", None),
    ("the limit itself is not greater", "acc;0.5;greater;0", "loss", "minimize", "acc=0.5", None),
    ("equal compares numbers, not text", "acc;0.5;equal;0", "loss", "minimize", "acc=0.4 acc=5e-1", 2),
    ("greater", "loss;2;greater;0", "acc", "maximize", "loss=1 loss=3", 2),
    ("other metrics do not count", "acc;0.5;less;2", "loss", "minimize", "acc=0.4 loss=0.1 loss=0.1", None),
    ("nan and inf are no reports", "acc;0.5;less;2", "loss", "minimize", "acc=nan acc=-inf acc=0.4 acc=0.4", 4),
    ("text is no report", "acc;0.5;less;1", "loss", "minimize", "acc=Genotype acc=unavailable", None),
    ("a number past every float is no report", "acc;0.5;greater;1", "loss", "minimize", "acc=1e999", None),
    (
        "the objective compares its best, counted from its first report",
        "acc;0.5;less;3", "acc", "maximize", "acc=0.9 acc=0.1 acc=0.1 acc=0.1", None,
    ),
    (
        "the objective's best is the smallest when it is minimized",
        "loss;0.5;greater;2", "loss", "minimize", "loss=0.9 loss=0.8", 2,
    ),
    ("a later best is looked at too", "loss;0.5;less;2", "loss", "minimize", "loss=0.9 loss=0.8 loss=0.4", 3),
    (
        "every rule must be met",
        "a;1;less;0 b;1;less;0", "a", "minimize", "a=0 a=0 b=2 b=0", 4,
    ),
    (
        "a rule once met stays met",
        "a;1;less;0 b;1;less;0", "loss", "minimize", "a=0 a=5 b=0", 3,
    ),
    (
        "two rules of one metric share its counter",
        "a;1;less;2 a;3;greater;2", "loss", "minimize", "a=0 a=0 a=4", 3,
    ),
    ("no rules, no stop", "", "loss", "minimize", "loss=0 loss=0", None),
    ("a name may hold a semicolon", "a;b;1;less;0", "loss", "minimize", "a;b=0", 1),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_training_is_stopped(case: tuple[str, str, str, str, str, int | None]) -> None:
    _, texts, objective, kind, reports, after = case
    stopping = rules(texts.split(), objective, kind)
    state = stopping.begin()
    stopped = None
    for count, point in enumerate(points(reports), 1):
        state = stopping.step(state, [point])
        if stopping.met(state) and stopped is None:
            stopped = count
    assert stopped == after
    assert stopping.met(state) == (after is not None)


def test_a_state_of_other_rules_meets_none_of_the_new() -> None:
    old = rules(["a;1;less;0"])
    state = old.step(old.begin(), points("a=0"))
    assert old.met(state)
    assert not rules(["a;-1;less;0"]).met(state)


def test_a_step_leaves_the_state_before_it_as_it_was() -> None:
    stopping = rules(["a;1;less;0"])
    before = stopping.begin()
    stopping.step(before, points("a=0"))
    assert before == stopping.begin()


@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"), st.sampled_from(["0", "1", "2"]),
            st.sampled_from(["less", "greater", "equal"]), st.integers(0, 4),
        ),
        max_size=4,
    ),
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["0", "1", "2", "nan", "x"])), max_size=12),
    st.integers(0, 12),
    st.sampled_from(["minimize", "maximize"]),
)  # fmt: skip
def test_a_restart_anywhere_changes_nothing(
    written: list[tuple[str, str, str, int]], reports: list[tuple[str, str]], cut: int, kind: str
) -> None:
    stopping = of(tuple(StopRule(*fields) for fields in written), "a", kind)
    series = [MetricPoint(name, value, 0) for name, value in reports]
    whole = stopping.step(stopping.begin(), series)
    before = stopping.step(stopping.begin(), series[:cut])
    after = stopping.step(json.loads(json.dumps(before)), series[cut:])
    assert after == whole
    assert stopping.met(after) or not stopping.met(before)
