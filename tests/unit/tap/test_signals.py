"""Signals reach the training and only it; an early stop ends everything below it; --wait-ready waits."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.tap.conftest import Copy, Running, Tap, children

# The training takes each signal as it comes; its own child has all of them blocked, so that one that
# reached it would stay pending for all to see.
TRAINING = """
import os, signal, sys
everything = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
signal.pthread_sigmask(signal.SIG_BLOCK, everything)
child = os.fork()
if not child:
    signal.sigwaitinfo({signal.SIGALRM})
    os._exit(0)
print("ready", flush=True)
while (got := signal.sigwaitinfo(everything).si_signo) != signal.SIGRTMAX:
    print(int(got), flush=True)
status = open(f"/proc/{child}/status").read().splitlines()
print([line for line in status if line.startswith(("SigPnd", "ShdPnd")) and int(line.split()[1], 16)], flush=True)
os.kill(child, signal.SIGKILL)
"""
CATCHABLE = [s for s in range(1, 65) if s not in {signal.SIGKILL, signal.SIGSTOP}]
RESERVED = [32, 33]  # by the C libraries: no program of theirs can wait for them


def test_every_signal_reaches_the_training_and_only_it(placed: Tap, copy: Copy, python: list[str]) -> None:
    running = placed.start(*copy.to, "--", *python, TRAINING)
    assert running.stdout.readline() == b"ready\n"
    tap = running.pid
    for number in CATCHABLE:
        if number not in {*RESERVED, signal.SIGRTMAX}:
            os.kill(tap, number)
            assert running.stdout.readline() == b"%d\n" % number
    os.kill(tap, signal.SIGRTMAX)
    assert running.stdout.readline() == b"[]\n"
    assert running.wait() == 0


def ignored_here(number: int) -> bool:
    """Whether this process, and so each that it starts, ignores a signal; Python cannot ask that of 32 and 33."""
    found = re.search(r"^SigIgn:\s*(\w+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found
    return bool(int(found[1], 16) >> (number - 1) & 1)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGABRT, *RESERVED, signal.SIGRTMIN, signal.SIGRTMAX]
)
def test_the_training_dies_of_a_signal_that_tap_got(placed: Tap, copy: Copy, number: int) -> None:
    running = placed.start(*copy.to, "--", "sh", "-c", "ulimit -c 0; echo ready; exec sleep 1000")
    assert running.stdout.readline() == b"ready\n"
    os.kill(running.pid, number)
    if ignored_here(
        number
    ):  # whoever started these tests ignores it, and so does the training, with tap or without
        time.sleep(0.2)
        assert running.process.poll() is None
        number = signal.SIGTERM
        os.kill(running.pid, number)
    assert running.wait() == 128 + number
    assert copy.end()["signal"] == str(int(number))


def test_a_stopped_training_is_no_ended_one(tap: Tap, copy: Copy) -> None:
    running = tap.start(
        *copy.to, "--", "sh", "-c", "echo ready; read line; echo $line", stdin=subprocess.PIPE
    )
    assert running.stdout.readline() == b"ready\n"
    (training,) = children(running.pid)
    os.kill(training, signal.SIGSTOP)
    time.sleep(0.2)
    assert running.process.poll() is None
    os.kill(running.pid, signal.SIGCONT)  # passed on like any other
    out, _ = running.process.communicate(b"went on\n", 30)
    assert (out, running.wait()) == (b"went on\n", 0)


# ---- Early stop ----


@pytest.fixture
def control(copy: Copy) -> Iterator[int]:
    """The FIFO as the collector makes it, open as the collector has it."""
    path = copy.directory / "control"
    os.mkfifo(path)
    path.chmod(0o666)
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    yield fd
    os.close(fd)


def controlled(tap: Tap, copy: Copy, grace: str, script: str) -> Running:
    options = [*copy.to, "--control", str(copy.directory / "control"), "--grace", grace]
    return tap.start(*options, "--", "sh", "-c", script, stdin=subprocess.PIPE)


def test_a_byte_ends_the_training_by_term_and_the_exit_code_is_0(
    placed: Tap, copy: Copy, control: int
) -> None:
    running = controlled(
        placed, copy, "1000", "trap 'echo saved; exit 5' TERM; echo ready; while :; do sleep 0.02; done"
    )
    assert running.stdout.readline() == b"ready\n"
    os.write(control, b"s")
    assert running.stdout.read() == b"saved\n"
    assert running.wait() == 0
    assert copy.end().items() >= {"exit": "5", "stopped": "1", "missing": "0"}.items()
    assert copy.lines() == [b"ready", b"saved"]


# A launcher whose workers have sessions of their own, with workers below them, none of which heeds TERM.
LAUNCHER = """
trap '' TERM
for n in 1 2 3; do
  setsid sh -c "trap '' TERM; setsid sh -c 'trap \\"\\" TERM; echo worker; while :; do sleep 1; done' & while :; do sleep 1; done" &
