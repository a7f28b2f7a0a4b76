"""How a trial that ran on this machine ends: decided by the controller's own plan, on what a cluster would hold."""

import datetime as dt
from collections.abc import Mapping
from typing import Any

from cli.trialpod import TrialPod
from controller import conditions
from controller.actions import PatchStatus
from controller.conditions import Condition
from controller.plan import ROWS_SECONDS, Observed, Rows, plan, workload_of
from trialtap import names
from trialtap.observation import Summary

JSON = dict[str, Any]


def decide(
    trial: TrialPod, exit_status: int, summaries: Mapping[str, Summary], *, early_stopped: bool
) -> Condition | None:
    """The condition in which the Trial ends.

    Args:
        trial: the Trial and its pod.
        exit_status: the primary container's; 128+n for signal n.
        summaries: what the database holds of each metric.
        early_stopped: a collector had it stopped.

    Returns:
        None for a workload whose status only its own operator writes, as any kind but a Job is.
    """
    if early_stopped:
        return Condition("EarlyStopped", "True", "TrialEarlyStopped", "Trial is early stopped")
    run = trial.trial.spec.run_spec or {}
    if (run.get("apiVersion"), run.get("kind")) != ("batch/v1", "Job"):
        return None
    now = dt.datetime.now(dt.UTC)
    rows = Rows(*_observation(trial, summaries))
    seen = Observed(
        trial=_running(trial, now),
        now=now,
        workload=_ended_job(trial, exit_status),
        pods=(_ended_pod(trial, exit_status),),
        rows=rows,
        log="",
        waited=ROWS_SECONDS,
    )
    for action in plan(seen):
        if isinstance(action, PatchStatus):
            last = action.status["conditions"][-1]
            return Condition(last["type"], last["status"], last["reason"], last["message"])
    return None


def _observation(trial: TrialPod, summaries: Mapping[str, Summary]) -> tuple[tuple[JSON, ...], str]:
    objective = trial.trial.spec.objective.objective_metric_name
    metrics = tuple(
        {"name": name, "min": found.min, "max": found.max, "latest": found.latest}
        for name in trial.trial.spec.objective.metric_names
        if (found := summaries.get(name))
    )
    return metrics, summaries[objective].latest if objective in summaries else ""


def _running(trial: TrialPod, now: dt.datetime) -> JSON:
    """The Trial as it stands while its Job runs."""
    raw = trial.owners[0]
    shown: list[JSON] = []
    for of_type, reason, message in (
        ("Created", "TrialCreated", "created"),
        ("Running", "TrialRunning", "running"),
    ):
        shown = conditions.with_condition(
            shown, Condition(of_type, "True", reason, f"Trial is {message}"), now
        )
    annotations = {names.WORKLOAD_ANNOTATION: "job", names.INDEX_ANNOTATION: "1"}
    metadata = {**raw["metadata"], "finalizers": [names.FINALIZER], "annotations": annotations}
    return {**raw, "metadata": metadata, "status": {"conditions": shown}}


def _ended_job(trial: TrialPod, exit_status: int) -> JSON:
    job = workload_of({**trial.owners[0], "spec": {"runSpec": trial.trial.spec.run_spec}}, 0)
    condition = {"type": "Failed" if exit_status else "Complete", "status": "True"}
    return {**job, "metadata": {**job["metadata"], "uid": "job"}, "status": {"conditions": [condition]}}


def _ended_pod(trial: TrialPod, exit_status: int) -> JSON:
    ended = {"exitCode": exit_status, "reason": "Error" if exit_status else "Completed"}
    container = {"name": trial.trial.spec.primary_container_name, "state": {"terminated": ended}}
    status = {"phase": "Failed" if exit_status else "Succeeded", "containerStatuses": [container]}
    return {**trial.pod, "status": status}
