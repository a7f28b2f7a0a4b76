"""The container's own log: raw bytes at once, in order, and what happens when nobody takes them."""

import fcntl
import os
import pty
import signal
import socket
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.tap.conftest import Copy, Tap

Ends = tuple[int, int]

LOGS: dict[str, Callable[[], Ends]] = {
    # A pipe can be opened again, so tap writes without blocking; a socket cannot, so it polls first.
    "a pipe": os.pipe,
    "a socket": lambda: tuple(end.detach() for end in socket.socketpair()),  # type: ignore[return-value]
}


@pytest.fixture(params=LOGS)
def log(request: pytest.FixtureRequest) -> Iterator[Ends]:
    """A log's two ends: to read, to write."""
    reader, writer = LOGS[request.param]()
    yield reader, writer
    for fd in (reader, writer):
        try:
            os.close(fd)
        except OSError:
            continue  # the test closed it


def read_all(fd: int) -> bytes:
    got = b""
    while piece := os.read(fd, 1 << 20):
        got += piece
    return got


def test_bytes_of_any_kind_pass_unchanged(tap: Tap, copy: Copy, log: Ends, tmp_path: Path) -> None:
    reader, writer = log
    data = bytes(range(256)) * 4096
    (tmp_path / "data").write_bytes(data)
    running = tap.start(*copy.to, "--", "cat", str(tmp_path / "data"), stdout=writer)
    os.close(writer)
    assert read_all(reader) == data
    assert running.wait() == 0
    assert copy.data().removesuffix(b"\n") == data.removesuffix(b"\n")


def test_a_plain_file_opened_to_append_takes_it_too(tap: Tap, copy: Copy, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"before\n")
    with (tmp_path / "log").open("ab") as log:
        assert tap.run(*copy.to, "--", "seq", "50000", stdout=log).returncode == 0
    assert (tmp_path / "log").read_bytes() == b"before\n" + copy.data()


def test_a_log_that_blocks_blocks_the_training_and_loses_nothing(tap: Tap, copy: Copy, log: Ends) -> None:
    reader, writer = log
    running = tap.start(*copy.to, "--", "seq", "300000", stdout=writer)
    os.close(writer)
    time.sleep(0.3)
    assert running.process.poll() is None
    assert len(copy.data()) < 1_000_000
    expected = b"".join(b"%d\n" % n for n in range(1, 300_001))
    assert read_all(reader) == expected
    assert running.wait() == 0
    assert copy.data() == expected


def test_the_other_stream_and_signals_pass_while_one_blocks(tap: Tap, copy: Copy, log: Ends) -> None:
    _, writer = log
    script = "trap 'echo caught >&2; exit 7' TERM; echo ready >&2; yes & while :; do sleep 0.02; echo alive >&2; done"
    running = tap.start(*copy.to, "--", "sh", "-c", script, stdout=writer, stderr=subprocess.PIPE)
    assert running.process.stderr
    assert running.process.stderr.readline() == b"ready\n"
    time.sleep(0.2)
    for _ in range(3):
        assert running.process.stderr.readline() == b"alive\n"
    running.process.terminate()
    assert b"caught\n" in running.process.stderr.read()
    assert running.wait() == 7  # after the seconds that a blocked log may take, not never
    assert b"caught" in copy.lines()
    assert copy.end()["exit"] == "7"


def test_what_the_log_did_not_take_in_time_is_in_the_copy(tap: Tap, copy: Copy, log: Ends) -> None:
    _, writer = log
    script = "head -c 250000 /dev/zero | tr '\\0' x & sleep 0.3; printf '\\nthe last line\\n' >&2; kill -KILL $!; exit 3"
    running = tap.start(*copy.to, "--", "sh", "-c", script, stdout=writer, stderr=subprocess.PIPE)
    assert running.wait() == 3
    assert b"the last line" in copy.data()
    # All that was in the pipe when the training ended, besides what tap had read.
    assert copy.data().count(b"x") >= 65536


@pytest.mark.parametrize("which", ["stdout", "stderr"])
def test_a_log_that_was_closed_does_not_stop_the_training(
    placed: Tap, copy: Copy, log: Ends, which: str
) -> None:
    reader, writer = log
    redirect = ">&2" if which == "stderr" else ""
    running = placed.start(
        *copy.to,
        "--",
        "sh",
        "-c",
        f"read go; seq 100000 {redirect}; exit 3",
        stdin=subprocess.PIPE,
        **{which: writer},
    )
    os.close(writer)
    os.close(reader)
    running.process.communicate(b"go\n", 60)
    assert running.wait() == 3
    assert copy.lines() == [b"%d" % n for n in range(1, 100_001)]


