"""TensorFlow event files: recorded trees, TensorBoard as the oracle, damage, names and directories."""

import math
import struct
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collector.eventfiles import CHUNK, EventFiles
from collector.source import Stamp
from collector.tfevents import LIMIT
from tests.support.eventfiles import as_tensorboard_reads, event, image, record, version
from tests.support.parsing import feed_all
from trialtap.argv import CollectorArgs
from trialtap.points import MetricPoint

TREES = Path("tests/cases/tfevents")
CASES = yaml.safe_load((TREES / "cases.yaml").read_text())


def source(root: Path, *names: str) -> EventFiles:
    return EventFiles(CollectorArgs(trial="t", metrics=names, path=str(root)))


def read(files: EventFiles, root: Path, size: int = CHUNK) -> list[MetricPoint]:
    """Read a tree once, in the order of its paths."""
    points = []
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_file() and files.accepts(name):
            data = path.read_bytes()
            points += feed_all(files.parser(name, Stamp(), {}), data, [size] * (len(data) // size))
    return points


def write(root: Path, name: str, *records: bytes) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(version() + b"".join(records))
    return path


def steps(points: list[MetricPoint]) -> list[int | None]:
    return [point.step for point in points]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
@pytest.mark.parametrize("size", [11, 500, CHUNK])
def test_recorded_tree(case: dict[str, Any], size: int) -> None:
    root = TREES / case["dir"]
    points = read(source(root, *case["metrics"]), root, size)
    for name, expect in case["expect"].items():
        got = [(point.step, float(point.value)) for point in points if point.name == name]
        assert [step for step, _ in got] == [step for step, _ in expect]
        assert [value for _, value in got] == pytest.approx([value for _, value in expect], rel=1e-6)
    assert {point.name for point in points} == set(case["expect"])


@pytest.mark.parametrize("tree", ["keras", "tensorboardx", "tensorflow", "torch", "torch-extras"])
def test_every_tag_of_real_writers_is_read_as_tensorboard_reads_it(tree: str) -> None:
    root = TREES / tree
    for path in root.rglob("*tfevents*"):
        expect = as_tensorboard_reads(path)
        files = source(path, *expect)
        points = feed_all(files.parser(path.name, Stamp(), {}), path.read_bytes())
        for tag, rows in expect.items():
            mine = [point for point in points if point.name == tag]
            assert steps(mine) == [step for step, _, _ in rows]
            assert [float(point.value) for point in mine] == pytest.approx([row[2] for row in rows], rel=1e-6)
            assert [point.time / 1e9 for point in mine] == pytest.approx([row[1] for row in rows], abs=1e-6)


def test_a_float32_is_written_as_a_person_wrote_it(tmp_path: Path) -> None:
    write(
        tmp_path, "tfevents", *(event(i, m=v) for i, v in enumerate([0.93, 1e-7, 3.0, math.nan, -math.inf]))
    )
    assert [p.value for p in read(source(tmp_path, "m"), tmp_path)] == ["0.93", "1e-07", "3", "nan", "-inf"]


def test_steps_that_are_missing_large_or_negative(tmp_path: Path) -> None:
    wanted = [0, 1, 127, 128, 2**31, 2**62, -1, -(2**63)]
    write(tmp_path, "tfevents", *(event(step, m=1) for step in wanted))
    assert steps(read(source(tmp_path, "m"), tmp_path)) == wanted


def test_a_record_without_a_time_is_stamped(tmp_path: Path) -> None:
    write(tmp_path, "tfevents", event(1, 0.0, m=1), event(2, math.inf, m=1), event(3, 1700000000.25, m=1))
    first, second, third = read(source(tmp_path, "m"), tmp_path)
    assert 1.7e18 < first.time < second.time or first.time <= second.time
    assert third.time == 1_700_000_000_250_000_000


def test_several_values_in_one_record(tmp_path: Path) -> None:
    write(tmp_path, "tfevents", event(1, a=1, b=2, c=3), event(2, c=4, a=5))
    points = read(source(tmp_path, "c", "a"), tmp_path)
    assert [(p.name, p.value, p.step) for p in points] == [
        ("a", "1", 1), ("c", "3", 1), ("c", "4", 2), ("a", "5", 2),
    ]  # fmt: skip


def test_one_tag_answers_its_name_and_its_directory_with_it(tmp_path: Path) -> None:
    write(tmp_path, "train/tfevents", event(1, loss=1), event(2, loss=2))
    points = read(source(tmp_path, "loss", "train/loss"), tmp_path)
    assert [(p.name, p.step) for p in points] == [
        ("loss", 1),
        ("train/loss", 1),
        ("loss", 2),
        ("train/loss", 2),
    ]


@pytest.mark.parametrize(
    ("name", "path", "tag", "hit"),
    [
        ("loss", "tfevents", "loss", True),
        ("loss", "tfevents", "loss2", False),
        ("loss", "tfevents", "val__loss", False),
        ("train/loss", "train/tfevents", "loss", True),
        ("train/loss", "a/train/tfevents", "loss", True),
        ("train/loss", "pretrain/tfevents", "loss", False),
        ("train/loss", "train/a/tfevents", "loss", False),
        ("train/loss", "tfevents", "train__loss", True),
        ("a/b/loss", "a/b/tfevents", "loss", True),
        ("a/b/loss", "a/tfevents", "b__loss", True),
        ("a/b/loss", "b/tfevents", "loss", False),
        ("/loss", "tfevents", "loss", False),
        ("損失", "tfevents", "損失", True),
    ],
)
def test_a_name_matches_a_tag_or_whole_directories_and_a_tag(
    tmp_path: Path, name: str, path: str, tag: str, hit: bool
) -> None:
    write(tmp_path, path, event(1, **{tag: 1.0}))
    assert steps(read(source(tmp_path, name), tmp_path)) == ([1] if hit else [])


def test_the_root_directory_counts_as_a_directory(tmp_path: Path) -> None:
    write(tmp_path, "train/tfevents", event(1, loss=1))
    assert steps(read(source(tmp_path / "train", "train/loss"), tmp_path / "train")) == [1]


def test_the_literal_tag_wins_over_the_directory_wherever_it_stands(tmp_path: Path) -> None:
    write(tmp_path, "train/tfevents", event(1, loss=1))
    write(tmp_path, "zzz/tfevents", event(2, train__loss=2))
    assert steps(read(source(tmp_path, "train/loss"), tmp_path)) == [2]


def test_a_stream_stays_with_the_form_that_it_began_with(tmp_path: Path) -> None:
    path = write(tmp_path, "train/tfevents", event(1, loss=1))
    files = source(tmp_path, "train/loss")
    parser = files.parser("train/tfevents", Stamp(), {})
    used, points = parser.feed(path.read_bytes(), False)
    assert steps(points) == [1]
    late = event(2, train__loss=2) + event(3, loss=3)
    path.write_bytes(path.read_bytes() + late)
    for reader in (parser, source(tmp_path, "train/loss").parser("train/tfevents", Stamp(), parser.state())):
        assert steps(reader.feed(path.read_bytes()[used:], False)[1]) == [3]


def test_a_bare_tag_in_two_runs_is_warned_of_once_with_both_names(tmp_path: Path) -> None:
    for run in ("train", "validation", "more"):
        write(tmp_path, f"{run}/tfevents", event(1, epoch_loss=1))
    files = source(tmp_path, "epoch_loss")
    assert len(read(files, tmp_path)) == 3
    (note,) = files.findings.notes
    assert "more/epoch_loss" in note
    assert "train/epoch_loss" in note


def test_several_files_of_one_run_need_no_warning(tmp_path: Path) -> None:
    for name in ("tfevents.1", "tfevents.2"):
        write(tmp_path, name, event(1, loss=1), event(2, loss=1))
    files = source(tmp_path, "loss")
    assert steps(read(files, tmp_path)) == [1, 2, 1, 2]
    assert files.findings.notes == []


def test_strangers_in_the_tree_are_left_alone(tmp_path: Path) -> None:
    files = source(tmp_path, "loss")
    assert not files.accepts("train/notes.txt")
    assert not files.accepts("tfevents/trace.json")
    assert files.accepts("a/events.out.tfevents.1.host.2.3.v2")


def test_a_damaged_record_is_skipped_and_counted(tmp_path: Path) -> None:
    bad = bytearray(event(2, m=2))
    bad[-6] ^= 1
    path = write(tmp_path, "tfevents", event(1, m=1), bytes(bad), event(3, m=3))
    files = source(tmp_path, "m")
    assert steps(read(files, tmp_path)) == [1, 3]
    assert files.findings.skipped == {"damaged records": 1}
    assert len(as_tensorboard_reads(path)["m"]) < 2  # TensorBoard stops there


def test_a_damaged_record_without_the_tag_is_counted_when_all_are_checked(tmp_path: Path) -> None:
    bad = bytearray(event(2, other=2))
    bad[-6] ^= 1
    write(tmp_path, "tfevents", event(1, m=1), bytes(bad), event(3, m=3))
    files = source(tmp_path, "m")
    files.sample, files.check_all = 0, True
    assert steps(read(files, tmp_path)) == [1, 3]
    assert files.findings.skipped == {"damaged records": 1}


def test_a_damaged_length_gives_up_the_rest_of_the_file_and_says_so_once(tmp_path: Path) -> None:
    bad = bytearray(event(2, m=2))
    bad[0] ^= 1
    path = write(tmp_path, "run/tfevents", event(1, m=1), bytes(bad), event(3, m=3))
    write(tmp_path, "run/tfevents.2", event(4, m=4))
    files = source(tmp_path, "m")
    assert steps(read(files, tmp_path)) == [1, 4]
    (note,) = files.findings.notes
    assert "run/tfevents" in note
    parser = files.parser("run/tfevents", Stamp(), {})
    data = path.read_bytes()
    assert parser.feed(data, False)[0] == len(data)
    again = files.parser("run/tfevents", Stamp(), parser.state())
    assert again.feed(event(5, m=5), False) == (len(event(5, m=5)), [])
    assert len(files.findings.notes) == 2


def test_a_file_of_another_kind_by_this_name_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "tfevents.txt").write_text("these are my notes\n" * 100)
    files = source(tmp_path, "m")
    assert read(files, tmp_path) == []
    assert "no event file" in files.findings.notes[0]


def test_a_valid_checksum_around_what_is_no_event(tmp_path: Path) -> None:
    needle = b"\x0a\x01m"
    write(tmp_path, "tfevents", record(needle), record(b"\xff" * 40 + needle), record(b""), event(1, m=1))
    files = source(tmp_path, "m")
    assert steps(read(files, tmp_path)) == [1]


def test_the_tag_in_a_text_beside_it_is_no_hit(tmp_path: Path) -> None:
    write(tmp_path, "tfevents", *(event(i, **{"x": 1.0, "\n\x01m": 2.0, "m": 3.0}) for i in range(3)))
    assert [p.value for p in read(source(tmp_path, "m"), tmp_path)] == ["3", "3", "3"]


def test_a_half_record_is_resumed_when_the_rest_arrives(tmp_path: Path) -> None:
    data = version() + event(1, m=1) + event(2, m=2)
    for cut in range(len(data)):
        files = source(tmp_path, "m")
        used, first = files.parser("tfevents", Stamp(), {}).feed(data[:cut], False)
        rest = feed_all(files.parser("tfevents", Stamp(), {}), data[used:])
        assert steps([*first, *rest]) == [1, 2]


@pytest.mark.parametrize("size", [CHUNK // 3, CHUNK, 3 * CHUNK, LIMIT + 5])
def test_images_are_passed_over_without_being_held(tmp_path: Path, size: int) -> None:
    data = version() + event(1, m=1) + image(2, size) + event(3, m=3) + image(4, size, "m") + event(5, m=5)
    files = source(tmp_path, "m")
    parser = files.parser("tfevents", Stamp(), {})
    points: list[MetricPoint] = []
    at = largest = 0
    length = CHUNK
    while at < len(data):
        used, found = parser.feed(data[at : at + length], False)
        points += found
        largest = max(largest, length)
        length = CHUNK if used else 2 * length
        at += used
        parser = files.parser("tfevents", Stamp(), parser.state())  # a restart anywhere
    assert steps(points) == [1, 3, 5]
    assert largest <= LIMIT + CHUNK


def test_a_scalar_behind_a_large_image_in_one_record_is_found(tmp_path: Path) -> None:
    from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415
    from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415

    picture = Summary.Value(tag="p", image=Summary.Image(encoded_image_string=bytes(CHUNK)))
    summary = Summary(value=[picture, Summary.Value(tag="m", simple_value=1)])
    write(tmp_path, "tfevents", record(Event(step=1, wall_time=1.7e9, summary=summary).SerializeToString()))
    assert steps(read(source(tmp_path, "m"), tmp_path)) == [1]


tags = st.sampled_from(["m", "n", "mm", "run/m", "x" * 130])
floats = st.floats(width=32)
rows = st.lists(st.dictionaries(tags, floats, max_size=3), max_size=20)


@settings(deadline=None)
@given(rows, st.lists(st.integers(1, 200), max_size=20), st.data())
def test_pieces_and_restarts_change_nothing(
    series: list[dict[str, float]], sizes: list[int], data: st.DataObject
) -> None:
    text = version() + b"".join(event(step, **values) for step, values in enumerate(series))
    names = ("m", "run/m", "x" * 130)
    root = Path("/nowhere/run")
    expect = [
        (tag, step) for step, values in enumerate(series) for tag in values if tag in names or tag == "m"
    ]
    literal = any("run/m" in values for values in series)
    files = source(root, *names)
    files.decided({"run/m": literal})
    whole = feed_all(files.parser("tfevents", Stamp(), {}), text, sizes)
    if literal:
        assert [(p.name, p.step) for p in whole] == expect
    cut = data.draw(st.integers(0, len(text)))
    parser = files.parser("tfevents", Stamp(), {})
    used, first = parser.feed(text[:cut], False)
    rest = feed_all(files.parser("tfevents", Stamp(), parser.state()), text[used:])
    assert [*first, *rest] == whole


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows)
def test_any_scalars_are_read_as_tensorboard_reads_them(
    tmp_path: Path, series: list[dict[str, float]]
) -> None:
    path = write(tmp_path, "tfevents", *(event(step, **values) for step, values in enumerate(series)))
    names = ("m", "n", "mm", "x" * 130)
    points = read(source(tmp_path, *names), tmp_path)
    expect = as_tensorboard_reads(path)
    for name in names:
        mine = [(point.step, float(point.value)) for point in points if point.name == name]
        theirs = [(step, value) for step, _, value in expect.get(name, [])]
        assert _same(mine, theirs)
        assert len(mine) == len(theirs)


def _same(mine: list[tuple[int | None, float]], theirs: list[tuple[int, float]]) -> bool:
    """Compare step and float32: the text of one gives the float32 back, not its every digit as a double."""
    return [(step, struct.pack("<f", value)) for step, value in mine if not math.isnan(value)] == [
        (step, struct.pack("<f", value)) for step, value in theirs if not math.isnan(value)
    ]


@settings(deadline=None)
@given(rows, st.data())
def test_damage_anywhere_is_survived(series: list[dict[str, float]], data: st.DataObject) -> None:
    text = bytearray(version() + b"".join(event(step, **values) for step, values in enumerate(series)))
    for _ in range(data.draw(st.integers(1, 3))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    files = source(Path("/nowhere"), "m")
    points = feed_all(files.parser("tfevents", Stamp(), {}), bytes(text))
    good = [step for step, values in enumerate(series) if "m" in values]
    assert set(steps(points)) <= set(good)


@pytest.mark.parametrize("length", range(3, 24))
def test_a_short_record_with_the_tag_at_the_end_of_a_file(length: int) -> None:
    parser = source(Path("/nowhere"), "m").parser("tfevents", Stamp(), {})
    text = record(b"\x0a\x01m".ljust(length, b"\x80"))
    assert parser.feed(text, True) == (len(text), [])


@given(st.binary(max_size=400))
def test_any_record_is_read_without_an_error(data: bytes) -> None:
    files = source(Path("/nowhere"), "m")
    text = record(b"\x0a\x01m" + data) + record(data) + event(1, m=1)
    assert steps(feed_all(files.parser("tfevents", Stamp(), {}), text))[-1] == 1
