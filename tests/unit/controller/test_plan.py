"""The life of a Trial, decided step by step: Katib's table, its flaws apart."""

import datetime as dt
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.actions import Create, PatchStatus
from controller.plan import Rows, plan
from tests.support.world import GOOD, World, pod, terminated, trial
from trialtap.names import UNAVAILABLE

JSON = dict[str, Any]


def test_a_trial_is_created_then_runs() -> None:
    world = World().run()
    assert world.conditions == [("Created", "True"), ("Running", "True")]
    assert world.trial["metadata"]["finalizers"] == ["clean-metrics-in-db"]
    assert world.trial["metadata"]["annotations"]["trialtap/index"] == "1"
    assert world.trial["status"]["startTime"] == "2026-01-01T00:00:00Z"
    assert [event.reason for event in world.events] == ["TrialCreated", "JobCreated"]


def test_the_workload_is_named_labelled_and_owned_by_the_trial() -> None:
    made = World().run().created[0]["metadata"]
    assert (made["name"], made["namespace"]) == ("t", "ns")
    assert made["labels"] == {"own": "1", "katib.kubeflow.org/experiment": "e"}
    assert made["ownerReferences"] == [
        {
            "apiVersion": "kubeflow.org/v1beta1",
            "kind": "Trial",
            "name": "t",
            "uid": "trial-uid",
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]


def test_a_success_has_its_observation_and_its_workload_goes() -> None:
    world = World(rows=GOOD).run()
    world.ends("Complete")
    world.pods = [pod("Succeeded")]
    world.settle()
    assert world.conditions == [("Created", "True"), ("Running", "False"), ("Succeeded", "True")]
    assert world.state["reason"] == "TrialSucceeded. Job reason: R"
    assert world.state["message"] == "Trial has succeeded. Job message: M"
    assert world.trial["status"]["observation"] == {"metrics": list(GOOD.metrics)}
    assert world.trial["status"]["completionTime"]
    assert world.trial["metadata"]["annotations"]["trialtap/value"] == "0.1"
    assert world.workload is None


def test_a_trial_that_retains_its_run_keeps_it() -> None:
    world = World(trial(retainRun=True), rows=GOOD).run()
    world.ends("Complete")
    world.settle()
    assert world.workload is not None


def test_a_success_without_rows_is_metrics_unavailable_with_what_to_do() -> None:
    world = World().run()
    world.ends("Complete")
    world.pods = [pod("Succeeded")]
    world.settle()
    assert world.state["type"] == "MetricsUnavailable"
    assert "'loss'" in world.state["message"]
    assert "log of the collector's container" in world.state["message"]


def test_the_row_that_says_unavailable_needs_no_wait() -> None:
    world = World(rows=Rows(({"name": "loss", "latest": UNAVAILABLE},), UNAVAILABLE)).run()
    world.ends("Complete")
    before = world.now
    world.settle()
    assert (world.state["type"], world.now) == ("MetricsUnavailable", before)


def test_a_push_trial_without_rows_is_told_who_reports() -> None:
    world = World(trial(metricsCollector={"collector": {"kind": "Push"}})).run()
    world.ends("Complete")
    world.pods = []
    world.settle()
    assert "report_metrics" in world.state["message"]


def test_rows_of_an_open_stream_are_waited_for() -> None:
    world = World(rows=Rows(GOOD.metrics, "0.2", held_back=True)).run()
    world.ends("Complete")
    for _ in range(10):
        world.step()
        world.now += dt.timedelta(seconds=1)
    assert world.state["type"] == "Running"
    world.rows = GOOD
    world.settle()
    assert world.state["type"] == "Succeeded"


def test_a_stream_that_never_ends_is_waited_for_no_longer_than_is_sensible() -> None:
    world = World(rows=Rows(GOOD.metrics, "0.2", held_back=True)).run()
    world.ends("Complete")
    world.settle(300)
    assert world.state["type"] == "Succeeded"
    assert world.now - dt.datetime(2026, 1, 1, tzinfo=dt.UTC) < dt.timedelta(seconds=120)


FAILURES = [
    (
        "an exit code",
        [pod("Failed", containerStatuses=[terminated(3)])],
        "container main of pod t-0: Error, exit code 3",
    ),
    (
        "out of memory",
        [pod("Failed", containerStatuses=[terminated(137, "OOMKilled")])],
        "OOMKilled, exit code 137 (SIGKILL)",
    ),
    ("a signal", [pod("Failed", containerStatuses=[terminated(139)])], "exit code 139 (SIGSEGV)"),
    (
        "the primary container first",
        [pod("Failed", containerStatuses=[terminated(1, name="helper"), terminated(4)])],
        "container main of pod t-0: Error, exit code 4",
    ),
]


@pytest.mark.parametrize(("pods", "said"), [f[1:] for f in FAILURES], ids=[f[0] for f in FAILURES])
def test_a_training_that_failed_is_told_with_its_end_and_its_last_lines(pods: list[JSON], said: str) -> None:
    world = World(trial(), trouble="").run()
    world.trial["metadata"]["annotations"]["trialtap/max-retries"] = "3"
    world.ends("Failed")
    world.pods = pods
    world.settle()
    assert (world.state["type"], world.state["reason"]) == ("Failed", "TrialFailed. Job reason: R")
    assert world.state["message"].startswith("Trial has failed. Job message: M")
    assert said in world.state["message"]
    assert "Traceback: boom" in world.state["message"]
    assert "observation" not in world.trial["status"]
    assert world.events[-1].reason == "JobFailed"


INFRASTRUCTURE = [
    ("evicted", pod("Failed", reason="Evicted", message="low on memory"), "Evicted"),
    (
        "preempted",
        pod(
            "Failed",
            conditions=[{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}],
        ),
        "PreemptionByScheduler",
    ),
    ("its node lost", pod("Failed", reason="NodeLost"), "NodeLost"),
]


@pytest.mark.parametrize(
    ("failed", "reason"), [i[1:] for i in INFRASTRUCTURE], ids=[i[0] for i in INFRASTRUCTURE]
)
def test_what_the_infrastructure_ended_is_tried_again(failed: JSON, reason: str) -> None:
    world = World(rows=GOOD)
    world.trial["metadata"]["annotations"]["trialtap/max-retries"] = "1"
    world.run()
    world.ends("Failed")
    world.pods = [failed]
    world.settle()
    annotations = world.trial["metadata"]["annotations"]
    assert world.state["type"] == "Running", "Failed was written before it was decided"
    assert annotations["trialtap/attempt"] == "1"
    assert json.loads(annotations["trialtap/attempts"])[0] | {"ended": ""} == {
        "attempt": 0,
        "reason": reason,
        "node": "node1",
        "ended": "",
    }
    assert [made["metadata"]["uid"] for made in world.created] == ["workload-1", "workload-2"]
    assert world.created[1]["metadata"]["annotations"]["trialtap/attempt"] == "1"
    world.ends("Failed")
    world.pods = [failed]
    world.settle()
    assert world.state["type"] == "Failed"
    assert "after 1 retries" in world.state["message"]


def test_retries_may_be_asked_for_on_the_run_object() -> None:
    run = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"annotations": {"trialtap/max-retries": "2"}},
        "spec": {},
    }
    world = World(trial(runSpec=run)).run()
    world.ends("Failed")
    world.pods = [INFRASTRUCTURE[0][1]]
    world.settle()
    assert len(world.created) == 2