def test_a_log_that_is_closed_in_the_middle_does_not_stop_the_training(
    tap: Tap, copy: Copy, log: Ends
) -> None:
    reader, writer = log
    running = tap.start(*copy.to, "--", "seq", "300000", stdout=writer)
    os.close(writer)
    assert os.read(reader, 100).startswith(b"1\n2\n")
    os.close(reader)
    assert running.wait() == 0
    assert copy.lines()[-1] == b"300000"


def test_a_log_on_a_full_disk_does_not_stop_the_training(tap: Tap, copy: Copy) -> None:
    with Path("/dev/full").open("wb") as full:
        done = tap.run(*copy.to, "--", "sh", "-c", "seq 1000; exit 3", stdout=full)
    assert done.returncode == 3
    assert len(copy.lines()) == 1000


def test_a_nonblocking_log_loses_nothing(tap: Tap, copy: Copy) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    running = tap.start(*copy.to, "--", "seq", "300000", stdout=writer)
    os.close(writer)
    assert read_all(reader) == b"".join(b"%d\n" % n for n in range(1, 300_001))
    assert running.wait() == 0
    os.close(reader)


class Terminal:
    """A pseudo-terminal that a program may have as its controlling one."""

    def __init__(self) -> None:
        self.master, self.slave = pty.openpty()

    def own(self) -> None:
        """In the new process: a session whose terminal this is, as a container with `tty: true` has."""
        os.setsid()
        fcntl.ioctl(self.slave, termios.TIOCSCTTY, 0)

    def read_until(self, text: bytes) -> bytes:
        got = b""
        while text not in got:
            got += os.read(self.master, 65536)
        return got

    def read_all(self) -> bytes:
        got = b""
        while True:
            try:
                got += os.read(self.master, 65536)
            except OSError:  # the last writer has gone
                return got


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    os.close(terminal.master)


def test_on_a_terminal_there_is_one_stream_and_the_training_is_in_its_foreground(
    placed: Tap, copy: Copy, terminal: Terminal
) -> None:
    script = """
    set -- $(cat /proc/$$/stat); [ "$5" = "$8" ] && echo foreground
    for n in 1 2 3 4 5; do echo o$n; echo e$n >&2; done
    read line </dev/tty; echo "read $line"; exit 3
    """
    slave = terminal.slave
    running = placed.start(
        *copy.to, "--", "sh", "-c", script, stdin=slave, stdout=slave, stderr=slave, preexec_fn=terminal.own
    )
    os.close(slave)
    got = terminal.read_until(b"e5\r\n")
    os.write(terminal.master, b"typed\n")
    assert running.wait() == 3
    got += terminal.read_all()
    order = b"".join(b"o%d\r\ne%d\r\n" % (n, n) for n in range(1, 6))
    assert b"foreground\r\n" + order in got
    assert b"read typed\r\n" in got
    assert copy.data() == b"foreground\n" + order.replace(b"\r", b"") + b"read typed\n"


def test_an_interrupt_key_reaches_the_training_once(
    placed: Tap, copy: Copy, terminal: Terminal, python: list[str]
) -> None:
    program = """
import signal, sys, time
count = []
signal.signal(signal.SIGINT, lambda *_: count.append(1))
print("ready", flush=True)
deadline = time.monotonic() + 20
while not count and time.monotonic() < deadline: time.sleep(0.01)
time.sleep(0.2)
sys.exit(len(count))
"""
    slave = terminal.slave
    running = placed.start(
        *copy.to, "--", *python, program, stdin=slave, stdout=slave, stderr=slave, preexec_fn=terminal.own
    )
    os.close(slave)
    terminal.read_until(b"ready")
    os.write(terminal.master, b"\x03")
    assert running.wait() == 1


def test_a_terminal_that_blocks_holds_neither_signals_nor_the_end(
    tap: Tap, copy: Copy, terminal: Terminal
) -> None:
    slave = terminal.slave
    running = tap.start(
        *copy.to,
        "--",
        "yes",
        "a line that fills it",
        stdin=slave,
        stdout=slave,
        stderr=slave,
        preexec_fn=terminal.own,
    )
    os.close(slave)
    while len(copy.data()) < 8192:
        time.sleep(0.01)
    time.sleep(0.2)
    running.process.terminate()
    assert running.wait() == 128 + signal.SIGTERM
    assert copy.end()["signal"] == "15"
