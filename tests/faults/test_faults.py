"""Every point once, in order, whatever dies: real processes, compared with a list that training wrote itself.

`TRIALTAP_FAULTS=200` kills the collector 200 times while 50,000 points are printed.
"""

import os
import random
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.support.collecting import DbManager, Link, Pod, until

FAULTS = int(os.environ.get("TRIALTAP_FAULTS", "10"))
POINTS = 250 * FAULTS
PACE = 0.45  # seconds of training for one kill

TRAINING = """
import sys, time
points, seconds, own = int(sys.argv[1]), float(sys.argv[2]), open(sys.argv[3], "w")
begin = time.monotonic()
for i in range(points):
    own.write(f"point {i}\\n")
    line = f"step={i} point={i}"
    if i % 7 == 0:
        own.write(f"other {i}\\n")
        line += f" other={i}"
    print(line)
    if i % 10 == 0:
        own.flush()
        time.sleep(max(0, begin + seconds * i / points - time.monotonic()))
own.flush()
"""


def expected(own: Path) -> list[tuple[str, str]]:
    return [tuple(line.split()) for line in own.read_text().splitlines()]  # type: ignore[misc]


class Trouble(threading.Thread):
    """Does one thing after the other to the DB manager until it is told to end."""

    def __init__(self, db: DbManager, link: Link, seed: int) -> None:
        super().__init__(daemon=True)
        self.db, self.link = db, link
        self.random = random.Random(seed)
        self.over = threading.Event()
        self.done: list[str] = []

    def run(self) -> None:
        deeds = [self.kill, self.hang, self.refuse, self.lose, self.lose]
        turn = 0
        while not self.over.wait(self.random.uniform(0.3, 1.0)):
            deed = deeds[turn % len(deeds)]
            turn += 1
            deed()
            self.done.append(deed.__name__)

    def kill(self) -> None:
        self.db.kill()
        time.sleep(self.random.uniform(0, 1))
        self.db.start()

    def hang(self) -> None:
        self.db.signal(signal.SIGSTOP)
        time.sleep(self.random.uniform(0.2, 2))
        self.db.signal(signal.SIGCONT)

    def refuse(self) -> None:
        self.link.before = lambda: True
        time.sleep(self.random.uniform(0.1, 1))
        self.link.before = lambda: False

    def lose(self) -> None:
        self.link.after = lambda: self.random.random() < 0.5
        time.sleep(self.random.uniform(0.5, 2))
        self.link.after = lambda: False


@pytest.mark.timeout(120 + 3 * FAULTS)
def test_every_point_is_stored_once_in_order_while_collector_and_database_are_killed(
    pod: Pod, db: DbManager, link: Link, tmp_path: Path
) -> None:
    chance = random.Random(FAULTS)
    pod.start()
    own = tmp_path / "own"
    training = pod.train(TRAINING, str(POINTS), str(FAULTS * PACE), str(own))
    trouble = Trouble(db, link, FAULTS)
    trouble.start()
    for _ in range(FAULTS):
        time.sleep(chance.uniform(0.02, 2 * PACE))
        pod.kill()
        pod.start()
    assert training.wait(60 + FAULTS) == 0
    trouble.over.set()
    trouble.join(30)
    until(lambda: len(pod.stored()) == len(expected(own)), 90, "all rows are stored")
    assert pod.end() == 0
    assert pod.stored() == expected(own), "each point once, in order"
    assert trouble.done, "the database had trouble as well"
    assert not pod.out.read_text(), "nothing is left to be printed"
    segments = [path for path in pod.directory.iterdir() if path.name.startswith("out.0")]
    assert len(segments) == 1, "what is acknowledged is unlinked"


@pytest.mark.parametrize(
    ("how", "code"),
    [("raise SystemExit(3)", 3), ("os.kill(os.getpid(), 9)", 137), ("", 0)],
    ids=["crash", "kill", "end"],
)
def test_a_training_keeps_every_point_however_it_ends(pod: Pod, db: DbManager, how: str, code: int) -> None:
    pod.start()
    training = pod.train(f"import os\nfor i in range(3000): print(f'point={{i}}')\n{how}")
    assert training.wait(60) == code
    assert pod.end() == 0
    assert pod.stored() == [("point", str(i)) for i in range(3000)]


def test_training_that_ended_before_the_collector_started_again_still_counts(pod: Pod, db: DbManager) -> None:
    pod.start()
    until(lambda: os.access(pod.directory / "tap", os.X_OK))
    pod.kill()
    training = pod.train("for i in range(500): print(f'point={i}')")
    assert training.wait(60) == 0
    pod.start()
    assert pod.end() == 0
    assert pod.stored() == [("point", str(i)) for i in range(500)]


def test_rows_of_a_killed_training_are_not_called_unavailable(pod: Pod, db: DbManager) -> None:
    pod.start()
    training = pod.train("import os; print('nothing to see', flush=True); os.kill(os.getpid(), 9)")
    assert training.wait(60) == 137
    assert pod.end() == 0
    assert pod.stored() == []
    assert "killed by a signal" in pod.log()