def test_a_workload_that_somebody_deleted_is_no_success_and_not_made_again_unasked() -> None:
    world = World().run()
    world.workload, world.pods = None, []
    world.settle()
    assert world.state["type"] == "Failed"
    assert "Job ns/t was deleted before it ended" in world.state["message"]
    assert len(world.created) == 1


STUCK = {"name": "main", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}


def test_a_pod_that_cannot_start_is_told_while_it_waits() -> None:
    world = World().run()
    world.pods = [pod("Pending", containerStatuses=[STUCK])]
    world.settle()
    assert world.state["type"] == "Running"
    assert "ImagePullBackOff: no such image" in world.state["message"]
    world.pods = [pod("Running")]
    world.settle()
    assert world.state["message"] == "Trial is running"


def test_a_pod_that_cannot_start_for_long_is_tried_again_where_the_trial_says_so() -> None:
    world = World()
    world.trial["metadata"]["annotations"]["trialtap/max-retries"] = "1"
    world.run()
    world.pods = [pod("Pending", containerStatuses=[STUCK])]
    world.now += dt.timedelta(minutes=6)
    world.settle()
    assert len(world.created) == 2


def test_a_kind_that_is_not_seen_is_said_and_goes_on_when_mended() -> None:
    world = World(kind_fault="Train (example.com/v1) may not be listed")
    world.settle()
    assert world.state["type"] == "Created"
    assert "may not be listed" in world.state["message"]
    assert not world.created
    world.kind_fault = ""
    world.settle()
    assert [c["message"] for c in world.trial["status"]["conditions"]] == [
        "Trial is created",
        "Trial is running",
    ]


