"""Text, default pattern: MB per CPU second against a Go program that does what Katib's collector does."""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from collector.checkpoint import Checkpoint
from collector.tail import FileTail
from collector.textfiles import TextFiles
from trialtap.argv import CollectorArgs

HERE = Path(__file__).parent
PAD = "the quick brown fox jumps over the lazy dog and writes a log line of some length, as trainings do "


def write(path: Path, lines: int, matches: int, decorated: bool) -> None:
    """Write lines of 108 bytes of which so many hold a metric; decorated: CR, colours, a time on each."""
    every = max(1, lines // matches)
    with path.open("w") as file:
        for i in range(lines):
            metric = f"loss={i / lines:.6f} " if i % every == 0 else "nothing of note "
            line = metric + PAD
            if decorated:
                line = f"2024-01-01T00:{i // 60 % 60:02d}:{i % 60:02d}Z \x1b[32m{line}"[:101] + "\x1b[0m\r"
            file.write(line[:107] + "\n")


def peak() -> float:
    """Give the most memory that this process has had, in MiB."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024


def ours(path: Path, filters: tuple[str, ...] = ()) -> tuple[float, int, float]:
    """Read it through the tail: CPU seconds, points, MiB of memory that it took."""
    args = CollectorArgs(trial="t", metrics=("loss",), filters=filters)
    with tempfile.TemporaryDirectory() as folder:
        before = peak()
        began = time.process_time()
        tail = FileTail(str(path), "f", TextFiles(args), Checkpoint(f"{folder}/c"))
        points = 0
        while (chunk := tail.read(True)) is not None:
            points += len(chunk.points)
        spent = time.process_time() - began
    return spent, points, peak() - before


def alone(path: Path, filters: tuple[str, ...] = ()) -> tuple[float, int, float]:
    """Do it in a process of its own, so that memory is its own."""
    argv = [sys.executable, __file__, "--one", str(path), *filters]
    seconds, points, memory = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split()
    return float(seconds), int(points), float(memory)


def peer(folder: Path) -> Callable[[Path], tuple[float, int, float]] | None:
    """Build the Go program; None where there is no Go."""
    if shutil.which("go") is None:
        return None
    binary = folder / "peer"
    environment = {**os.environ, "GO111MODULE": "off", "GOCACHE": str(folder / "cache")}
    subprocess.run(
        ["go", "build", "-o", str(binary), str(HERE / "text_peer.go")], check=True, env=environment
    )

    def run(path: Path) -> tuple[float, int, float]:
        process = subprocess.Popen([str(binary), str(path), "loss"], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        points = int(process.stdout.read())
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0
        return usage.ru_utime + usage.ru_stime, points, usage.ru_maxrss / 1024

    return run


def main() -> None:
    """Print one line a case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--one", nargs="+", help="read one file, print seconds, points and MiB")
    options = parser.parse_args()
    if options.one:
        print(*ours(Path(options.one[0]), tuple(options.one[1:])))
        return
    cases = [
        ("200,000 matches", 5, False, (), 1.0, 0),
        ("10,000 matches", 100, False, (), 2.5, 0),
        ("CR, colours, times", 5, True, (), 0, 40),
        ("own pattern", 5, False, (r"([\w|-]+)\s*=\s*([0-9.]+)",), 0, 50),
        ("own pattern, 10,000", 100, False, (r"([\w|-]+)\s*=\s*([0-9.]+)",), 0, 50),
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        go = peer(folder)
        for title, every, decorated, filters, ratio, speed in cases:
            path = folder / "log"
            write(path, options.lines, options.lines // every, decorated)
            size = path.stat().st_size / 1e6
            seconds, points, memory = min(alone(path, filters) for _ in range(3))
            text = f"{title:22} {size / seconds:6.0f} MB/s  {points} points  +{memory:.1f} MiB"
            if speed:
                text += f"  to reach {speed} MB/s"
            if ratio and go is not None:
                theirs, found, their_memory = min(go(path) for _ in range(3))
                text += f"  Go {size / theirs:.0f} MB/s {their_memory:.0f} MiB {found} points: {theirs / seconds:.2f} times (to reach {ratio})"
            print(text, flush=True)


if __name__ == "__main__":
    main()
