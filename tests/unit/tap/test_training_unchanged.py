"""What the training sees and how it ends are as without tap."""

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.unit.tap.conftest import BUILDS, Copy, Tap

ENDS = {
    "success": ("exit 0", 0, {"exit": "0"}),
    "a failure": ("exit 3", 3, {"exit": "3"}),
    "death by KILL": ("kill -KILL $$", 137, {"signal": "9"}),
    "death by SEGV": ("ulimit -c 0; kill -SEGV $$", 139, {"signal": "11"}),
    "death by a real-time signal": ("kill -40 $$", 168, {"signal": "40"}),
}


@pytest.mark.parametrize("end", ENDS)
def test_its_exit_code_is_the_training_s_and_is_told_to_the_collector(
    placed: Tap, copy: Copy, end: str
) -> None:
    script, code, told = ENDS[end]
    # A forked shell, for as PID 1's child it may kill itself as everywhere else.
    done = placed.run(*copy.to, "--", "sh", "-c", f"echo before; {script}")
    assert (done.returncode, done.stdout, done.stderr) == (code, b"before\n", b"")
    assert copy.data() == b"before\n"
    assert told.items() <= copy.end().items()
    assert float(copy.end()["time"]) > 1.7e9
    assert copy.end()["stopped"] == "0"


CANNOT_RUN = {
    "not on the PATH": ("no-such-program", 127, b"tap: no-such-program: not found"),
    "not at its path": ("/no/such/program", 127, b"tap: /no/such/program: not found"),
    "a file without the right to execute": ("{tmp}/plain", 126, b"/plain: Permission denied"),
    "a directory": ("{tmp}", 126, b": Permission denied"),
    "a script whose interpreter is absent": ("{tmp}/script", 127, b"/script: not found, or the interpreter"),
}


@pytest.mark.parametrize("case", CANNOT_RUN)
def test_a_program_that_cannot_run_is_named_in_one_line(
    placed: Tap, copy: Copy, tmp_path: Path, case: str
) -> None:
    (tmp_path / "plain").write_text("echo hello\n")
    (tmp_path / "script").write_text("#!/no/such/interpreter\n")
    (tmp_path / "script").chmod(0o755)
    program, code, message = CANNOT_RUN[case]
    done = placed.run(*copy.to, "--", program.format(tmp=tmp_path))
    assert done.returncode == code
    assert message in done.stderr
    assert done.stderr.count(b"\n") == 1
    assert copy.data() == done.stderr


USAGE = {
    "no program": ([], b"no program to run"),
    "an unknown option": (["--frobnicate", "--", "true"], b"frobnicate"),
    "a grace that is no number": (["--grace", "soon", "--", "true"], b"--grace soon: a number from 0"),
    "a grace below nothing": (["--grace", "-1", "--", "true"], b"--grace -1: a number from 0"),
    "too little to keep": (["--keep", "1000", "--", "true"], b"--keep 1000: a number from 1048576"),
    "a path too long": (["--to", "/" * 5000, "--", "true"], b"--to: longer than a path"),
}


@pytest.mark.parametrize("case", USAGE)
def test_wrong_use_is_told_and_is_not_taken_for_the_training_s_own_failure(tap: Tap, case: str) -> None:
    arguments, message = USAGE[case]
    done = tap.run(*arguments)
    assert done.returncode == 125
    assert message in done.stderr


def test_help_names_every_option(tap: Tap) -> None:
    done = tap.run("--help")
    assert done.returncode == 0
    for option in (b"--to", b"--control", b"--grace", b"--keep", b"--wait-ready"):
        assert option in done.stdout


# What /proc says of the training itself: masks, dispositions, descriptors, and what it was given.
LOOK = """
grep -E '^Sig(Blk|Ign|Cgt)|^Seccomp|^NoNewPrivs|^Umask' /proc/self/status
ls /proc/self/fd | tr '\\n' ' '; echo; env | sort | grep -v '^_='; pwd; umask; ulimit -n; cat; echo "$0|$*"
"""
DISPOSITIONS = {
    "as a shell gives them": {"restore_signals": True},
    "PIPE and XFSZ ignored, as by Python": {"restore_signals": False},
    "a signal blocked": {
        "preexec_fn": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGTERM])
    },
    "CHLD and HUP ignored": {
        "preexec_fn": lambda: [signal.signal(s, signal.SIG_IGN) for s in (signal.SIGCHLD, signal.SIGHUP)]
    },
}


@pytest.mark.parametrize("given", DISPOSITIONS)
@pytest.mark.parametrize("options", ["copied", "controlled only"])
def test_it_gets_mask_dispositions_environment_directory_stdin_and_descriptors_as_they_were(
    tap: Tap, copy: Copy, tmp_path: Path, given: str, options: str
) -> None:
    os.mkfifo(copy.directory / "control")
    control = ["--control", str(copy.directory / "control")]
    argv = ["sh", "-c", LOOK, "a name", "two words", "", '"quoted" $HOME * \\']
    with (tmp_path / "inherited").open("w") as inherited:
        popen = dict(
            input=b"from stdin\n",
            capture_output=True,
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "A": "b c", "EMPTY": ""},
            pass_fds=[inherited.fileno()],
            timeout=60,
            check=False,
            **DISPOSITIONS[given],
        )
        without = subprocess.run(argv, **popen)
        arguments = [*(copy.to if options == "copied" else []), *control, "--", *argv]
        with_tap = subprocess.run(tap.argv(*arguments), **popen)
    assert with_tap.stdout == without.stdout
    assert b"from stdin" in with_tap.stdout
    assert (with_tap.stderr, with_tap.returncode) == (without.stderr, without.returncode) == (b"", 0)


