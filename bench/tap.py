"""What tap costs: bytes a second against tee and cat, and how much slower a training gets behind it."""

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

TAP = Path(__file__).parents[1] / "collector" / "tap"
LINE = b"epoch=12 step=123456 loss=0.123456789 accuracy=0.98765432 lr=0.001\n"
SIZE = 1 << 30
ROUNDS = 5

# Steps of about a millisecond of work, each followed by 10 kB of lines: about 10 MB/s.
TRAINING = f"""
import hashlib, sys, time
data = bytes(1_500_000)
lines = {LINE!r} * (10_000 // {len(LINE)})
for step in range(2000):
    hashlib.sha256(data).digest()
    sys.stdout.buffer.write(lines)
    sys.stdout.buffer.flush()
with open(sys.argv[1], "a") as file: print(time.process_time(), file=file)
"""


@dataclass(frozen=True)
class Cost:
    """What a command took, in seconds; the processor's time is that of all its processes."""

    wall: float
    cpu: float


def cost(command: str, scratch: Path) -> Cost:
    """Run one shell command line; what it copied is removed."""
    used, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(["bash", "-c", command], check=True)
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    for path in scratch.glob("copy*"):
        path.unlink()
    return Cost(wall, after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime)


def best(commands: dict[str, str], scratch: Path) -> dict[str, Cost]:
    """The least of several rounds, the commands taking turns, so that a busy machine troubles all alike."""
    least = dict.fromkeys(commands, Cost(float("inf"), float("inf")))
    for _ in range(ROUNDS):
        for name, command in commands.items():
            now = cost(command, scratch)
            least[name] = Cost(min(least[name].wall, now.wall), min(least[name].cpu, now.cpu))
    return least


def main() -> None:
    """Print both tables."""
    scratch = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        with (scratch / "input").open("wb") as file:
            for _ in range(64):
                file.write(LINE * (SIZE // 64 // len(LINE)))
        size = (scratch / "input").stat().st_size
        read, copy = f"cat {scratch}/input", f"{scratch}/copy"
        tap = f"{TAP} --to {copy} --keep {4 * SIZE} --"
        print(f"{size / 1e9:.2f} GB of lines, copied to a tmpfs, best of {ROUNDS}:")
        for log, end in (("log to /dev/null", "> /dev/null"), ("log to a pipe", "| cat > /dev/null")):
            rivals = {"tap": f"{tap} {read} {end}", "tee": f"{read} | tee {copy} {end}"}
            if "|" not in end:
                rivals["cat"] = f"{read} | cat > {copy}"  # no log at all, only the copy
            times = best(rivals, scratch)
            for name, one in times.items():
                wall, cpu = times["tap"].wall / one.wall, times["tap"].cpu / one.cpu
                ratio = f"; tap takes {wall:.2f} of its time, {cpu:.2f} of its processor time"
                print(f"  {log:16} {name}: {size / one.wall / 1e9:.2f} GB/s{ratio if name != 'tap' else ''}")

        (scratch / "training.py").write_text(TRAINING)

        def training(name: str) -> str:
            return f"{sys.executable} -I {scratch}/training.py {scratch}/{name}"

        times = best(
            {
                "without": f"{training('without')} | cat > /dev/null",
                "behind": f"{TAP} --to {copy} -- {training('behind')} | cat > /dev/null",
            },
            scratch,
        )
        without, behind = times["without"], times["behind"]
        own = {name: min(map(float, (scratch / name).read_text().split())) for name in times}
        rate = 2000 * 10_000 / without.wall / 1e6
        print(f"a training that prints {rate:.0f} MB/s, best of {ROUNDS}, {os.cpu_count()} processors:")
        for what, bare, tapped in (
            ("wall", without.wall, behind.wall),
            ("its own processor time", own["without"], own["behind"]),
            ("that of all", without.cpu, behind.cpu),
        ):
            print(
                f"  {what:22} {bare:.3f} s without tap, {tapped:.3f} s behind it: {100 * (tapped / bare - 1):+.2f} %"
            )
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
