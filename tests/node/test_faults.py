"""The collector is killed, the DB manager is away: each row that the training printed is there, once."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from tests.support.cluster import wait_until
from tests.support.node import Node
from tests.support.running import HOME, JSON, Trial, get, kubectl, training, trial

SIDECAR = "metrics-logger-and-collector"
DATABASE = "deployment/trialtap-db-manager"


def test_a_collector_that_is_killed_three_times_in_a_row_loses_nothing(hpo: str) -> None:
    if not Node().is_up:
        pytest.skip("kills processes on the node itself: unset KUBECONFIG, so that the node is this machine")
    submitted = Trial(trial(hpo, "killed", training("/training", "1200", "50")))
    submitted.training_runs()
    for kills in (1, 2, 3):
        submitted.has_rows(kills * 20)
        Node().kill(sidecar(submitted)["containerID"])
        # The kubelet waits 0, 10, then 20 seconds before it starts it again.
        wait_until(partial(restarted, submitted, kills), 60, f"restart {kills} of the collector")
    assert not submitted.conditions("job"), "the training ended before the last restart"
    assert submitted.ended(120).type == "Succeeded"
    assert submitted.rows() == submitted.wrote() == [str(number) for number in range(1, 1201)]


def test_a_database_that_is_away_at_the_very_end_for_a_minute_gets_every_row_itself_or_from_the_log(
    hpo: str,
) -> None:
    prints = training("/training", "60", "100")
    patient = Trial(trial(hpo, "patient", prints, pod={"terminationGracePeriodSeconds": 150}))
    hurried = Trial(trial(hpo, "hurried", prints, pod={"terminationGracePeriodSeconds": 10}))
    patient.training_runs()
    hurried.training_runs()
    with database_away():
        for one in (patient, hurried):
            wait_until(partial(training_ended, one), 60, "the training to end")
        time.sleep(60)
        # Its grace period is over: its pod and Job have ended as if nothing was.
        assert "Complete" in {c.type for c in hurried.conditions("job")}
        log = "\n".join(hurried.log(SIDECAR))
    numbers = [str(number) for number in range(1, 61)]
    assert patient.ended(150).type == "Succeeded"
    assert patient.rows() == patient.wrote() == numbers

    with forwarded(6789) as address:
        command = [sys.executable, "-m", "cli", "db", "import", "--db", address, "-"]
        done = subprocess.run(command, input=log, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert hurried.rows() == hurried.wrote() == numbers


def sidecar(submitted: Trial) -> JSON:
    """The status of its collector's container."""
    found: JSON = submitted.pods()[0]["status"]["initContainerStatuses"][0]
    return found


def restarted(submitted: Trial, times: int) -> bool:
    """Whether its collector was started again that often and runs."""
    status = sidecar(submitted)
    return bool(status["restartCount"] == times and status["ready"])


def training_ended(submitted: Trial) -> bool:
    """Whether its training's container has ended, whatever the pod does."""
    return "terminated" in submitted.pods()[0]["status"]["containerStatuses"][0]["state"]


@contextmanager
def database_away() -> Iterator[None]:
    """Without a DB manager until the end of the block, and with one that serves after it."""
    kubectl("-n", HOME, "scale", DATABASE, "--replicas=0")
    try:
        selector = "app.kubernetes.io/component=db-manager"
        wait_until(lambda: not get(HOME, "pods", "-l", selector)["items"], 60, "the DB manager to be gone")
        yield
    finally:
        kubectl("-n", HOME, "scale", DATABASE, "--replicas=1")
        kubectl("-n", HOME, "rollout", "status", DATABASE, "--timeout=90s", seconds=100)


@contextmanager
def forwarded(port: int) -> Iterator[str]:
    """An address here that leads to the DB manager's port."""
    command = ["kubectl", "-n", HOME, "port-forward", "service/trialtap-db-manager", f":{port}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        said = process.stdout.readline()  # Forwarding from 127.0.0.1:43210 -> 6789
        yield said.removeprefix("Forwarding from ").partition(" ")[0]
    finally:
        process.kill()
        process.wait()
