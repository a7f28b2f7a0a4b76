"""The idle sidecar: memory and CPU before and after its first report, and how soon it watches."""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.collecting import DbManager, until

ROOT = Path(__file__).parents[1]
TICK = os.sysconf("SC_CLK_TCK")


def status(pid: int, key: str) -> int:
    """Give a value of /proc/PID/status in KiB."""
    return int(Path(f"/proc/{pid}/status").read_text().split(key + ":")[1].split()[0])


def cpu(pid: int) -> float:
    """Give the CPU seconds of a process."""
    runs = sum(
        int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()
    )
    return runs / 1e9


def idle(pid: int, seconds: float) -> float:
    """Give the part of a core that it takes."""
    before = cpu(pid)
    time.sleep(seconds)
    return (cpu(pid) - before) / seconds


def main() -> None:
    """Print one line a figure, with the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20)
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        db = DbManager(folder)
        db.start()
        run = folder / "run"
        # As the image has it: compiled files without docstrings, site-packages on the path, no venv's hooks.
        site = next(path for path in sys.path if path.endswith("site-packages"))
        environment = {
            **os.environ,
            "TRIALTAP_DIRECTORY": str(run),
            "PYTHONPATH": f"{ROOT}:{site}",
            "PYTHONOPTIMIZE": "2",
        }
        python = os.path.realpath(sys.executable)
        argv = [
            python,
            "-S",
            "-m",
            "collector",
            "-t",
            "t",
            "-m",
            "loss;acc",
            "-s-db",
            db.address,
            "--kind",
            "StdOut",
        ]
        waits = []
        for _ in range(5):
            began = time.monotonic()
            process = subprocess.Popen(
                argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            while not watches(process.pid):
                time.sleep(0.001)
            waits.append(time.monotonic() - began)
            process.kill()
            process.wait()
        print(f"watching after {min(waits) * 1000:.0f} ms (at most 60)")
        process = subprocess.Popen(
            argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(2)
        print(f"before the first report: {status(process.pid, 'VmRSS') / 1024:.1f} MiB (at most 12)")
        print(f"                         {idle(process.pid, seconds):.3%} of a core (at most 0.03%)")
        (run / "out.000001").write_text("loss=1\n")
        until(lambda: db.rows("t", "value"))
        time.sleep(5)  # idle: connections are closed after 3 s without a row
        print(f"after it:                {status(process.pid, 'VmRSS') / 1024:.1f} MiB (at most 40)")
        print(f"                         {idle(process.pid, seconds):.3%} of a core (at most 0.03%)")
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        db.kill()


def watches(pid: int) -> bool:
    """Say whether a process holds an inotify descriptor; its files come and go meanwhile."""
    try:
        return any("inotify" in str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir())
    except FileNotFoundError:
        return False


if __name__ == "__main__":
    main()
