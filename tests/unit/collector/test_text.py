"""Text: the recorded cases, every clause of what text may hold, and that no input is too hard."""

import base64
import math
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from collector.source import Stamp
from collector.text import LONGEST_LINE
from collector.textfiles import TextFiles
from trialtap.argv import CollectorArgs
from trialtap.points import MetricPoint, parse_time

CASES = yaml.safe_load((Path(__file__).parents[2] / "cases/logs/text.yaml").read_text(encoding="utf-8"))
NOW = 1_700_000_000_000_000_000


def files(metrics: list[str], filters: list[str] | None = None) -> TextFiles:
    return TextFiles(CollectorArgs(trial="t", metrics=tuple(metrics), filters=tuple(filters or ())))


def read(
    data: bytes, metrics: list[str], filters: list[str] | None = None, piece: int = 0
) -> list[MetricPoint]:
    """Parse as the tail does: what was not used comes again with more behind it."""
    parser = files(metrics, filters).parser("f", Stamp(clock=lambda: NOW), {})
    points: list[MetricPoint] = []
    begin = end = 0
    while end < len(data):
        end = min(len(data), end + (piece or len(data)))
        used, some = parser.feed(data[begin:end], final=end == len(data))
        begin += used
        points += some
    return points


def pairs(text: str, *metrics: str, filters: list[str] | None = None) -> list[tuple[str, str]]:
    return [(point.name, point.value) for point in read(text.encode(), list(metrics), filters)]


def same(value: str, expected: str) -> bool:
    try:
        one, other = float(value), float(expected)
    except ValueError:
        return value == expected
    return one == other or (math.isnan(one) and math.isnan(other))