@pytest.mark.parametrize("given", DISPOSITIONS)
def test_not_even_a_program_that_no_shell_stands_before_sees_other_signals(
    tap: Tap, copy: Copy, given: str
) -> None:
    look = ["grep", "^Sig[^Q]", "/proc/self/status"]  # shells set some of them themselves
    popen = dict(capture_output=True, timeout=60, check=True, **DISPOSITIONS[given])
    without, with_tap = (
        subprocess.run(look, **popen),
        subprocess.run(tap.argv(*copy.to, "--", *look), **popen),
    )
    assert with_tap.stdout == without.stdout != b""


def test_it_leads_its_process_group_as_the_first_process_of_a_container_does(tap: Tap, copy: Copy) -> None:
    done = tap.run(*copy.to, "--", "sh", "-c", 'set -- $(cat /proc/$$/stat); [ "$1" = "$5" ] && kill -TERM 0')
    assert done.returncode == 143
    assert copy.end()["signal"] == "15"


def test_without_a_copy_the_training_writes_to_the_very_streams_it_would_have(
    tap: Tap, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "control")
    look = ["sh", "-c", "for n in 0 1 2; do readlink /proc/$$/fd/$n; done"]
    with (tmp_path / "file").open("w") as file:
        subprocess.run(
            tap.argv("--control", str(tmp_path / "control"), "--", *look),
            stdin=file,
            stdout=file,
            stderr=file,
            check=True,
        )
    assert (tmp_path / "file").read_text() == f"{tmp_path}/file\n" * 3


@pytest.mark.parametrize("closed", ["0", "1", "2", "0 1 2"])
def test_closed_descriptors_are_opened_on_dev_null(tap: Tap, copy: Copy, closed: str) -> None:
    redirect = " ".join(f"{n}>&-" for n in closed.split())
    script = f'exec {redirect}; exec "$@"'
    inner = "for n in 0 1 2; do readlink /proc/$$/fd/$n; done; echo to-stderr >&2; exit 4"
    done = subprocess.run(
        ["sh", "-c", script, "sh", *tap.argv(*copy.to, "--", "sh", "-c", inner)],
        input=b"",
        capture_output=True,
        check=False,
    )
    assert done.returncode == 4
    seen = copy.data().decode().splitlines()
    assert "to-stderr" in seen
    assert (seen[0] == "/dev/null") == ("0" in closed)
    assert done.stdout == (
        b"" if "1" in closed else b"".join(line.encode() + b"\n" for line in seen if line != "to-stderr")
    )
    assert done.stderr == (b"" if "2" in closed else b"to-stderr\n")


def fill(fd: int) -> None:
    """Write until nobody can read it any more."""
    while os.write(fd, bytes(65536)):
        continue


def test_who_writes_to_the_training_s_stdin_learns_that_it_was_closed(tap: Tap, copy: Copy) -> None:
    running = tap.start(*copy.to, "--", "sh", "-c", "exec <&-; echo closed; sleep 30", stdin=subprocess.PIPE)
    assert running.stdout.readline() == b"closed\n"
    assert running.process.stdin
    with pytest.raises(BrokenPipeError):
        fill(running.process.stdin.fileno())
    running.process.terminate()
    assert running.wait() == 143


def test_an_inherited_descriptor_is_never_made_nonblocking(tap: Tap, copy: Copy) -> None:
    for make in (os.pipe, lambda: [end.detach() for end in socket.socketpair()]):
        reader, writer = make()
        running = tap.start(
            *copy.to,
            "--",
            "sh",
            "-c",
            "echo x; echo y >&2; read wait",
            stdout=writer,
            stderr=writer,
            stdin=subprocess.PIPE,
        )
        got = b""
        while got.count(b"\n") < 2:
            got += os.read(reader, 100)
        assert os.get_blocking(writer)
        running.process.communicate(b"\n", 30)
        os.close(reader)
        os.close(writer)


def test_orphans_are_reaped_while_the_training_runs(placed: Tap, copy: Copy) -> None:
    script = """
    for n in 1 2 3 4 5; do (sh -c 'exit 0' & ) ; done; sleep 0.3
    tap=$PPID; for child in $(cat /proc/$tap/task/$tap/children); do grep -H State /proc/$child/status; done
    """
    done = placed.run(*copy.to, "--", "sh", "-c", script)
    assert done.returncode == 0
    assert b"State" in done.stdout
    assert b"zombie" not in done.stdout


@pytest.mark.parametrize("binary", sorted({"static", "musl"} & BUILDS.keys()), indirect=True)
def test_the_program_is_static(binary: Path) -> None:
    headers = subprocess.run(["readelf", "--program-headers", binary], capture_output=True, check=True).stdout
    assert b"INTERP" not in headers
    assert b"DYNAMIC" not in headers
