"""The controller on a real API server: Jobs run by the real job controller, other kinds by the test."""

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from tests.support.cluster import ControlPlane, wait_until
from tests.support.controlling import (
    JOBS,
    KINDS,
    TRIALS,
    call,
    config,
    controller,
    create,
    end_pod,
    jobs_pod,
    kinds,
    report,
    rows,
    set_phase,
    state,
    trial,
    wait_for,
)
from tests.support.programs import Program
from trialtap import messages


@pytest.fixture(scope="module")
def running(
    plane: ControlPlane, database: Program, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Program]:
    """The controller with an account of its own, which may do what the chart lets it do."""
    folder = tmp_path_factory.mktemp("controller")
    config(folder, *kinds())
    served = controller(plane, database, folder).start()
    yield served
    assert served.stop() == 0


def test_a_job_trial_succeeds_with_its_observation(
    plane: ControlPlane, running: Program, database: Program, hpo: str
) -> None:
    create(plane, trial(hpo))
    wait_for(plane, hpo, "Running")
    report(database, hpo, "t", "0.5", "0.25", "nan", "0.3")
    end_pod(plane, hpo, "Succeeded", 0, "Completed")
    ended = wait_for(plane, hpo, "Succeeded")
    assert ended["reason"].startswith("TrialSucceeded. Job reason: ")
    status = plane.get(f"{TRIALS.format(hpo)}/t")["status"]
    assert status["observation"]["metrics"] == [
        {"name": "loss", "min": "0.25", "max": "0.5", "latest": "0.3"}
    ]
    assert status["completionTime"]
    shown = wait_until(
        lambda: "0.25" in plane.kubectl("get", "trial", "t", "-n", hpo).stdout, 20, "the best value"
    )
    assert shown
    wait_until(lambda: plane.client.get(f"{JOBS.format(hpo)}/t").status_code == 404, 30, "the Job to go")
    told = plane.kubectl(
        "get",
        "events",
        "-n",
        hpo,
        "--field-selector",
        "involvedObject.kind=Trial",
        "-o",
        "jsonpath={.items[*].reason}",
    )
    assert {"TrialCreated", "JobCreated", "JobSucceeded"} <= set(told.stdout.split())


def test_a_job_that_runs_out_of_memory_fails_in_words(
    plane: ControlPlane, running: Program, hpo: str
) -> None:
    create(plane, trial(hpo))
    end_pod(plane, hpo, "Failed", 137, "OOMKilled")
    ended = wait_for(plane, hpo, "Failed")
    assert "OOMKilled, exit code 137 (SIGKILL)" in ended["message"]
    assert ended["message"].startswith("Trial has failed. Job message: ")


def test_an_evicted_job_is_tried_again_when_the_trial_says_so(
    plane: ControlPlane, running: Program, hpo: str
) -> None:
    made = trial(hpo)
    made["metadata"]["annotations"] = {"trialtap/max-retries": "1"}
    create(plane, made)
    first = jobs_pod(plane, hpo)["metadata"]["uid"]
    end_pod(plane, hpo, "Failed", 137, "Error", reason="Evicted", message="low on memory")

    def second() -> bool:
        pods = plane.get(f"/api/v1/namespaces/{hpo}/pods")["items"]
        return bool(pods) and all(pod["metadata"]["uid"] != first for pod in pods)

    wait_until(second, 40, "the second attempt")
    stored = plane.get(f"{TRIALS.format(hpo)}/t")
    assert stored["metadata"]["annotations"]["trialtap/attempt"] == "1"
    assert state(plane, hpo)["type"] == "Running"


@pytest.mark.parametrize("kind", KINDS, ids=[kind[1] for kind in KINDS])
@pytest.mark.parametrize(("phase", "condition"), [("Done", "Succeeded"), ("Broken", "Failed")])
def test_any_kind_is_run(
    plane: ControlPlane,
    running: Program,
    database: Program,
    hpo: str,
    kind: tuple[str, str, str],
    phase: str,
    condition: str,
) -> None:
    create(plane, trial(hpo, run={"apiVersion": kind[0], "kind": kind[1], "spec": {"x": 1}}))
    wait_for(plane, hpo, "Running")
    report(database, hpo, "t", "1")
    set_phase(plane, kind, hpo, phase)
    assert "Job message: so it said" in wait_for(plane, hpo, condition)["message"]


def test_a_kind_that_is_not_listed_is_said(plane: ControlPlane, running: Program, hpo: str) -> None:
    create(plane, trial(hpo, run={"apiVersion": "unknown.example.org/v1", "kind": "Nobody", "spec": {}}))
    wait_until(lambda: "trialResources" in state(plane, hpo).get("message", ""), 20, "the Trial to say it")


