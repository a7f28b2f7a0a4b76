"""Event files: MB per CPU second of our parser, against TensorBoard's loader over the same file in the same run.

    .venv/bin/python bench/tfevents.py [--records N] [--tensorflow PYTHON]

`--tensorflow` names the python of an environment that holds tensorflow and tensorboard: its EventAccumulator
then reads with TensorFlow's own record reader. Without it the peer is TensorBoard's reader in pure Python.
"""

import argparse
import random
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

TAGS = ("loss", "accuracy", "val/loss", "val/accuracy", "lr")

PEAK = """
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
"""
OURS = """
import os, sys, time
from collector.eventfiles import CHUNK, EventFiles
from collector.source import Stamp
from trialtap.argv import CollectorArgs
path, tag, check_all = sys.argv[1], sys.argv[2], sys.argv[3] == "all"
files = EventFiles(CollectorArgs(trial="t", metrics=(tag,), path=path))
files.check_all = check_all
bare = peak()
parser = files.parser("tfevents", Stamp(), {})
fd = os.open(path, os.O_RDONLY)
size, at, points = os.fstat(fd).st_size, 0, 0
begin = time.process_time()
while at < size:
    used, found = parser.feed(os.pread(fd, CHUNK, at), False)
    points += len(found)
    at += used
    if not used:
        break
took = time.process_time() - begin
print(took, points, peak() / 1024, bare / 1024)
"""

PEER = """
import sys, time
from tensorboard.backend.event_processing import event_accumulator
path, tag = sys.argv[1:3]
begin = time.process_time()
reader = event_accumulator.EventAccumulator(path, size_guidance={event_accumulator.SCALARS: 0})
reader.Reload()
points = len(reader.Scalars(tag)) if tag in reader.Tags()["scalars"] else len(reader.Tensors(tag))
print(time.process_time() - begin, points, peak() / 1024, 0)
"""


def scalars(path: Path, records: int) -> None:
    """Write `records` scalars of five tags in turn, as torch's writer does."""
    from tests.support.eventfiles import event, version  # noqa: PLC0415

    with path.open("wb") as file:
        file.write(version())
        for number in range(records):
            values = {TAGS[number % 5]: random.random()}
            file.write(event(number // 5, 1.7e9 + number / 10, **values))


def images(path: Path, megabytes: int, size: int) -> None:
    """Write scalars among images of `size` bytes, which are 90% of the file."""
    from tests.support.eventfiles import event, image, version  # noqa: PLC0415

    each = len(event(1, loss=0.5))
    with path.open("wb") as file:
        file.write(version())
        picture = image(1, size)
        for number in range(megabytes * 1_000_000 * 9 // 10 // size):
            file.write(picture)
            for turn in range(size // 9 // each):
                file.write(event(number, **{TAGS[turn % 5]: random.random()}))


def run(python: str, program: str, *args: str) -> tuple[float, int, float, float]:
    """Run a reader in a process of its own: CPU seconds, points, peak MiB, MiB before reading."""
    out = subprocess.run(
        [python, "-c", PEAK + program, *args], check=True, capture_output=True, text=True
    ).stdout
    took, points, peak, bare = out.split()[-4:]
    return float(took), int(points), float(peak), float(bare)


def main() -> None:
    """Write the files, read them, print ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--peer-records", type=int, default=100_000, help="the peer reads a shorter file")
    parser.add_argument("--tensorflow", default="", metavar="PYTHON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trialtap-bench-") as folder:
        path, short, mixed = (Path(folder, name) for name in ("a.tfevents", "b.tfevents", "c.tfevents"))
        scalars(path, options.records)
        scalars(short, options.peer_records)
        images(mixed, 400, 500_000)
        speeds = {}
        for label, file, check in (
            ("scalars, checksums of lengths and hits", path, "hits"),
            ("scalars, all checksums", path, "all"),
            ("90% images", mixed, "hits"),
        ):
            took, points, peak, bare = min(
                run(sys.executable, OURS, str(file), "loss", check) for _ in range(3)
            )
            speeds[label] = file.stat().st_size / 1e6 / took
            print(
                f"{label}: {speeds[label]:.0f} MB/s, {points} points, {peak:.1f} MiB at most ({bare:.1f} before)"
            )
        python = options.tensorflow or sys.executable
        took, points, peak, _ = run(python, PEER, str(short), "loss")
        peer = short.stat().st_size / 1e6 / took
        name = "EventAccumulator with TensorFlow" if options.tensorflow else "EventAccumulator, pure Python"
        ours = speeds["scalars, checksums of lengths and hits"]
        print(
            f"{name}: {peer:.1f} MB/s, {points} points, {peak:.0f} MiB; ours takes 1/{ours / peer:.0f} of its CPU"
        )


if __name__ == "__main__":
    main()
