"""Runs `trialtap` as a user does: a process of its own, an environment that helps in nothing."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.collecting import DbManager
from tests.support.sidecar import Sidecar

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Run:
    """What one `trialtap run` said and how it ended."""

    status: int
    out: str
    err: str

    @property
    def table(self) -> dict[str, tuple[int, str, str, str]]:
        """The table at the end: metric -> points, min, max, latest."""
        rows = self.out.partition("metric  ")[2].splitlines()[1:]
        cells = (re.split(r"\s{2,}", row) for row in rows)
        return {row[0]: (int(row[1]), row[2], row[3], row[4]) for row in cells if len(row) == 5}


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Run]:
    """Run `trialtap run -f FILE [ARGS]`; a text is written to a file first."""

    def run_trial(file: str | Path, *args: str, timeout: float = 60) -> Run:
        if isinstance(file, str):
            (tmp_path / "trial.yaml").write_text(file)
            file = tmp_path / "trial.yaml"
        env = {k: v for k, v in os.environ.items() if k not in {"PYTHONUNBUFFERED", "PYTHONPATH"}}
        done = subprocess.run(
            [Path(sys.executable).with_name("trialtap"), "run", "-f", file, *args],
            capture_output=True,
            text=True,
            timeout=timeout,
            env=env,
            cwd=tmp_path,
        )
        return Run(done.returncode, done.stdout, done.stderr)

    return run_trial


@pytest.fixture
def db(tmp_path: Path) -> Iterator[DbManager]:
    manager = DbManager(tmp_path)
    manager.start()
    yield manager
    manager.kill()


@pytest.fixture
def sidecar(tmp_path: Path, db: DbManager) -> Iterator[Callable[..., Sidecar]]:
    made: list[Sidecar] = []

    def make(*argv: str, program: tuple[str, ...] = ("-m", "collector")) -> Sidecar:
        made.append(Sidecar(tmp_path, db, program, *argv))
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        if one.process is not None and one.process.poll() is None:
            one.process.kill()
            one.process.wait()
