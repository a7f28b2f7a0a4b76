"""The copy: whole lines of both streams, bounded on disk, and honest about what is missing."""

import os
import random
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.tap.conftest import Copy, Running, Tap


def until(condition: Callable[[], object]) -> None:
    """Wait for what comes soon."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.01)


def say(running: Running, data: bytes) -> None:
    """Have a training that is `cat` print `data`, and wait until it is in the log."""
    assert running.process.stdin
    running.process.stdin.write(data)
    running.process.stdin.flush()
    got = b""
    while len(got) < len(data):
        got += os.read(running.stdout.fileno(), 65536)
    assert got == data


def cat(tap: Tap, *options: str) -> Running:
    return tap.start(*options, "--", "cat", stdin=subprocess.PIPE)


def finish(running: Running) -> None:
    assert running.process.stdin
    running.process.stdin.close()
    assert running.wait() == 0


def test_100_000_lines_on_two_streams_arrive_none_lost_or_torn(placed: Tap, copy: Copy) -> None:
    script = "seq -f 'out %.0f of a line that is not short' 50000 & seq -f 'err %.0f' 50000 >&2; wait"
    done = placed.run(*copy.to, "--", "sh", "-c", script)
    out = [b"out %d of a line that is not short" % n for n in range(1, 50001)]
    err = [b"err %d" % n for n in range(1, 50001)]
    assert done.stdout.splitlines() == out
    assert done.stderr.splitlines() == err
    lines = copy.lines()
    assert len(lines) == 100_000
    assert [line for line in lines if line.startswith(b"o")] == out
    assert [line for line in lines if line.startswith(b"e")] == err
    assert copy.end()["written"] == str(len(copy.data()))


PRINTER = """
import json, os, sys, time
for stream, text, pause in json.load(open(sys.argv[1])):
    data = text.encode()
    while data: data = data[os.write(stream, data):]
    if pause: time.sleep(0.001)
"""


@pytest.mark.parametrize("seed", range(3))
def test_lines_of_any_length_and_end_cut_anywhere_stay_whole(
    tap: Tap, copy: Copy, python: list[str], tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    writes: list[tuple[int, str, bool]] = []
    texts = {1: "", 2: ""}
    for _ in range(200):
        stream = chance.choice([1, 2])
        length = chance.choice([0, 1, 10, 100, 5000, 60000])
        line = "oe"[stream - 1] * length + chance.choice(["\n", "\r", "\r\n"])
        texts[stream] += line
        while line:  # in several writes
            cut = chance.randint(1, len(line))
            writes.append((stream, line[:cut], chance.random() < 0.2))
            line = line[cut:]
    (tmp_path / "writes").write_text(__import__("json").dumps(writes))
    done = tap.run(*copy.to, "--", *python, PRINTER, str(tmp_path / "writes"))
    assert (done.stdout.decode(), done.stderr.decode()) == (texts[1], texts[2])
    # No line holds bytes of both streams, and each stream's lines are there, in order.
    lines = copy.data().replace(b"\r", b"\n").split(b"\n")
    assert all(len(set(line)) <= 1 for line in lines)
    for stream, letter in ((1, "o"), (2, "e")):
        expected = [line for line in texts[stream].replace("\r", "\n").split("\n") if line]
        assert [line.decode() for line in lines if line.startswith(letter.encode())] == expected


def test_64_kib_without_a_line_end_are_passed_on_as_they_are(tap: Tap, copy: Copy) -> None:
    done = tap.run(*copy.to, "--", "sh", "-c", "head -c 1000000 /dev/zero | tr '\\0' x; echo; echo after")
    assert done.stdout == b"x" * 1_000_000 + b"\nafter\n"
    assert copy.data() == done.stdout


def test_a_line_is_in_the_copy_while_the_training_runs_and_half_a_line_is_not(tap: Tap, copy: Copy) -> None:
    running = cat(tap, *copy.to)
    say(running, b"loss=0.5\r")  # a progress bar
    assert copy.data() == b"loss=0.5\r"
    say(running, b"loss=0.")
    assert copy.data() == b"loss=0.5\r"
    say(running, b"25\n")
    assert copy.data() == b"loss=0.5\rloss=0.25\n"
    assert not (copy.directory / "out.end").exists()
    finish(running)


def test_last_lines_without_an_end_do_not_become_one(tap: Tap, copy: Copy) -> None:
    done = tap.run(*copy.to, "--", "sh", "-c", "printf loss=0.1; printf '2 warnings' >&2")
    assert (done.stdout, done.stderr) == (b"loss=0.1", b"2 warnings")
    assert copy.lines() == [b"loss=0.1", b"2 warnings"]


def test_one_file_for_both_streams_keeps_one_order(tap: Tap, copy: Copy) -> None:
    script = "for n in 1 2 3 4 5 6 7 8 9; do echo o$n; echo e$n >&2; done"
    done = tap.run(*copy.to, "--", "sh", "-c", script, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    expected = b"".join(b"o%d\ne%d\n" % (n, n) for n in range(1, 10))
    assert done.stdout == copy.data() == expected


def daemon(program: str, pid_file: Path) -> str:
    """A shell's words that leave a daemon behind, and go on when it runs."""
    return f"setsid sh -c 'echo $$ > {pid_file}.new; mv {pid_file}.new {pid_file}; exec {program}' & until [ -e {pid_file} ]; do :; done"