def test_a_workload_that_could_not_be_made_is_said_and_tried_again() -> None:
    world = World(trouble="exceeded quota")
    actions = [world.step() for _ in range(3)][-1]
    assert isinstance(actions[-1], Create)
    assert "exceeded quota" in world.state["message"]


def test_a_workload_of_that_name_that_is_not_the_trials_is_left_alone() -> None:
    world = World()
    world.workload = {"metadata": {"uid": "foreign", "name": "t"}}
    world.settle()
    assert world.workload["metadata"]["uid"] == "foreign"
    assert "is not this trial's" in world.state["message"]


def test_a_scalar_condition_is_said_and_does_not_stick_the_controller() -> None:
    world = World(trial(successCondition='status.conditions.#(type=="Complete").status')).run()
    world.ends("Complete")
    world.settle()
    assert world.state["type"] == "Running"
    assert "never counts as met" in world.state["message"]


def early_stopped(world: World) -> World:
    stamp = "2026-01-01T00:00:01Z"
    condition = {
        "type": "EarlyStopped",
        "status": "True",
        "reason": "TrialEarlyStopped",
        "message": "Trial is early stopped",
    }
    world.trial["status"]["conditions"].append(
        {**condition, "lastTransitionTime": stamp, "lastUpdateTime": stamp}
    )
    return world


def test_an_early_stopped_trial_has_its_observation_before_its_workload_goes() -> None:
    world = early_stopped(World(rows=GOOD).run())
    actions = world.step()
    assert isinstance(actions[0], PatchStatus)
    assert world.workload is not None
    world.pods = []
    world.settle()
    assert world.workload is None
    assert world.trial["status"]["observation"] == {"metrics": list(GOOD.metrics)}
    assert world.conditions == [("Created", "True"), ("Running", "True"), ("EarlyStopped", "True")]
    assert "completionTime" not in world.trial["status"]


def test_an_early_stopped_training_may_end_by_itself() -> None:
    world = early_stopped(World(rows=GOOD).run())
    for _ in range(5):
        world.step()
    assert world.workload is not None
    world.settle(100)
    assert world.workload is None


def test_a_deleted_trial_takes_its_workload_then_its_rows_then_itself() -> None:
    world = World().run()
    world.trial["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.step()
    assert world.workload is None
    assert not world.rows_deleted
    world.step()
    assert world.rows_deleted
    assert world.gone


def test_nothing_is_written_when_nothing_changed() -> None:
    world = World(rows=GOOD).run()
    assert plan(world.observe()) == ()
    world.ends("Complete")
    world.settle()
    assert plan(world.observe()) == ()


@given(st.lists(st.integers(0, 3), max_size=40), st.sampled_from(["Complete", "Failed", "evicted"]))
def test_a_controller_killed_between_any_two_steps_ends_the_same(kills: list[int], end: str) -> None:
    world = World(rows=GOOD)
    world.trial["metadata"]["annotations"]["trialtap/max-retries"] = "1"
    ended = 0
    for kill in [*kills, *[99] * 40]:
        world.step(kill)
        world.now += dt.timedelta(seconds=1)
        running = world.workload is not None and "status" not in world.workload
        if running and world.trial.get("status") and world.conditions[-1] == ("Running", "True"):
            ended += 1
            world.ends("Complete" if end == "Complete" else "Failed")
            failed = (
                INFRASTRUCTURE[0][1] if end == "evicted" else pod("Failed", containerStatuses=[terminated(1)])
            )
            world.pods = [failed] if end != "Complete" else [pod("Succeeded")]
    assert world.state["type"] == ("Succeeded" if end == "Complete" else "Failed")
    assert len(world.created) == (2 if end == "evicted" else 1), "a workload was made twice"
    assert world.workload is None
    assert [c[0] for c in world.conditions].count("Running") == 1