done
while :; do sleep 1; done
"""


def test_after_the_grace_every_descendant_is_killed_whatever_its_session(
    placed: Tap, copy: Copy, control: int
) -> None:
    running = controlled(placed, copy, "0.3", LAUNCHER)
    for _ in range(3):
        assert running.stdout.readline() == b"worker\n"
    below = descendants(running.pid)
    assert len(below) >= 7
    os.write(control, b"s")
    assert running.wait() == 0
    assert copy.end().items() >= {"signal": "9", "stopped": "1"}.items()
    assert [pid for pid in below if is_running(pid)] == []


def test_when_the_training_heeds_term_its_descendants_do_not_outlive_it(
    placed: Tap, copy: Copy, control: int
) -> None:
    running = controlled(
        placed,
        copy,
        "1000",
        "setsid sh -c 'setsid sleep 1000 & exec sleep 1000' & echo ready; exec sleep 1000",
    )
    assert running.stdout.readline() == b"ready\n"
    while len(below := descendants(running.pid)) < 3:
        time.sleep(0.01)
    os.write(control, b"s")
    assert running.wait() == 0
    assert copy.end()["signal"] == "15"
    assert [pid for pid in below if is_running(pid)] == []


def test_without_a_stop_descendants_in_a_shared_process_namespace_are_left_alone(
    tap: Tap, copy: Copy
) -> None:
    done = tap.run(*copy.to, "--", "sh", "-c", "setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $!")
    assert is_running(int(done.stdout))
    os.kill(int(done.stdout), signal.SIGKILL)


def test_a_stop_without_a_copy_works_the_same(placed: Tap, copy: Copy, control: int) -> None:
    running = placed.start(
        "--control", str(copy.directory / "control"), "--", "sh", "-c", "echo ready; exec sleep 1000"
    )
    assert running.stdout.readline() == b"ready\n"
    os.write(control, b"s")
    assert running.wait() == 0
    assert [path.name for path in copy.directory.iterdir()] == ["control"]


def test_a_stop_that_comes_after_the_training_s_own_end_does_not_hide_its_exit_code(
    tap: Tap, copy: Copy, control: int
) -> None:
    # The log blocks, so that tap lingers when the training has gone.
    reader, writer = os.pipe()
    script = f"head -c 200000 /dev/zero & sleep 0.2; kill -KILL $!; echo gone > {copy.directory}/gone; exit 3"
    options = [*copy.to, "--control", str(copy.directory / "control")]
    running = tap.start(*options, "--", "sh", "-c", script, stdout=writer)
    while not (copy.directory / "gone").exists():
        time.sleep(0.01)
    time.sleep(0.1)
    os.write(control, b"s")
    assert running.wait() == 3
    assert copy.end().items() >= {"exit": "3", "stopped": "0"}.items()
    os.close(reader)
    os.close(writer)


def test_of_a_stop_and_an_end_that_are_found_together_the_end_counts(
    tap: Tap, copy: Copy, control: int
) -> None:
    running = controlled(tap, copy, "5", "echo ready; read line; exit 3")
    assert running.stdout.readline() == b"ready\n"
    (training,) = children(running.pid)
    os.kill(running.pid, signal.SIGSTOP)
    os.kill(training, signal.SIGKILL)
    while is_running(training):
        time.sleep(0.01)
    os.write(control, b"s")
    os.kill(running.pid, signal.SIGCONT)
    assert running.wait() == 128 + signal.SIGKILL
    assert copy.end().items() >= {"signal": "9", "stopped": "0"}.items()


def test_a_stop_asked_for_before_the_start_is_heeded(placed: Tap, copy: Copy, control: int) -> None:
    os.write(control, b"s")
    assert controlled(placed, copy, "5", "exec sleep 1000").wait() == 0


def test_a_second_byte_does_not_lengthen_the_grace(tap: Tap, copy: Copy, control: int) -> None:
    running = controlled(tap, copy, "0.5", "trap '' TERM; echo ready; while :; do sleep 1; done")
    assert running.stdout.readline() == b"ready\n"
    while running.process.poll() is None:
        try:
            os.write(control, b"s")
        except BlockingIOError:
            continue
        time.sleep(0.05)
    assert running.wait() == 0


def test_a_stop_while_the_log_blocks_ends_the_training(tap: Tap, copy: Copy, control: int) -> None:
    reader, writer = os.pipe()
    options = [*copy.to, "--control", str(copy.directory / "control")]
    running = tap.start(*options, "--", "yes", stdout=writer)
    while not copy.data():
        time.sleep(0.01)
    os.write(control, b"s")
    assert running.wait() == 0
    os.close(reader)
    os.close(writer)


def test_the_collector_s_death_does_not_stop_the_training(tap: Tap, copy: Copy) -> None:
    os.mkfifo(copy.directory / "control")
    running = controlled(tap, copy, "5", "echo ready; read line; echo $line; exit 3")
    collector = os.open(copy.directory / "control", os.O_RDWR)
    assert running.stdout.readline() == b"ready\n"
    os.close(collector)
    running.process.communicate(b"goes on\n", 30)
    assert running.wait() == 3
    assert copy.lines() == [b"ready", b"goes on"]


NO_CONTROL = {"absent": "No such file or directory", "a plain file": "not a FIFO"}


@pytest.mark.parametrize("what", NO_CONTROL)
def test_without_its_fifo_the_training_runs_and_one_line_says_so(tap: Tap, copy: Copy, what: str) -> None:
    path = copy.directory / "control"
    if what == "a plain file":
        path.write_text("not a FIFO")
    done = tap.run(*copy.to, "--control", str(path), "--", "sh", "-c", "echo hello; exit 3")
    assert (done.returncode, done.stdout) == (3, b"hello\n")
    assert (
        done.stderr
        == f"tap: {path}: {NO_CONTROL[what]}: the training runs, but cannot be stopped early\n".encode()
    )


def descendants(pid: int) -> list[int]:
    """Every process below one, children first."""
    below = children(pid)
    for child in list(below):
        below += descendants(child)
    return below


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# ---- --wait-ready ----


def test_wait_ready_ends_when_the_collector_has_placed_tap(tap: Tap, tmp_path: Path) -> None:
    environment = {**os.environ, "TRIALTAP_DIRECTORY": str(tmp_path)}
    (tmp_path / "tap").write_text("")  # not executable: not ready
    (tmp_path / "new").write_text("")
    (tmp_path / "new").chmod(0o755)
    waiting = tap.start("--wait-ready", env=environment)
    time.sleep(0.1)
    assert waiting.process.poll() is None
    (tmp_path / "new").rename(tmp_path / "tap")
    assert waiting.wait() == 0
    assert tap.run("--wait-ready", env=environment).returncode == 0


def test_wait_ready_gives_up_with_one_line(tap: Tap, tmp_path: Path) -> None:
    done = tap.run("--wait-ready", env={**os.environ, "TRIALTAP_DIRECTORY": str(tmp_path)})
    assert done.returncode == 1
    assert done.stderr.startswith(f"tap: {tmp_path}/tap: not there after ".encode())
    assert done.stderr.count(b"\n") == 1
