"""Files that are missing, late, rotated, truncated, replaced; segments; directories."""

import os
from pathlib import Path

import pytest

from collector import tail as tail_module
from collector.checkpoint import Checkpoint, Position
from collector.tail import FileTail, SegmentsTail, Tail, TreeTail
from collector.textfiles import TextFiles
from trialtap.argv import CollectorArgs


class TextTree(TextFiles):
    """Text files of a directory."""

    directory = True

    def accepts(self, path: str) -> bool:
        return path.endswith(".log")


ARGS = CollectorArgs(trial="t", metrics=("m",))


def values(tail: Tail, final: bool = False) -> list[str]:
    found = []
    while (chunk := tail.read(final)) is not None:
        found += [point.value for point in chunk.points]
    return found


def ordinals(tail: Tail) -> list[int]:
    found = []
    while (chunk := tail.read(False)) is not None:
        found += [chunk.first + i for i in range(len(chunk.points))]
    return found


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(str(tmp_path / "checkpoint"))


def again(checkpoint: Checkpoint, tmp_path: Path) -> Checkpoint:
    """Acknowledge all, save, and load as a collector that starts again does."""
    for stream in checkpoint.streams.values():
        stream.acked = stream.read
    checkpoint.save()
    loaded, wrong = Checkpoint.load(str(tmp_path / "checkpoint"))
    assert not wrong
    return loaded