@pytest.mark.parametrize("piece", [0, 1, 7], ids=["at once", "byte by byte", "in pieces of 7"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_recorded_case(case: dict[str, Any], piece: int) -> None:
    data = case["input"].encode() if "input" in case else base64.b64decode(case["input_base64"])
    points = read(data, case["metrics"], case.get("filters"), piece)
    expected = case["expect"]
    assert [point.name for point in points] == [row[0] for row in expected]
    for point, row in zip(points, expected, strict=True):
        assert same(point.value, row[1]), (point, row)
        if len(row) > 2 and row[2]:
            assert point.time == parse_time(row[2])


NUMBERS = [
    ("1.2e+32", "1.2e+32"),
    ("12e2", "12e2"),
    (".5", ".5"),
    ("5.", "5"),
    ("+.5", "+.5"),
    ("888.33", "888.33"),
    ("-7.5e-05", "-7.5e-05"),
    ("nan", "nan"),
    ("NaN", "nan"),
    ("inf", "inf"),
    ("-Infinity", "-inf"),
    ("71.59%", "71.59"),
    ("1,234.5", "1234.5"),
    ("12,345,678", "12345678"),
    ("0.5,0.6", "0.5"),
    ("1, next", "1"),
    ("1,acc", "1"),
    ("0.5s", "0.5"),
    ("0.5)", "0.5"),
    ("1e", "1"),
    ("", None),
    ("n/a", None),
    ("nano", None),
    ("information", None),
    ("tensor(0.5)", None),
    ("1,23", None),
    ("0,5", None),
    ("1,2345", None),
    ("0x1F", None),
    ("1_000", None),
    ("-", None),
    ("e5", None),
]


@pytest.mark.parametrize(("text", "value"), NUMBERS, ids=[text or "nothing" for text, _ in NUMBERS])
def test_a_value_is_read_whole_or_not_at_all(text: str, value: str | None) -> None:
    source = files(["m"])
    _, points = source.parser("f", Stamp(), {}).feed(f"m={text}\n".encode(), final=False)
    assert [point.value for point in points] == ([] if value is None else [value])
    assert sum(source.findings.skipped.values()) == (value is None), "what is not read is counted"


NAMES: list[tuple[str, list[str], str, list[tuple[str, str]]]] = [
    ("whole names only", ["loss"], "val-loss=1 loss_2d=2 xloss=3 |loss=4 loss=5", [("loss", "5")]),
    ("a letter of another script before", ["cision"], "précision=1 損cision=2 cision=3", [("cision", "3")]),
    ("a combining accent before", ["cision"], "pre\u0301cision=1", []),
    ("a sign of another script before", ["acc"], "→acc=1 “acc=2", [("acc", "1"), ("acc", "2")]),
    ("a short name within a longer one", ["acc"], "val/acc=1 top-1 acc=2", [("acc", "1"), ("acc", "2")]),
    (
        "the longer name is asked for too",
        ["acc", "val/acc", "top-1 acc"],
        "val/acc=1 top-1 acc=2 acc=3",
        [("val/acc", "1"), ("top-1 acc", "2"), ("acc", "3")],
    ),
    (
        "a name inside another's brackets",
        ["IoU", "f1@[IoU=0.25]"],
        "f1@[IoU=0.25]=0.7 IoU=0.5",
        [("f1@[IoU=0.25]", "0.7"), ("IoU", "0.5")],
    ),
    ("blanks and tabs around the sign", ["m"], "m\t = \t1", [("m", "1")]),
    ("nothing across lines", ["m"], "m=\n1\nm\n=2\nm =\r3", []),
    ("the case counts", ["Acc"], "acc=1 Acc=2", [("Acc", "2")]),
    (
        "signs of patterns are letters in names",
        ["a.b", "c*"],
        "axb=1 a.b=2 c*=3",
        [("a.b", "2"), ("c*", "3")],
    ),
    (
        "text order, whatever the order asked for",
        ["b", "a"],
        "a=1 b=2 a=3",
        [("a", "1"), ("b", "2"), ("a", "3")],
    ),
    ("U+2028 ends no line", ["a", "b"], "a=1\u2028b=2", [("a", "1"), ("b", "2")]),
    ("colours in the midst of everything", ["m"], "\x1b[1;31mm\x1b[0m \x1b[2m=\x1b[K 1\x1b[0m", [("m", "1")]),
    ("a terminal link", ["m"], "\x1b]8;;http://x\x1b\\m=1\x1b]8;;\x07", [("m", "1")]),
]


@pytest.mark.parametrize(("metrics", "text", "expected"), [c[1:] for c in NAMES], ids=[c[0] for c in NAMES])
def test_which_names_are_found(metrics: list[str], text: str, expected: list[tuple[str, str]]) -> None:
    assert pairs(text + "\n", *metrics) == expected


TIMES = [
    ("2024-03-04T17:55:08Z m=1", "2024-03-04T17:55:08Z"),
    ("2024-03-04T17:55:08.5+09:00 m=1", "2024-03-04T08:55:08.5Z"),
    ("2024-03-04T17:55:08-0130 m=1", "2024-03-04T19:25:08Z"),
    ("2024-01-01 00:00:00,123 INFO m=1", "2024-01-01T00:00:00.123Z"),
    ("2024-01-01 00:00:00 m=1", "2024-01-01T00:00:00Z"),
    ("[2024-01-01 00:00:00,123][train] m=1", "2024-01-01T00:00:00.123Z"),
    ("[2024-01-01T00:00:00Z] m=1", "2024-01-01T00:00:00Z"),
    ("  2024-01-01T00:00:00Z m=1", "2024-01-01T00:00:00Z"),
    ("2024-01-01 00:00:00 +0200 m=1", "2023-12-31T22:00:00Z"),
    ("\x1b[2m2024-01-01T00:00:00Z\x1b[0m m=1", "2024-01-01T00:00:00Z"),
    ("2024-13-01T00:00:00Z m=1", None),
    ("2024-01-01T25:00:00Z m=1", None),
    ("2024-01-01 m=1", None),
    ("m=1 2024-01-01T00:00:00Z", None),
    ("20240101T000000Z m=1", None),
]


@pytest.mark.parametrize("filters", [[], [r"(m)=(\d+)"]], ids=["default pattern", "own pattern"])
@pytest.mark.parametrize(("line", "expected"), TIMES, ids=[line for line, _ in TIMES])
def test_the_time_at_the_start_of_a_line(line: str, expected: str | None, filters: list[str]) -> None:
    (point,) = read(line.encode(), ["m"], filters)
    assert point.time == (parse_time(expected) if expected else NOW)


def test_lines_without_a_time_get_later_and_later_ones() -> None:
    points = read(b"m=1\nm=2 k=3\nm=4 m=5 k=6\nm=7\n", ["m", "k"])
    micro = 1000
    assert [(point.value, point.time - NOW) for point in points] == [
        ("1", 0),
        ("2", micro),
        ("3", micro),
        ("4", 2 * micro),
        ("5", 3 * micro),
        ("6", 3 * micro),
        ("7", 4 * micro),
    ]


def test_a_time_that_was_read_is_never_altered() -> None:
    points = read(b"2024-01-01T00:00:00Z m=1 m=2\n2024-01-01T00:00:00Z m=3\n", ["m"])
    assert {point.time for point in points} == {parse_time("2024-01-01T00:00:00Z")}


STEPS = [
    ("step=7 m=1", 7),
    ("epoch=3 m=1", 3),
    ("epoch=3 step=70 m=1", 70),
    ("global_step = 12 m=1", 12),
    ("m=1, epoch=2/10", 2),
    ("epoch=4.0 m=1", 4),
    ("epoch=1.5 m=1", None),
    ("substep=3 m=1", None),
    ("step m=1", None),
    ("m=1", None),
]


@pytest.mark.parametrize("filters", [[], [r"(m)=(\d+)"]], ids=["default pattern", "own pattern"])
@pytest.mark.parametrize(("line", "step"), STEPS, ids=[line for line, _ in STEPS])
def test_the_step_of_a_line(line: str, step: int | None, filters: list[str]) -> None:
    assert [point.step for point in read(line.encode(), ["m"], filters)] == [step]


def test_a_step_holds_for_its_own_line_only() -> None:
    assert [point.step for point in read(b"step=1 m=1\nm=2\rstep=3 m=3\r\n", ["m"])] == [1, None, 3]


FILTERS: list[tuple[str, list[str], list[str], str, list[tuple[str, str]]]] = [
    ("two patterns joined", ["a", "b"], [r"(a): (\d+);(b)~(\d+)"], "a: 1 b~2", [("a", "1"), ("b", "2")]),
    ("a semicolon within a pattern", ["loss"], [r"([a-z]+);([0-9.]+)"], "loss;0.5", [("loss", "0.5")]),
    ("the flag twice", ["a", "b"], [r"(a): (\d+)", r"(b)~(\d+)"], "a: 1 b~2", [("a", "1"), ("b", "2")]),
    (
        "a value that is no number",
        ["Best"],
        [r"(\w+)=(Genotype\(.*\))"],
        "Best=Genotype(x)",
        [("Best", "Genotype(x)")],
    ),
    ("anchors are the line's", ["a"], [r"^(a)=(\d)$"], "a=1\nba=2\na=3 \ra=4\r\n", [("a", "1"), ("a", "4")]),
    ("blanks around groups", ["a"], [r"(.*):(.*)"], " a : 0.5 ", [("a", "0.5")]),
    ("percent within the group", ["a"], [r"(a): (\S+)"], "a: 71.59%", [("a", "71.59")]),
    ("thousands", ["a"], [r"(a): ([\d.]+)"], "a: 1,234.5", [("a", "1234.5")]),
    ("thousands within the group", ["a"], [r"(a): (\S+)"], "a: 1,234.5", [("a", "1234.5")]),
    ("a comma that sets off nothing", ["a"], [r"(a): (\d+)"], "a: 1,5", []),
    ("an empty value", ["a"], [r"(a):(\d*)"], "a:", []),
    ("a group that took no part", ["a"], [r"(a)=(?:(\d)|x)"], "a=x a=1", [("a", "1")]),
    ("names not asked for", ["a"], [r"(\w)=(\d)"], "b=1 a=2", [("a", "2")]),
    ("one match of two patterns", ["a"], [r"(a)=(\d)", r"(\w)=(\d)"], "a=2", [("a", "2")]),
]


@pytest.mark.parametrize(
    ("metrics", "filters", "text", "expected"), [c[1:] for c in FILTERS], ids=[c[0] for c in FILTERS]
)
def test_own_patterns(
    metrics: list[str], filters: list[str], text: str, expected: list[tuple[str, str]]
) -> None:
    assert pairs(text, *metrics, filters=filters) == expected


@pytest.mark.parametrize(
    ("pattern", "says"),
    [("(a", "no RE2 pattern"), (r"(?=a)(b)(c)", "no RE2 pattern"), ("(a)=1", "two groups")],
)
def test_a_pattern_that_cannot_work_is_refused_by_name(pattern: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        files(["a"], [pattern])
    assert pattern in str(caught.value)


def test_bytes_that_are_no_utf8_stop_no_pattern() -> None:
    assert [
        point.value for point in read(b"\xff\xfe loss: 0.5 \xff\n", ["loss"], [r"^.*(loss): (\S+) .$"])
    ] == ["0.5"]


@pytest.mark.parametrize(
    ("line", "filters"),
    [
        (b"a=" * 2_500_000, []),
        (b"a" * 5_000_000, [r"(a+)+=(x+)+$"]),
        (b"a " * 2_500_000 + b"=1", [r"([\w|-]+)\s*=\s*([0-9.]+)"]),
    ],
    ids=["default pattern", "catastrophic pattern", "own pattern"],
)
def test_a_line_of_5_mb_is_read_in_linear_time(line: bytes, filters: list[str]) -> None:
    began = time.process_time()
    read(line + b"\na=1\n", ["a", "aa"], filters, piece=1 << 20)
    assert time.process_time() - began < 60, "quadratic work would take hours"


def test_a_line_without_an_end_is_cut_and_what_follows_is_read() -> None:
    points = read(b"x" * (LONGEST_LINE + 10) + b"\nm=1\n", ["m"], piece=LONGEST_LINE)
    assert [point.value for point in points] == ["1"]


@given(st.binary(max_size=200), st.integers(1, 20))
def test_any_bytes_in_any_pieces_give_the_same_points(data: bytes, piece: int) -> None:
    metrics = ["m", "a", "aa"]
    whole = [(p.name, p.value, p.step) for p in read(data, metrics)]
    assert [(p.name, p.value, p.step) for p in read(data, metrics, piece=piece)] == whole


@given(
    st.lists(
        st.sampled_from(
            ["m", "aa", "a", "=", "1", ".", "e", "-", ",", " ", "\n", "\r", "é", "\x1b[0m", "nan"]
        )
    )
)
def test_any_text_of_such_parts_gives_values_that_are_numbers(parts: list[str]) -> None:
    for point in read("".join(parts).encode(), ["m", "aa", "a"]):
        float(point.value)


@given(st.binary(max_size=300).map(lambda data: bytes(b"ma=1 .,\n\t-\xc3\xa9"[byte % 12] for byte in data)))
def test_both_ways_of_finding_names_give_the_same_points(data: bytes) -> None:
    metrics = ["m", "ma", "a", "a=1"]
    few, many = (read(data + b"\n" + tail * 3000, metrics) for tail in (b"x", b"="))
    assert [(p.name, p.value) for p in few] == [(p.name, p.value) for p in many]