def test_quota_is_said_and_the_workload_made_once_there_is_room(
    plane: ControlPlane, running: Program, hpo: str
) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "q", "namespace": hpo},
        "spec": {"hard": {"count/jobs.batch": "0"}},
    }
    plane.apply(quota)
    wait_until(
        lambda: plane.get(f"/api/v1/namespaces/{hpo}/resourcequotas/q").get("status", {}).get("hard"),
        20,
        "the quota to hold",
    )
    create(plane, trial(hpo))
    wait_until(lambda: "exceeded quota" in state(plane, hpo).get("message", ""), 20, "the Trial to say it")
    plane.client.delete(f"/api/v1/namespaces/{hpo}/resourcequotas/q")
    assert wait_for(plane, hpo, "Running", seconds=60)["message"] == "Trial is running"


def test_a_foreign_job_of_that_name_is_left_alone(plane: ControlPlane, running: Program, hpo: str) -> None:
    body = trial(hpo)["spec"]["runSpec"] | {"metadata": {"name": "t"}}
    foreign = plane.create(JOBS.format(hpo), body).json()["metadata"]["uid"]
    create(plane, trial(hpo))
    wait_until(
        lambda: "is not this trial's" in state(plane, hpo).get("message", ""), 20, "the Trial to say it"
    )
    assert plane.get(f"{JOBS.format(hpo)}/t")["metadata"]["uid"] == foreign


def test_a_deleted_trial_takes_its_workload_and_rows_along(
    plane: ControlPlane, running: Program, database: Program, hpo: str
) -> None:
    create(plane, trial(hpo))
    wait_for(plane, hpo, "Running")
    report(database, hpo, "t", "1")
    assert rows(database, hpo, "t") == 1
    plane.client.delete(f"{TRIALS.format(hpo)}/t")
    wait_until(lambda: plane.client.get(f"{TRIALS.format(hpo)}/t").status_code == 404, 40, "the Trial to go")
    assert plane.client.get(f"{JOBS.format(hpo)}/t").status_code == 404
    assert rows(database, hpo, "t") == 0


def test_the_early_stopping_service_is_answered_once_it_is_stored(
    plane: ControlPlane, running: Program, database: Program, hpo: str
) -> None:
    create(plane, trial(hpo))
    wait_for(plane, hpo, "Running")
    report(database, hpo, "t", "3", "2")
    request = messages.SetTrialStatusRequest(trial_name="t")
    for _ in range(2):
        call(running.ready["grpc"], messages.SET_TRIAL_STATUS, request, (("trialtap-namespace", hpo),))
        conditions = plane.get(f"{TRIALS.format(hpo)}/t")["status"]["conditions"]
        assert [c["type"] for c in conditions] == ["Created", "Running", "EarlyStopped"]

    def observed() -> Any:
        return plane.get(f"{TRIALS.format(hpo)}/t")["status"].get("observation")

    assert wait_until(observed, 20, "the observation")["metrics"][0]["latest"] == "2"
    wait_until(lambda: plane.client.get(f"{JOBS.format(hpo)}/t").status_code == 404, 90, "the Job to go")


@pytest.mark.parametrize(
    ("name", "namespace", "code"),
    [("", "", "INVALID_ARGUMENT"), ("nobody", "", "NOT_FOUND"), ("nobody", "nowhere", "NOT_FOUND")],
)
def test_the_early_stopping_service_says_what_it_cannot_do(
    running: Program, name: str, namespace: str, code: str
) -> None:
    metadata = (("trialtap-namespace", namespace),) if namespace else ()
    with pytest.raises(grpc.RpcError) as refused:
        call(
            running.ready["grpc"],
            messages.SET_TRIAL_STATUS,
            messages.SetTrialStatusRequest(trial_name=name),
            metadata,
        )
    assert refused.value.code().name == code


def test_trials_of_an_experiment_are_numbered_once_and_without_a_gap(
    plane: ControlPlane, running: Program, hpo: str
) -> None:
    for number in range(12):
        create(
            plane, trial(hpo, f"t{number}", run={"apiVersion": KINDS[0][0], "kind": KINDS[0][1], "spec": {}})
        )

    def numbers() -> list[int] | None:
        listed = plane.get(TRIALS.format(hpo))["items"]
        found = [item["metadata"].get("annotations", {}).get("trialtap/index") for item in listed]
        return sorted(map(int, found)) if all(found) else None

    assert wait_until(numbers, 30, "the numbers") == list(range(1, 13))