def test_a_file_that_comes_late_is_read_as_it_grows(
    tmp_path: Path, checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "f"
    tail = FileTail(str(path), "f", TextFiles(ARGS), checkpoint)
    assert values(tail) == values(tail) == []
    path.write_text("m=1\nm=2\nm=")
    assert values(tail) == ["1", "2"]
    with path.open("a") as file:
        file.write("3\nm=4")
    assert values(tail) == ["3"]
    assert values(tail, final=True) == ["4"]
    assert capsys.readouterr().err.count("waiting for") == 1, "said once"


def test_what_was_there_before_training_is_not_read(tmp_path: Path, checkpoint: Checkpoint) -> None:
    path = tmp_path / "f"
    path.write_text("m=1\n")
    tail = FileTail(str(path), "f", TextFiles(ARGS), checkpoint, from_end=True)
    with path.open("a") as file:
        file.write("m=2\n")
    assert values(tail) == ["2"]


def test_a_file_that_comes_after_the_start_is_read_from_its_beginning(
    tmp_path: Path, checkpoint: Checkpoint
) -> None:
    path = tmp_path / "f"
    tail = FileTail(str(path), "f", TextFiles(ARGS), checkpoint, from_end=True)
    path.write_text("m=1\n")
    assert values(tail) == ["1"]


def test_a_rotated_file_is_finished_and_the_new_one_begun(
    tmp_path: Path, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    path.write_text("m=1\n")
    tail = FileTail(str(path), "f", TextFiles(ARGS), checkpoint)
    assert values(tail) == ["1"]
    first = checkpoint.streams["f"].id
    path.rename(tmp_path / "f.1")
    assert values(tail) == []
    with (tmp_path / "f.1").open("a") as file:
        file.write("m=2\nm=3")
    path.write_text("m=4\n")
    assert values(tail) == ["2"], "the writer may still hold the old file open"
    monkeypatch.setattr(tail_module, "SETTLE", 0.0)
    assert values(tail) == ["3", "4"]
    assert checkpoint.streams["f"].id != first
    assert [stream.id for stream in tail.finished] == [first]


def test_a_file_rotated_while_the_collector_was_down_is_finished_under_its_new_name(
    tmp_path: Path, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_module, "SETTLE", 0.0)
    path = tmp_path / "f"
    path.write_text("m=1\n")
    assert values(FileTail(str(path), "f", TextFiles(ARGS), checkpoint)) == ["1"]
    with path.open("a") as file:
        file.write("m=2\n")
    path.rename(tmp_path / "f.1")
    path.write_text("m=3\n")
    assert values(FileTail(str(path), "f", TextFiles(ARGS), again(checkpoint, tmp_path))) == ["2", "3"]


@pytest.mark.parametrize("new", ["m=7\n", "m=7\nm=8\nm=9\n"], ids=["shorter", "longer than before"])
def test_a_file_written_anew_is_read_from_its_start(tmp_path: Path, checkpoint: Checkpoint, new: str) -> None:
    path = tmp_path / "f"
    path.write_text("m=1\nm=2\n")
    tail = FileTail(str(path), "f", TextFiles(ARGS), checkpoint)
    assert values(tail) == ["1", "2"]
    first = checkpoint.streams["f"]
    path.write_text(new)
    assert values(tail) == [line[2:] for line in new.split()]
    assert checkpoint.streams["f"].id != first.id, "another generation is another stream"


def test_a_symlink_that_is_turned_to_another_file_is_followed(
    tmp_path: Path, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_module, "SETTLE", 0.0)
    (tmp_path / "a").write_text("m=1\n")
    (tmp_path / "b").write_text("m=2\n")
    link = tmp_path / "f"
    link.symlink_to("a")
    tail = FileTail(str(link), "f", TextFiles(ARGS), checkpoint)
    assert values(tail) == ["1"]
    (tmp_path / "new").symlink_to("b")
    (tmp_path / "new").rename(link)
    assert values(tail) == ["2"]
    assert set(tail.directories()) == {str(tmp_path)}


def test_a_directory_in_the_files_place_is_said_once_and_recovered_from(
    tmp_path: Path, checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "f"
    path.mkdir()
    tail = FileTail(str(path), "f", TextFiles(ARGS), checkpoint)
    assert values(tail) == values(tail) == []
    assert capsys.readouterr().err.count("is a directory") == 1
    path.rmdir()
    path.write_text("m=1\n")
    assert values(tail) == ["1"]


def test_a_fifo_in_the_files_place_blocks_nothing(tmp_path: Path, checkpoint: Checkpoint) -> None:
    os.mkfifo(tmp_path / "f")
    assert values(FileTail(str(tmp_path / "f"), "f", TextFiles(ARGS), checkpoint)) == []


def test_reading_goes_on_from_what_was_acknowledged(tmp_path: Path, checkpoint: Checkpoint) -> None:
    path = tmp_path / "f"
    path.write_text("m=1\nm=2\n")
    tail = FileTail(str(path), "f", TextFiles(ARGS), checkpoint)
    assert ordinals(tail) == [0, 1]
    before = checkpoint.streams["f"].id
    with path.open("a") as file:
        file.write("m=3\n")
    loaded = again(checkpoint, tmp_path)
    tail = FileTail(str(path), "f", TextFiles(ARGS), loaded)
    assert ordinals(tail) == [2]
    assert loaded.streams["f"].id == before


def test_rewinding_gives_the_same_ordinals(tmp_path: Path, checkpoint: Checkpoint) -> None:
    path = tmp_path / "f"
    path.write_text("m=1\nm=2\n")
    tail = FileTail(str(path), "f", TextFiles(ARGS), checkpoint)
    assert ordinals(tail) == [0, 1]
    stream = checkpoint.streams["f"]
    tail.rewind(stream, stream.marks[0])
    assert ordinals(tail) == [0, 1]


def segment(tmp_path: Path, number: int, text: str) -> None:
    with (tmp_path / f"out.{number:06d}").open("a") as file:
        file.write(text)


def segments(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in tmp_path.glob("out.*"))


def test_segments_are_one_stream(tmp_path: Path, checkpoint: Checkpoint) -> None:
    tail = SegmentsTail(f"{tmp_path}/out", TextFiles(ARGS), checkpoint)
    assert values(tail) == []
    segment(tmp_path, 1, "m=1\nm=")
    assert values(tail) == ["1"]
    segment(tmp_path, 1, "2\nm=3")
    segment(tmp_path, 2, "m=4\n")
    (tmp_path / "out.end").write_text("exit 0\n")
    assert values(tail) == ["2", "3", "4"], "a cut line of a tap that was killed ends with its segment"
    assert len(checkpoint.streams) == 1


def test_acknowledged_segments_are_unlinked_and_the_newest_stays(
    tmp_path: Path, checkpoint: Checkpoint
) -> None:
    tail = SegmentsTail(f"{tmp_path}/out", TextFiles(ARGS), checkpoint)
    for number in (1, 2, 3):
        segment(tmp_path, number, f"m={number}\n")
    assert values(tail) == ["1", "2", "3"]
    stream = tail.stream
    tail.acknowledged(stream)
    assert len(segments(tmp_path)) == 3, "nothing is acknowledged yet"
    stream.acked = stream.read
    tail.acknowledged(stream)
    assert segments(tmp_path) == ["out.000003"]
    assert [mark.segment for mark in stream.marks] == [3]


def test_segments_that_tap_removed_are_said_and_skipped(
    tmp_path: Path, checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    segment(tmp_path, 1, "m=1\n")
    tail = SegmentsTail(f"{tmp_path}/out", TextFiles(ARGS), checkpoint)
    assert values(tail) == ["1"]
    segment(tmp_path, 4, "m=4\n")
    assert values(tail) == ["4"]
    assert "segments 2 to 3" in capsys.readouterr().err


def test_a_cut_line_before_the_mark_of_missing_bytes_is_thrown_away(
    tmp_path: Path, checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    segment(tmp_path, 1, "m=1\nm=2\x1etrialtap missing 77\nm=3\n")
    assert values(SegmentsTail(f"{tmp_path}/out", TextFiles(ARGS), checkpoint)) == ["1", "3"]
    assert "77 bytes" in capsys.readouterr().err


def test_segments_go_on_after_a_restart(tmp_path: Path, checkpoint: Checkpoint) -> None:
    segment(tmp_path, 1, "m=1\n")
    tail = SegmentsTail(f"{tmp_path}/out", TextFiles(ARGS), checkpoint)
    assert ordinals(tail) == [0]
    segment(tmp_path, 1, "m=2\n")
    segment(tmp_path, 2, "m=3\n")
    assert ordinals(SegmentsTail(f"{tmp_path}/out", TextFiles(ARGS), again(checkpoint, tmp_path))) == [1, 2]


def test_a_tree_reads_every_file_that_the_source_accepts(tmp_path: Path, checkpoint: Checkpoint) -> None:
    root = tmp_path / "logs"
    (root / "a/b").mkdir(parents=True)
    (root / ".hidden").mkdir()
    (root / "old.log").write_text("m=0\n")
    tail = TreeTail(str(root), TextTree(ARGS), checkpoint, from_end=True)
    (root / "a/b/x.log").write_text("m=1\n")
    (root / "a/y.log").write_text("m=2\n")
    (root / "a/z.txt").write_text("m=3\n")
    (root / ".hidden/h.log").write_text("m=4\n")
    assert sorted(values(tail)) == ["1", "2"]
    (root / "c").mkdir()
    (root / "c/new.log").write_text("m=5\n")
    with (root / "old.log").open("a") as file:
        file.write("m=6\n")
    assert sorted(values(tail)) == ["5", "6"]
    assert str(root / "c") in tail.directories()
    assert len(checkpoint.streams) == 4


def test_a_tree_waits_for_its_directory(tmp_path: Path, checkpoint: Checkpoint) -> None:
    tail = TreeTail(str(tmp_path / "late"), TextTree(ARGS), checkpoint, from_end=True)
    assert values(tail) == []
    (tmp_path / "late").mkdir()
    (tmp_path / "late/x.log").write_text("m=1\n")
    assert values(tail) == ["1"]


def test_streams_of_one_checkpoint_have_ids_of_their_own(checkpoint: Checkpoint) -> None:
    begin = Position(0, 0, 0, {})
    ids = [checkpoint.begin(key, begin).id for key in ("a", "b", "a")]
    assert len(set(ids)) == 3
    assert all(id_.startswith(checkpoint.id) for id_ in ids)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 99}', '{"version": 1}', "\x00\xff"])
def test_a_damaged_checkpoint_is_begun_anew_and_said(tmp_path: Path, text: str) -> None:
    (tmp_path / "checkpoint").write_text(text)
    loaded, wrong = Checkpoint.load(str(tmp_path / "checkpoint"))
    assert loaded.fresh
    assert "begun anew" in wrong


def test_a_checkpoint_comes_back_as_it_was_saved(tmp_path: Path, checkpoint: Checkpoint) -> None:
    stream = checkpoint.begin("k", Position(2, 3, 4, {"form": "x"}), (5, 6))
    stream.head, stream.counted, stream.stamp.last, stream.ended = "ab", 9, 10, True
    checkpoint.rules, checkpoint.flags = {"met": []}, {"stop": "met"}
    checkpoint.save()
    loaded, wrong = Checkpoint.load(str(tmp_path / "checkpoint"))
    assert not wrong
    assert not loaded.fresh
    assert (loaded.id, loaded.numbers, loaded.rules, loaded.flags) == (
        checkpoint.id,
        1,
        {"met": []},
        {"stop": "met"},
    )
    assert loaded.streams["k"].save() == {**stream.save(), "inode": (5, 6)}
