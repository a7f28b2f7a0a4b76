"""The CSV source by itself: no cluster, no database, no process."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from csv_collector import CsvSource

from collector.sdk import Args, Point


def source(path: Path, *metrics: str) -> CsvSource:
    return CsvSource(Args(trial="t", metrics=metrics, path=str(path)))


def look(path: Path, cursor: int | None = None, *metrics: str) -> list[Point]:
    """Give the points of one look, up to the first None."""
    points = []
    for point in source(path, *(metrics or ("loss", "acc"))).points(cursor):
        if point is None:
            return points
        points.append(point)
    raise AssertionError("it ended by itself")


def test_each_wanted_cell_is_a_point_with_the_rows_step(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text('epoch,note,loss,acc\n1,"a, b",0.5,0.1\n2,,0.4,\n')
    assert [(p.name, p.value, p.step) for p in look(path)] == [
        ("loss", "0.5", 1), ("acc", "0.1", 1), ("loss", "0.4", 2),
    ]  # fmt: skip


def test_only_a_rows_last_point_carries_the_cursor(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text("loss,acc\n1,2\n")
    assert [point.cursor for point in look(path)] == [None, path.stat().st_size]


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_reading_goes_on_behind_any_row(tmp_path: Path, rows: int) -> None:
    path = tmp_path / "m.csv"
    lines = ["loss\n", "1\n", "2\n", "3\n"]
    path.write_text("".join(lines))
    cursor = sum(map(len, lines[: rows + 1]))
    assert [point.value for point in look(path, cursor)] == ["1", "2", "3"][rows:]


def test_a_file_that_is_missing_or_half_written_gives_what_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    assert look(path) == []
    path.write_text("lo")
    assert look(path) == []
    path.write_text("loss\n1\n2")
    assert [point.value for point in look(path)] == ["1"]


def test_a_file_that_was_written_anew_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text("loss\n1\n")
    assert [point.value for point in look(path, 1000)] == ["1"]


def test_a_missing_path_is_a_configuration_that_cannot_work() -> None:
    with pytest.raises(ValueError, match="fileSystemPath"):
        CsvSource(Args(trial="t", metrics=("loss",)))