def test_without_the_objective_one_row_says_so_and_the_log_helps(pod: Pod, db: DbManager) -> None:
    pod.start()
    training = pod.train("print('Point=1 poimt: 2')")
    assert training.wait(60) == 0
    assert pod.end() == 0
    assert pod.stored() == [("point", "unavailable")]
    assert str(db.rows(pod.trial, "time")[0][0]).startswith("0001-01-01")
    assert "'point' never appeared" in pod.log()
    assert "Point" in pod.log()


def test_a_database_that_is_away_to_the_end_leaves_rows_as_json(pod: Pod, db: DbManager, link: Link) -> None:
    pod.argv += ["--grace", "4"]
    pod.start()
    link.before = lambda: True
    training = pod.train("for i in range(40000): print(f'step={i} point={i}')")
    assert training.wait(60) == 0
    began = time.monotonic()
    assert pod.end() == 0
    assert time.monotonic() - began < 20
    rows = pod.printed()
    assert [(row["ordinal"], row["value"], row["step"]) for row in rows] == [
        (i, str(i), i) for i in range(40000)
    ]
    assert {(row["trial"], row["namespace"], row["pod"], row["attempt"]) for row in rows} == {
        (pod.trial, "ns", "pod-1", 0)
    }
    assert len({row["stream"] for row in rows}) == 1
    assert pod.stored() == []


def test_a_database_that_comes_back_within_the_grace_gets_all(pod: Pod, db: DbManager, link: Link) -> None:
    pod.start()
    link.before = lambda: True
    training = pod.train("for i in range(30000): print(f'point={i}')")
    assert training.wait(60) == 0
    assert pod.collector is not None
    pod.collector.send_signal(signal.SIGTERM)
    time.sleep(3)
    link.before = lambda: False
    assert pod.collector.wait(60) == 0
    assert pod.stored() == [("point", str(i)) for i in range(30000)]


def test_memory_stays_bounded_while_the_database_is_away_and_what_is_late_is_printed(
    pod: Pod, link: Link
) -> None:
    pod.argv += ["--grace", "4"]
    pod.start()
    link.before = lambda: True
    count = 200_000
    training = pod.train(f"for i in range({count}): print(f'point={{i}} and some more text on the line')")
    assert training.wait(100) == 0
    time.sleep(1)
    assert pod.collector is not None
    status = Path(f"/proc/{pod.collector.pid}/status").read_text()
    peak = int(status.split("VmHWM:")[1].split()[0])
    assert peak < 80 * 1024, f"{peak} KiB: what waits stays in the file"
    link.before = lambda: False
    assert pod.end(100) == 0
    delivered = [int(value) for _, value in pod.stored()]
    assert delivered == list(range(len(delivered)))
    late = range(len(delivered), count)
    assert {row["ordinal"] for row in pod.printed()} >= set(late), "each row is in the database or in the log"


def test_a_database_that_lost_its_rows_gets_them_again(pod: Pod, link: Link, tmp_path: Path) -> None:
    db = pod.db = DbManager(tmp_path)
    db.start()
    link.target = lambda: db.address
    pod.start()
    training = pod.train("import time\nfor i in range(300): print(f'point={i}'); time.sleep(0.02)")
    until(lambda: len(pod.stored()) > 30)
    db.kill()
    for path in db.file.parent.glob("rows.db*"):
        path.unlink()
    db.start()
    assert training.wait(60) == 0
    assert pod.end() == 0
    rows = pod.stored()
    db.kill()
    assert rows == [("point", str(i)) for i in range(300)]


def test_an_early_stop_marks_the_trial_then_ends_training_through_tap(pod: Pod, link: Link) -> None:
    pod.argv += ["-stop-rule", "point;50;greater;0", "-o-type", "maximize", "-s-earlystop", link.address]
    pod.start()
    training = pod.train("import time\nfor i in range(10**6): print(f'point={i}'); time.sleep(0.02)")
    assert training.wait(60) == 0, "stopped early, it ends well"
    assert [(mark["trial"], mark["trialtap-namespace"]) for mark in link.marked] == [(pod.trial, "ns")]
    assert pod.end() == 0
    rows = pod.stored()
    assert rows == [("point", str(i)) for i in range(len(rows))]
    assert len(rows) > 50


def test_a_pod_that_is_ended_before_training_began_ends_at_once(pod: Pod, db: DbManager) -> None:
    pod.start()
    until(lambda: os.access(pod.directory / "tap", os.X_OK))
    assert pod.end(20) == 0
    assert db.rows(pod.trial, "value") in ([("unavailable",)], [])


@pytest.mark.parametrize(
    "argv", [["--kind"], ["-t", "x"], ["-t", "x", "-m", "a", "--kind", "StdOut", "-f", "("]]
)
def test_a_configuration_that_cannot_work_lets_training_go_on(pod: Pod, argv: list[str]) -> None:
    pod.argv = argv
    pod.start()
    training: subprocess.Popen[bytes] = pod.train("print('point=1')")
    assert training.wait(60) == 0
    assert pod.collector is not None
    assert pod.collector.poll() is None, "it never exits by itself"
    assert pod.end(20) == 0
    assert "configuration cannot work" in pod.log()