def test_a_daemon_that_holds_the_pipe_does_not_hold_tap(placed: Tap, copy: Copy, tmp_path: Path) -> None:
    leave = daemon("sleep 1000", tmp_path / "daemon")
    done = placed.run(
        *copy.to, "--", "sh", "-c", f"{leave}; head -c 50000 /dev/zero; printf 'the last byte'; exit 3"
    )
    assert done.returncode == 3
    assert done.stdout == bytes(50000) + b"the last byte"
    assert copy.data() == done.stdout + b"\n"
    if not placed.place:  # PID 1's end ended it
        os.kill(int((tmp_path / "daemon").read_text()), signal.SIGKILL)


def test_an_orphan_that_writes_for_ever_does_not_hold_tap(placed: Tap, copy: Copy, tmp_path: Path) -> None:
    leave = daemon("yes", tmp_path / "daemon")
    done = placed.run(
        *copy.to, "--keep", "1048576", "--", "sh", "-c", f"{leave}; exit 3", stdout=subprocess.DEVNULL
    )
    assert done.returncode == 3  # and `yes` dies of the closed pipe


def test_a_reader_killed_in_the_middle_changes_nothing(tap: Tap, copy: Copy) -> None:
    running = cat(tap, *copy.to)
    say(running, b"one\n")
    with subprocess.Popen(["tail", "-c", "+1", "-f", copy.segments()[0]], stdout=subprocess.PIPE) as reader:
        assert reader.stdout
        assert reader.stdout.readline() == b"one\n"
        reader.kill()
    say(running, b"two\n")
    finish(running)
    assert copy.lines() == [b"one", b"two"]


def test_tap_started_again_goes_on_in_the_next_segment(tap: Tap, copy: Copy) -> None:
    assert tap.run(*copy.to, "--", "sh", "-c", "echo first; exit 1").returncode == 1
    assert copy.end()["segment"] == "1"
    (copy.directory / "out.000001").rename(copy.directory / "out.000009")
    (copy.directory / "out.12").touch()  # no segment, nor these
    (copy.directory / "out.0000xx").touch()
    (copy.directory / "out2.000077").touch()
    running = cat(tap, *copy.to)
    say(running, b"second\n")
    assert not (copy.directory / "out.end").exists()
    finish(running)
    assert (copy.directory / "out.000009").read_bytes() == b"first\n"
    assert (copy.directory / "out.000010").read_bytes() == b"second\n"
    assert copy.end().items() >= {"exit": "0", "segment": "10", "written": "7"}.items()


def test_a_tap_that_was_killed_leaves_whole_lines_and_no_end(tap: Tap, copy: Copy) -> None:
    running = cat(tap, *copy.to)
    say(running, b"whole\nhalf")
    running.process.kill()
    assert running.wait() == -signal.SIGKILL
    assert copy.data() == b"whole\n"
    assert not (copy.directory / "out.end").exists()
    tap.run(*copy.to, "--", "echo", "again")
    assert copy.lines() == [b"whole", b"again"]


def test_the_segments_may_be_read_by_any_user(tap: Tap, copy: Copy) -> None:
    tap.run(*copy.to, "--", "true", preexec_fn=lambda: os.umask(0o077))
    assert {path.name: path.stat().st_mode & 0o777 for path in copy.directory.iterdir()} == {
        "out.000001": 0o644,
        "out.end": 0o644,
    }


def test_the_copy_never_takes_more_than_keep(tap: Tap, copy: Copy) -> None:
    running = cat(tap, *copy.to, "--keep", "1048576")
    printed, most = b"", 0
    for n in range(80):
        block = b"%063d\n" % n * 700
        printed += block
        say(running, block)
        most = max(most, sum(path.stat().st_size for path in copy.segments()))
    finish(running)
    assert 1048576 // 2 < most <= 1048576
    kept = copy.data()
    assert printed.endswith(kept)
    assert len(kept) > 1048576 // 2
    numbers = [int(path.suffix[1:]) for path in copy.segments()]
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    removed = str(len(printed) - len(kept))
    assert copy.end().items() >= {"written": str(len(printed)), "missing": "0", "removed": removed}.items()


