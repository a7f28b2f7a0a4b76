"""JSON lines: recorded cases, damage, restarts at any record, and any bytes at all."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from collector.jsonlines import LIMIT, JsonLines
from collector.source import Findings, Stamp
from tests.support.parsing import feed_all
from trialtap.points import format_time

CASES = yaml.safe_load(Path("tests/cases/logs/json.yaml").read_text())
NOW = 1_800_000_000_000_000_000


def parser(*names: str) -> JsonLines:
    return JsonLines(names, Stamp(clock=lambda: NOW), Findings())


def values(data: str | bytes, *names: str) -> list[tuple[str, str]]:
    data = data.encode() if isinstance(data, str) else data
    return [(point.name, point.value) for point in feed_all(parser(*names), data)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_recorded_case(case: dict[str, Any], size: int) -> None:
    data = case["input"].encode()
    points = feed_all(parser(*case["metrics"]), data, [size] * (len(data) // size))
    assert [(point.name, point.value) for point in points] == [(row[0], row[1]) for row in case["expect"]]
    for point, row in zip(points, case["expect"], strict=True):
        if len(row) > 2 and row[2] is not None:
            assert format_time(point.time) == row[2]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1", "1"),
        ("-0.5e-3", "-0.5e-3"),
        ("12345678901234567890.123456789", "12345678901234567890.123456789"),
        ('" 0.25 "', "0.25"),
        ('".5"', ".5"),
        ("NaN", "nan"),
        ("Infinity", "inf"),
        ("-Infinity", "-inf"),
        ('"nan"', "nan"),
        ('"-inf"', "-inf"),
        ("true", None),
        ("null", None),
        ("[1]", None),
        ('{"x": 1}', None),
        ('"1,234"', None),
        ('"1_000"', None),
        ('""', None),
        ('"0x10"', None),
        ('"٣"', None),
    ],
)
def test_a_value_is_a_number_as_it_was_written(written: str, value: str | None) -> None:
    assert values(f'{{"m": {written}}}', "m") == ([("m", value)] if value is not None else [])


@pytest.mark.parametrize(
    ("timestamp", "time"),
    [
        ("100.9", "1970-01-01T00:01:40.9Z"),
        ("100.10", "1970-01-01T00:01:40.1Z"),
        ("1700000000.123456789123", "2023-11-14T22:13:20.123456789Z"),
        ("1700000000123", "2023-11-14T22:13:20.123Z"),
        ("1700000000123.5", "2023-11-14T22:13:20.1235Z"),
        ("1700000000123456", "2023-11-14T22:13:20.123456Z"),
        ("1700000000123456789", "2023-11-14T22:13:20.123456789Z"),
        ('"1700000000.5"', "2023-11-14T22:13:20.5Z"),
        ("1.7e9", "2023-11-14T22:13:20Z"),
        ('"2024-01-01 00:00:00,123"', "2024-01-01T00:00:00.123Z"),
        ('"2024-01-01T09:00:00+09:00"', "2024-01-01T00:00:00Z"),
        ('"yesterday"', None),
        ("-5", None),
        ("1e400", None),
        ("9" * 40, None),
        ("null", None),
        ('{"a": 1}', None),
    ],
)
def test_a_timestamp_is_read_exactly_and_what_is_none_counts_as_now(timestamp: str, time: str | None) -> None:
    (point,) = feed_all(parser("m"), f'{{"m": 1, "timestamp": {timestamp}}}'.encode())
    assert format_time(point.time) == (time or format_time(NOW))


@pytest.mark.parametrize(
    ("keys", "step"),
    [
        ('"step": 3, "epoch": 1', 3),
        ('"global_step": 7, "epoch": 1', 7),
        ('"epoch": 2.0', 2),
        ('"epoch": 0.52', None),
        ('"step": "12"', 12),
        ('"step": NaN, "epoch": 4', 4),
        ('"step": true', None),
        ('"step": 9223372036854775808', None),
        ('"other": 1', None),
    ],
)
def test_the_step_stands_beside_the_value(keys: str, step: int | None) -> None:
    (point,) = feed_all(parser("m"), f'{{"m": 1, {keys}}}'.encode())
    assert point.step == step


def test_lines_without_a_time_are_stamped_in_their_order() -> None:
    points = feed_all(parser("m"), b'{"m": 1}\n{"m": 2}\n{"m": 3}\n')
    assert [point.time - NOW for point in points] == [0, 1000, 2000]


def test_names_of_one_object_share_its_time() -> None:
    one, other = feed_all(parser("a", "b"), b'{"b": 1, "a": 2}\n')
    assert (one.name, other.name, one.time) == ("a", "b", other.time)


@pytest.mark.parametrize(
    ("name", "text", "expect"),
    [
        ("a byte order mark before the first object", b'\xef\xbb\xbf{"m": 1}\n{"m": 2}', "1 2"),
        ("Windows line ends", b'{"m": 1}\r\n{"m": 2}\r\n', "1 2"),
        ("bytes that are no UTF-8 beside the value", b'{"x": "\xff", "m": 1}\n', "1"),
        ("two torn lines glued together", b'{"m": 1, "x{"m": 2}\n{"m": 3}\n', "3"),
        ("two objects in one line are a mixed line", b'{"m": 1}{"m": 2}\n{"m": 3}\n', "3"),
        ("an array over several lines", b'[\n{"m": 1},\n{"m": 2}\n]\n{"m": 3}\n', "2 3"),
        ("a pretty-printed object behind other lines", b'start\n{\n "m": 1\n}\n{"m": 2}\n', "1 2"),
        ("several pretty-printed objects", b'{\n "m": 1\n}\n{\n "m": 2\n}\n', "1 2"),
        ("a brace alone, then good lines", b'{\n{"m": 1}\n{"m": 2}\n', "1 2"),
        ("a torn pretty-printed object, then a good line", b'{\n "x": 1,\n{"m": 2}\n{"m": 3}\n', "2 3"),
        ("a pretty-printed object cut at the end", b'{"m": 1}\n{\n "m": 2,\n', "1"),
        ("bad bytes in a torn pretty-printed object", b'{\n "\xff\xff\xff": 1,\n{"m": 2}\n', "2"),
        ("nesting without end", b'{"a":' * 100_000 + b'\n{"m": 1}\n', "1"),
        ("nesting without end over many lines", b'{\n"a":\n' * 50_000 + b"\n" * LIMIT + b'\n{"m": 1}\n', "1"),
        ("a line longer than is kept", b'{"m": "' + b"9" * LIMIT + b'"}\n{"m": 1}\n', "1"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value else "",
)
@pytest.mark.parametrize("size", [0, 5_000])
def test_odd_input_loses_nothing_else(name: str, text: bytes, expect: str, size: int) -> None:
    findings = Findings()
    reader = JsonLines(["m"], Stamp(), findings)
    points = feed_all(reader, text, [size] * (len(text) // size) if size else ())
    assert " ".join(point.value for point in points) == expect
    assert findings.lines == len(points)


def test_a_pretty_printed_object_is_read_before_the_file_ends() -> None:
    used, points = parser("m").feed(b'{\n  "m": 1\n}\n', final=False)
    assert (used, points[0].value) == (13, "1")


def test_a_name_with_many_dots_costs_no_more_than_the_object_is_deep() -> None:
    name = ".".join("a" * 60)
    assert values('{"a": {"a": 1}}', name) == []


def test_what_went_by_and_what_was_skipped_is_counted() -> None:
    findings = Findings()
    reader = JsonLines(["acc"], Stamp(), findings)
    feed_all(reader, b'hello\n{"Acc": 1, "eval": {"acc": 2}, "note": "x"}\n{"acc": 1\n{"acc": 1}\n')
    assert findings.names == {"Acc": 1, "eval.acc": 1, "acc": 1}
    assert findings.lines == 1
    assert findings.skipped == {"no JSON object": 1, "no whole JSON object": 1}


scalars = st.one_of(st.floats(), st.integers(), st.text(), st.booleans(), st.none())
objects = st.dictionaries(st.sampled_from(["m", "a", "b", "m.a", "timestamp", "step"]), scalars)


@given(st.lists(st.one_of(objects.map(json.dumps), st.text().map(lambda t: t.replace("\n", " ")))), st.data())
def test_pieces_and_restarts_change_nothing(lines: list[str], data: st.DataObject) -> None:
    text = "\n".join(lines).encode("utf-8", "replace")
    whole = [(p.name, p.value, p.step) for p in feed_all(parser("m", "m.a"), text)]
    sizes = data.draw(st.lists(st.integers(1, 50), max_size=30))
    assert [(p.name, p.value, p.step) for p in feed_all(parser("m", "m.a"), text, sizes)] == whole
    used, first = parser("m", "m.a").feed(text[: data.draw(st.integers(0, len(text)))], False)
    rest = feed_all(parser("m", "m.a"), text[used:])
    assert [(p.name, p.value, p.step) for p in [*first, *rest]] == whole


@given(st.lists(st.sampled_from([b"{", b"}", b"\n", b'"m"', b":", b"1", b",", b"[", b"\xff", b" ", b"\\"])))
def test_any_bytes_are_read_to_their_end(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    used, _ = parser("m").feed(data, final=True)
    assert used == len(data)


@given(st.lists(st.floats(), min_size=1))
def test_every_float_that_json_writes_is_read_back(numbers: list[float]) -> None:
    text = "\n".join(json.dumps({"m": number}) for number in numbers)
    for number, (_, value) in zip(numbers, values(text, "m"), strict=True):
        assert float(value) == number or (math.isnan(number) and value == "nan")
