"""The collector's argv: what is written reads back, Katib's own is taken, faults are named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trialtap import argv
from trialtap.argv import CollectorArgs, StopRule

WORDS = st.text(st.characters(exclude_characters=";\0", exclude_categories=["Cs"]), min_size=1)
RULES = st.builds(
    StopRule,
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    st.floats(allow_nan=False).map(str),
    st.sampled_from(argv.COMPARISONS),
    st.integers(0, 10**6),
)


@given(
    st.builds(
        CollectorArgs,
        trial=st.text(min_size=1),
        metrics=st.lists(WORDS, min_size=1).map(tuple),
        objective_type=st.sampled_from(["minimize", "maximize"]),
        path=st.text(),
        filters=st.lists(st.text()).map(tuple),
        format=st.sampled_from(["TEXT", "JSON", None]),
        wait_all=st.booleans(),
        poll=st.floats(0.01, 1e6),
        timeout=st.floats(0, 1e6),
        grace=st.floats(0, 1e6),
        stop_rules=st.lists(RULES).map(tuple),
        kind=st.sampled_from([*argv.KINDS, None]),
        port=st.integers(0, 65535),
        keep=st.integers(0, 1 << 40),
        echo=st.booleans(),
    )
)
def test_what_is_written_reads_back_as_the_same(args: CollectorArgs) -> None:
    assert argv.parse(argv.write(args)) == args


def test_what_katibs_webhook_writes_is_read() -> None:
    line = [
        "-t",
        "trial-1",
        "-m",
        "accuracy;loss",
        "-o-type",
        "maximize",
        "-s-db",
        "katib-db-manager.kubeflow:6789",
    ]
    line += [
        "-path",
        "/var/log/katib/metrics.log",
        "-f",
        "([a-z]+);([0-9.]+)",
        "-format",
        "TEXT",
        "-w",
        "false",
    ]
    line += ["-stop-rule", "accuracy;0.4;less;4", "-stop-rule", "loss;2;greater;0"]
    line += ["-s-earlystop", "exp-medianstop.hpo:6788"]
    assert argv.parse(line) == CollectorArgs(
        trial="trial-1",
        metrics=("accuracy", "loss"),
        objective_type="maximize",
        db_address="katib-db-manager.kubeflow:6789",
        path="/var/log/katib/metrics.log",
        filters=("([a-z]+);([0-9.]+)",),
        format="TEXT",
        wait_all=False,
        stop_rules=(StopRule("accuracy", "0.4", "less", 4), StopRule("loss", "2", "greater")),
        early_stop_address="exp-medianstop.hpo:6788",
    )


@pytest.mark.parametrize("line", [["-t=a", "-m=b"], ["--t", "a", "--m", "b"], ["--trial=a", "--metrics=b"]])
def test_gos_ways_of_writing_a_flag_are_all_read(line: list[str]) -> None:
    assert argv.parse(line) == CollectorArgs(trial="a", metrics=("b",))


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (["-m", "a"], "-t"),
        (["-t", "a"], "-m"),
        (["-t", "a", "-m", ";"], "-m"),
        (["-t", "a", "-m"], "-m"),
        (["-t", "a", "-m", "b", "-format", "XML"], "XML"),
        (["-t", "a", "-m", "b", "-w", "perhaps"], "perhaps"),
        (["-t", "a", "-m", "b", "--nonsense", "1"], "--nonsense"),
        (["-t", "a", "-m", "b", "-stop-rule", "loss;1;below;2"], "below"),
        (["-t", "a", "-m", "b", "-stop-rule", "loss;x;less;2"], "'x'"),
        (["-t", "a", "-m", "b", "-stop-rule", "loss;1;less;-2"], "startStep"),
        (["-t", "a", "-m", "b", "-stop-rule", "1;less;2"], "name;value;comparison;startStep"),
    ],
)
def test_a_fault_is_named(line: list[str], named: str) -> None:
    with pytest.raises(ValueError, match="-") as fault:
        argv.parse(line)
    assert named in str(fault.value)


def test_a_rules_name_may_hold_a_semicolon() -> None:
    assert StopRule.parse("a;b;0.5;equal;1") == StopRule("a;b", "0.5", "equal", 1)


def test_help_names_every_flag() -> None:
    text = argv.parser().format_help()
    for flag in (
        "-t",
        "-m",
        "-s-db",
        "-path",
        "-stop-rule",
        "--kind",
        "--namespace",
        "--grace",
        "--keep",
        "--stream",
    ):
        assert flag in text