def test_what_an_earlier_tap_left_counts_towards_keep(tap: Tap, copy: Copy) -> None:
    for number in range(1, 6):
        (copy.directory / f"out.{number:06}").write_bytes(bytes(400_000))
    tap.run(*copy.to, "--keep", "1048576", "--", "echo", "new")
    assert [path.name for path in copy.segments()] == ["out.000005", "out.000006"]


def test_segments_that_the_collector_has_unlinked_are_not_missed(tap: Tap, copy: Copy) -> None:
    running = cat(tap, *copy.to, "--keep", "1048576")
    total = b""
    for n in range(40):
        block = b"%063d\n" % n * 1000
        say(running, block)
        *done, _ = copy.segments()
        for path in done:
            total += path.read_bytes()
            path.unlink()
    finish(running)
    assert total + copy.data() == b"".join(b"%063d\n" % n * 1000 for n in range(40))
    assert copy.end()["removed"] == "0"


def test_a_full_disk_pauses_the_copy_and_a_mark_says_how_much_is_missing(tap: Tap, small_disk: Path) -> None:
    copy = Copy(small_disk)
    (small_disk / "filler").write_bytes(bytes(150_000))
    running = cat(tap, *copy.to)
    printed = b""
    for n in range(200):
        block = b"%020d loss=0.125\n" % n * 100
        printed += block
        say(running, block)
    assert len(copy.data()) < len(printed)
    (small_disk / "filler").unlink()

    def resumed() -> bool:
        nonlocal printed
        printed += b"again\n"
        say(running, b"again\n")
        time.sleep(0.05)
        return copy.marked() > 0

    until(resumed)
    finish(running)
    end = copy.end()
    assert int(end["missing"]) == copy.marked()
    assert int(end["written"]) + int(end["missing"]) == len(printed)
    whole = set(printed.split(b"\n"))
    assert all(line in whole for line in copy.lines())
    assert copy.lines()[-1] == b"again"


def test_on_a_disk_full_to_the_end_the_end_still_comes_out(tap: Tap, small_disk: Path) -> None:
    copy = Copy(small_disk)
    script = "head -c 2000000 /dev/zero | tr '\\0' '\\n'; exit 3"
    done = tap.run(*copy.to, "--", "sh", "-c", script)
    assert (done.returncode, len(done.stdout)) == (3, 2_000_000)
    end = copy.end()
    assert end["exit"] == "3"
    assert int(end["written"]) == len(copy.data())
    assert int(end["written"]) + int(end["missing"]) == 2_000_000


def test_a_disk_full_from_the_start_leaves_the_training_alone(tap: Tap, small_disk: Path) -> None:
    with (small_disk / "filler").open("wb") as filler, pytest.raises(OSError, match="No space"):
        filler.write(bytes(300_000))
    done = tap.run("--to", f"{small_disk}/out", "--", "sh", "-c", "echo hello; exit 3")
    assert (done.returncode, done.stdout, done.stderr) == (3, b"hello\n", b"")


def test_a_file_size_limit_stops_the_copy_not_the_training(tap: Tap, copy: Copy) -> None:
    done = tap.run(
        *copy.to, "--", "sh", "-c", "seq 100000; exit 3",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )  # fmt: skip
    assert done.returncode == 3
    assert done.stdout.splitlines()[-1] == b"100000"
    end = copy.end()
    assert int(end["written"]) + int(end["missing"]) == len(done.stdout)


def test_a_directory_that_vanishes_and_comes_back(tap: Tap, copy: Copy) -> None:
    running = cat(tap, *copy.to)
    say(running, b"seen\n")
    shutil.rmtree(copy.directory)
    say(running, b"lost\n")
    copy.directory.mkdir()

    def resumed() -> bool:
        say(running, b"again\n")
        time.sleep(0.05)
        return bool(copy.segments())

    until(resumed)
    finish(running)
    assert copy.segments()[0].name == "out.000002"
    assert copy.marked() >= len(b"lost\n")
    assert copy.lines()[-1] == b"again"
    assert copy.end()["missing"] == str(copy.marked())


def test_a_directory_that_was_never_there_is_said_in_one_line(tap: Tap, tmp_path: Path) -> None:
    done = tap.run("--to", f"{tmp_path}/absent/out", "--", "sh", "-c", "echo hello; exit 3")
    assert (done.returncode, done.stdout) == (3, b"hello\n")
    assert done.stderr.startswith(
        f"tap: {tmp_path}/absent/out.000001: No such file or directory: the training goes on".encode()
    )
    assert done.stderr.count(b"\n") == 1


def test_a_prefix_without_a_directory_is_in_the_working_directory(tap: Tap, copy: Copy) -> None:
    for _ in range(2):
        tap.run("--to", "out", "--", "echo", "hello", cwd=copy.directory)
    assert [path.name for path in copy.segments()] == ["out.000001", "out.000002"]
