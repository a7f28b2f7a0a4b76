"""However a pod ends: every line that its training printed is a row, once, and the Job's own outcome is untouched."""

import time

import pytest

from tests.support.cluster import wait_until
from tests.support.running import Trial, following, get, kubectl, training, trial


def test_a_training_that_fails_leaves_every_row_and_its_exit_code(hpo: str) -> None:
    submitted = Trial(trial(hpo, "fails", training("/training", "50", "20", "7")))
    assert submitted.ended().type == "Failed"
    (pod,) = submitted.pods()
    assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 7
    assert submitted.rows() == submitted.wrote() == [str(number) for number in range(1, 51)]


def test_a_training_that_takes_too_much_memory_is_oomkilled_and_leaves_every_row(hpo: str) -> None:
    container = training("/training", "50", "20", "eat", resources={"limits": {"memory": "64Mi"}})
    submitted = Trial(trial(hpo, "eats", container))
    assert submitted.ended().type == "Failed"
    (pod,) = submitted.pods()
    terminated = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (terminated["reason"], terminated["exitCode"]) == ("OOMKilled", 137)
    assert submitted.rows() == submitted.wrote() == [str(number) for number in range(1, 51)]


def test_a_job_past_its_deadline_leaves_every_row(hpo: str) -> None:
    container = training("/training", "100000", "50")
    submitted = Trial(trial(hpo, "late", container, job={"activeDeadlineSeconds": 12}))
    pod = submitted.training_runs()
    with following(pod, hpo) as lines:
        assert submitted.ended().type == "Failed"
        assert "DeadlineExceeded" in {c.reason for c in submitted.conditions("job")}
        wait_until(lambda: gone_or_done(hpo, pod), 60, "the pod to end")
        wrote = [line.removeprefix("loss=") for line in lines() if line.startswith("loss=")]
    assert wrote
    assert submitted.rows() == wrote


@pytest.mark.parametrize("grace", [20, 0])
def test_a_pod_that_is_deleted_leaves_its_rows(hpo: str, grace: int) -> None:
    submitted = Trial(trial(hpo, "deleted", training("/training", "100000", "50")))
    pod = submitted.training_runs()
    submitted.has_rows(60)
    with following(pod, hpo) as lines:
        time.sleep(1)
        force = ["--force"] if grace == 0 else []
        kubectl("-n", hpo, "delete", "pod", pod, f"--grace-period={grace}", *force)
        wait_until(lambda: gone_or_done(hpo, pod), 60, "the pod to end")
        time.sleep(2)
        wrote = [line.removeprefix("loss=") for line in lines() if line.startswith("loss=")]
    rows = submitted.rows()
    if grace:
        assert rows == wrote
    else:
        # What was not acknowledged yet may be lost: no more than what is printed in two seconds.
        assert rows == [str(number) for number in range(1, len(rows) + 1)]
        assert len(wrote) - len(rows) <= 40
    end = submitted.ended()
    assert end.type == "Failed", end


def test_a_job_that_is_suspended_leaves_its_rows_and_goes_on_in_a_new_pod(hpo: str) -> None:
    submitted = Trial(trial(hpo, "suspended", training("/training", "120", "100")))
    first = submitted.training_runs()
    submitted.has_rows(10)
    with following(first, hpo) as lines:
        suspend(hpo, submitted.name, True)
        wait_until(lambda: gone_or_done(hpo, first), 60, "the pod to end")
        wrote = [line.removeprefix("loss=") for line in lines() if line.startswith("loss=")]
    suspend(hpo, submitted.name, False)
    assert submitted.ended().type == "Succeeded"
    points = submitted.points()
    assert [p["value"] for p in points if p["pod"] == first] == wrote
    assert [p["value"] for p in points if p["pod"] != first] == [str(number) for number in range(1, 121)]


def suspend(namespace: str, job: str, whether: bool) -> None:
    patch = f'{{"spec": {{"suspend": {str(whether).lower()}}}}}'
    kubectl("-n", namespace, "patch", "job", job, "--type=merge", "-p", patch)


def gone_or_done(namespace: str, pod: str) -> bool:
    """Whether no container of the pod runs any more."""
    pods = {p["metadata"]["name"]: p for p in get(namespace, "pods")["items"]}
    return pod not in pods or pods[pod]["status"]["phase"] in {"Succeeded", "Failed"}
