"""From a line written to its row acknowledged by the DB manager (SQLite): p50 and p99."""

import argparse
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.collecting import DbManager, until

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Write a line, wait until its row can be read by another connection, and so on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=300)
    lines = parser.parse_args().lines
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        db = DbManager(folder)
        db.start()
        run = folder / "run"
        environment = {**os.environ, "TRIALTAP_DIRECTORY": str(run), "PYTHONPATH": str(ROOT)}
        argv = [
            sys.executable,
            "-m",
            "collector",
            "-t",
            "t",
            "-m",
            "loss",
            "-s-db",
            db.address,
            "--kind",
            "StdOut",
        ]
        process = subprocess.Popen(argv, env=environment, stderr=subprocess.DEVNULL)
        until((run / "tap").exists)
        times = []
        with (
            (run / "out.000001").open("w") as out,
            sqlite3.connect(f"file:{db.file}?mode=ro", uri=True) as rows,
        ):
            out.write("loss=-1\n")
            out.flush()
            until(lambda: db.rows("t", "value"))
            for i in range(lines):
                time.sleep(0.02)
                began = time.monotonic()
                out.write(f"loss={i}\n")
                out.flush()
                while rows.execute("select count(*) from observation_logs").fetchone()[0] < i + 2:
                    time.sleep(0.0005)
                times.append(time.monotonic() - began)
        times.sort()
        p50, p99 = times[len(times) // 2], times[int(len(times) * 0.99)]
        print(
            f"line to row, SQLite: p50 {p50 * 1000:.1f} ms (at most 20), p99 {p99 * 1000:.1f} ms (at most 100)"
        )
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        db.kill()


if __name__ == "__main__":
    main()
