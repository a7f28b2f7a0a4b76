"""What to do about one Trial: a pure function of what was observed. Katib's life of a Trial, flaws apart.

Each answer is one step with its Events; the next step is decided on what that one made. So a controller
that dies between two steps goes on where it was, and two that believe to be the only one do no harm:
every write names the version or UID that it was decided on.
"""

import datetime as dt
import json
from dataclasses import dataclass
from typing import Any, Final

from controller import conditions, failures
from controller.actions import (
    Action,
    Annotate,
    Create,
    DeleteRows,
    DeleteWorkload,
    Emit,
    PatchStatus,
    ReadLog,
    ReadRows,
    Wait,
)
from controller.conditions import Condition
from controller.gjson import ConditionError, Met, evaluate
from trialtap import names
from trialtap.kinds import defaults_of
from trialtap.names import UNAVAILABLE
from trialtap.objects import Objective

JSON = dict[str, Any]

SETTLE_SECONDS: Final = 5.0
"""How long a success without rows, or a failure without a failed pod, may be a matter of order only."""
ROWS_SECONDS: Final = 90.0
"""How long open streams are waited for; a collector unheard of for 60 s holds nothing back any more."""
HOLD_SECONDS: Final = 5.0
"""How often a Trial that cannot begin is looked at again; such a look makes no call."""
STUCK_SECONDS: Final = 300.0
"""A pod that could not start for so long counts as failed where the trial may be retried."""
STOPPING_SECONDS: Final = 60.0
"""How long an early-stopped training may take to end by itself before its workload is deleted."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What the database says of a trial."""

    metrics: tuple[JSON, ...] = ()
    """`observation.metrics`: name, min, max, latest, in the order of the strategies."""
    objective: str = ""
    """The objective's latest value; "" when there is none."""
    held_back: bool = False
    """There are rows, and a stream of the trial is still open."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that the decision rests on."""

    trial: JSON
    now: dt.datetime
    workload: JSON | None = None
    pods: tuple[JSON, ...] = ()
    """The trial's pods, as its label names them."""
    kind_fault: str = ""
    """Why workloads of this kind are not seen; "" when they are."""
    trouble: str = ""
    """Why the workload could not be made; "" when it was not tried or went well."""
    rows: Rows | None = None
    """None: not read."""
    log: str | None = None
    """The failed container's last lines; None: not read."""
    waited: float = 0.0
    """Seconds since the workload was first seen to have ended, or the trial to be stopped early."""
    next_index: int = 1
    """The running number that a new trial of the experiment gets."""

    @property
    def spec(self) -> JSON:
        """The Trial's spec."""
        held: JSON = self.trial.get("spec") or {}
        return held

    @property
    def metadata(self) -> JSON:
        """The Trial's metadata."""
        held: JSON = self.trial["metadata"]
        return held

    @property
    def annotations(self) -> JSON:
        """The Trial's annotations."""
        held: JSON = self.metadata.get("annotations") or {}
        return held

    @property
    def experiment(self) -> str:
        """Name of the Experiment that the trial is of; "" for one made by hand."""
        return str((self.metadata.get("labels") or {}).get(names.EXPERIMENT_LABEL) or "")

    @property
    def wants_index(self) -> bool:
        """Whether the trial has yet to get its running number."""
        return bool(self.experiment) and names.INDEX_ANNOTATION not in self.annotations

    @property
    def attempt(self) -> int:
        """Number of the present attempt, from 0."""
        return _number(self.annotations.get(names.ATTEMPT_ANNOTATION))

    @property
    def owned(self) -> bool:
        """Whether the workload of the trial's name is the trial's."""
        references = ((self.workload or {}).get("metadata") or {}).get("ownerReferences") or ()
        return any(reference.get("uid") == self.metadata["uid"] for reference in references)

    @property
    def kind(self) -> str:
        """Kind of the workload."""
        return str((self.spec.get("runSpec") or {}).get("kind") or "workload")


def plan(seen: Observed) -> tuple[Action, ...]:
    """Decide the next step; empty: nothing to do until something changes."""
    if seen.metadata.get("deletionTimestamp"):
        return _deleted(seen)
    if conditions.ended(seen.trial):
        return _clean(seen)
    if names.FINALIZER not in (seen.metadata.get("finalizers") or ()) or seen.wants_index:
        index: dict[str, str | None] = (
            {names.INDEX_ANNOTATION: str(seen.next_index)} if seen.wants_index else {}
        )
        return (Annotate(index, finalizer=True),)
    if not conditions.has(seen.trial, "Created"):
        status = {"startTime": conditions.rfc3339(seen.now)}
        created = Condition("Created", "True", "TrialCreated", "Trial is created")
        return (_status(seen, created, **status), Emit("Normal", "TrialCreated", "Trial is created"))
    if conditions.has(seen.trial, "EarlyStopped"):
        return _early_stopped(seen)
    return _begin(seen)


# On the way to a running workload.


def _begin(seen: Observed) -> tuple[Action, ...]:
    if seen.kind_fault:
        return _hold(seen, seen.kind_fault)
    if seen.workload is None:
        return _lost(seen) if names.WORKLOAD_ANNOTATION in seen.annotations else _create(seen)
    return _follow(seen, seen.workload["metadata"])


def _follow(seen: Observed, metadata: JSON) -> tuple[Action, ...]:
    """The workload is there: see that it is ours and of this attempt, then judge it."""
    if not seen.owned:
        return _hold(
            seen,
            f"{seen.kind} {_place(seen)} exists and is not this trial's: delete it, or name the trial otherwise",
        )
    if metadata.get("deletionTimestamp"):
        return ()
    if _number((metadata.get("annotations") or {}).get(names.ATTEMPT_ANNOTATION)) != seen.attempt:
        return (DeleteWorkload(metadata["uid"]),)
    if seen.annotations.get(names.WORKLOAD_ANNOTATION) != metadata["uid"]:
        return (
            Annotate({names.WORKLOAD_ANNOTATION: metadata["uid"]}),
            Emit("Normal", "JobCreated", f"{seen.kind} {_place(seen)} has been created"),
        )
    return _judge(seen)


def _create(seen: Observed) -> tuple[Action, ...]:
    """Make the workload; why that did not go well the last time is shown meanwhile."""
    shown = _hold(seen, seen.trouble)
    return (
        *(action for action in shown if not isinstance(action, Wait)),
        Create(workload_of(seen.trial, seen.attempt)),
    )


def workload_of(trial: JSON, attempt: int) -> JSON:
    """The workload of a trial: its runSpec, named as the Trial, owned by it, with its labels."""
    metadata, run = trial["metadata"], trial["spec"]["runSpec"]
    given = run.get("metadata") or {}
    annotations = dict(given.get("annotations") or {})
    if attempt:
        annotations[names.ATTEMPT_ANNOTATION] = str(attempt)
    owner = {
        "apiVersion": names.API_VERSION,
        "kind": "Trial",
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        **{key: value for key, value in run.items() if key != "status"},
        "metadata": {
            **given,
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "labels": {**(given.get("labels") or {}), **(metadata.get("labels") or {})},
            **({"annotations": annotations} if annotations else {}),
            "ownerReferences": [owner],
        },
    }


def _hold(seen: Observed, why: str) -> tuple[Action, ...]:
    """Say in the condition that is the state why it does not go on; it does as soon as that is mended."""
    if conditions.has(seen.trial, "Running"):
        shown = Condition("Running", "True", "TrialRunning", _joined("Trial is running", why))
    else:
        shown = Condition("Created", "True", "TrialCreated", _joined("Trial is created", why))
    changed = _status(seen, shown)
    if changed.status["conditions"] == conditions.conditions(seen.trial):
        return (Wait(HOLD_SECONDS),) if why else ()
    event = (Emit("Warning", "TrialWaiting", why),) if why else ()
    return (changed, *event, Wait(HOLD_SECONDS))


def _lost(seen: Observed) -> tuple[Action, ...]:
    """The workload was made and is gone: somebody deleted it."""
    message = f"{seen.kind} {_place(seen)} was deleted before it ended"
    return _ended_badly(seen, Met(), failures.Cause(True, "WorkloadDeleted", message))


# While it runs, and when it has ended.


def _judge(seen: Observed) -> tuple[Action, ...]:
    workload = seen.workload or {}
    default = defaults_of(workload)
    success = seen.spec.get("successCondition") or (default.success if default else "")
    failure = seen.spec.get("failureCondition") or (default.failure if default else "")
    try:
        failed = evaluate(workload, failure)
        succeeded = None if failed else evaluate(workload, success)
    except ConditionError as error:
        return _running(seen, str(error))
    if failed:
        return _failed(seen, failed)
    if succeeded:
        return _succeeded(seen, succeeded)
    return _running(seen, "")


def _running(seen: Observed, fault: str) -> tuple[Action, ...]:
    stuck = failures.stuck(seen.pods)
    if stuck and _may_retry(seen) and _age(seen, stuck.pod) > STUCK_SECONDS:
        return _ended_badly(seen, Met(), stuck)
    message = _joined("Trial is running", fault or (stuck.message if stuck else ""))
    changed = _status(seen, Condition("Running", "True", "TrialRunning", message))
    wait = (Wait(STUCK_SECONDS / 5),) if stuck else ()
    if changed.status["conditions"] == conditions.conditions(seen.trial):
        return wait
    event = (
        (Emit("Warning", "TrialStuck", fault or (stuck.message if stuck else "")),) if fault or stuck else ()
    )
    return (changed, *event, *wait)


def _failed(seen: Observed, met: Met) -> tuple[Action, ...]:
    cause = failures.cause(seen.pods, str(seen.spec.get("primaryContainerName")))
    if cause is None and seen.waited < SETTLE_SECONDS:
        return (Wait(1.0, settling=True),)  # the workload's end may be seen before its pods'
    return _ended_badly(seen, met, cause)


def _ended_badly(seen: Observed, met: Met, cause: failures.Cause | None) -> tuple[Action, ...]:
    """Try again what the infrastructure ended, as long as the trial says so; else the trial has failed."""
    if cause and cause.infrastructure and _may_retry(seen):
        return _retry(seen, cause)
    if cause and cause.container and seen.log is None:
        return (ReadLog(cause.pod, cause.container),)
    details = [cause.message] if cause else []
    if seen.log:
        details.append(f"its last lines:\n{seen.log}")
    if cause and cause.infrastructure and seen.attempt:
        details.append(f"after {seen.attempt} retries")
    condition = Condition(
        "Failed",
        "True",
        _with_job("TrialFailed", "reason", met.reason),
        _joined(_with_job("Trial has failed", "message", met.message), "; ".join(details)),
    )
    return (
        _status(seen, condition, completionTime=conditions.rfc3339(seen.now)),
        Emit("Warning", "JobFailed", _joined(f"{seen.kind} {_place(seen)} has failed", "; ".join(details))),
    )


def _may_retry(seen: Observed) -> bool:
    run = (seen.spec.get("runSpec") or {}).get("metadata") or {}
    allowed = seen.annotations.get(names.MAX_RETRIES_ANNOTATION) or (run.get("annotations") or {}).get(
        names.MAX_RETRIES_ANNOTATION
    )
    return seen.attempt < _number(allowed)


def _retry(seen: Observed, cause: failures.Cause) -> tuple[Action, ...]:
    """Count one more attempt; the old workload, no longer of this attempt, goes before a new one is made."""
    try:
        before = json.loads(seen.annotations.get(names.ATTEMPTS_ANNOTATION) or "[]")
    except ValueError:
        before = []
    ended = {
        "attempt": seen.attempt,
        "reason": cause.reason,
        "node": cause.node,
        "ended": conditions.rfc3339(seen.now),
    }
    return (
        Annotate(
            {
                names.ATTEMPT_ANNOTATION: str(seen.attempt + 1),
                names.ATTEMPTS_ANNOTATION: json.dumps([*before, ended]),
                names.WORKLOAD_ANNOTATION: None,
            }
        ),
        Emit("Warning", "TrialRetried", f"attempt {seen.attempt} ended: {cause.message}; trying again"),
    )


def _succeeded(seen: Observed, met: Met) -> tuple[Action, ...]:
    if seen.rows is None:
        return (ReadRows(),)
    completed = {"completionTime": conditions.rfc3339(seen.now)}
    if _has_objective(seen, seen.rows):
        condition = Condition(
            "Succeeded",
            "True",
            _with_job("TrialSucceeded", "reason", met.reason),
            _with_job("Trial has succeeded", "message", met.message),
        )
        observation = {"metrics": list(seen.rows.metrics)}
        return (
            _status(seen, condition, observation=observation, **completed),
            Emit("Normal", "JobSucceeded", f"{seen.kind} {_place(seen)} has succeeded"),
        )
    if seen.rows.objective != UNAVAILABLE and _rows_may_come(seen):
        return (Wait(1.0, settling=True),)
    why = _no_metrics(seen)
    condition = Condition(
        "MetricsUnavailable",
        "True",
        _with_job("MetricsUnavailable", "reason", met.reason),
        _joined(_with_job("Metrics are not available", "message", met.message), why),
    )
    return (_status(seen, condition, **completed), Emit("Warning", "MetricsUnavailable", why))


def _has_objective(seen: Observed, rows: Rows) -> bool:
    """Whether there is a value of the objective, and no more of them are to be expected."""
    return rows.objective not in {"", UNAVAILABLE} and not (rows.held_back and _rows_may_come(seen))


def _rows_may_come(seen: Observed) -> bool:
    """Whether a stream is open, or a pod still runs, and it is not too late."""
    if seen.waited >= ROWS_SECONDS:
        return False
    alive = any((pod.get("status") or {}).get("phase") in {"Pending", "Running"} for pod in seen.pods)
    return (seen.rows is not None and seen.rows.held_back) or alive or seen.waited < SETTLE_SECONDS


def _no_metrics(seen: Observed) -> str:
    objective = (seen.spec.get("objective") or {}).get("objectiveMetricName")
    collector = ((seen.spec.get("metricsCollector") or {}).get("collector") or {}).get("kind") or "StdOut"
    if collector == "Push":
        return (
            f"no value of the objective metric {objective!r} was reported: with collector Push the training itself calls "
            "report_metrics"
        )
    return (
        f"no value of the objective metric {objective!r} was reported: the log of the collector's container in the trial's "
        f"pod says what was seen and what was looked for, and the pod's annotation {names.DECISION_ANNOTATION} whether it "
        "has a collector"
    )


# Early stopping, and what is left to do at the end.


def _early_stopped(seen: Observed) -> tuple[Action, ...]:
    """Take the observation of a trial that was stopped early, and only then let its workload go."""
    if (seen.trial.get("status") or {}).get("observation"):
        return _clean(seen)
    if seen.rows is None:
        return (ReadRows(),)
    if _has_objective(seen, seen.rows) or (seen.rows.metrics and not _rows_may_come(seen)):
        return (PatchStatus({"observation": {"metrics": list(seen.rows.metrics)}}),)
    return (Wait(1.0, settling=True),) if _rows_may_come(seen) else _clean(seen)


def _clean(seen: Observed) -> tuple[Action, ...]:
    """Note the objective's value, and delete the workload of a trial that has ended unless the trial keeps it."""
    value = _value(seen.trial)
    if value and seen.annotations.get(names.VALUE_ANNOTATION) != value:
        return (Annotate({names.VALUE_ANNOTATION: value}),)
    if seen.spec.get("retainRun") or seen.workload is None or not seen.owned:
        return ()
    if seen.workload["metadata"].get("deletionTimestamp"):
        return ()
    alive = any((pod.get("status") or {}).get("phase") == "Running" for pod in seen.pods)
    if conditions.has(seen.trial, "EarlyStopped") and alive and seen.waited < STOPPING_SECONDS:
        return (Wait(2.0, settling=True),)
    return (DeleteWorkload(seen.workload["metadata"]["uid"]),)


def _value(trial: JSON) -> str:
    """The objective's value in the observation, by its strategy; "" without one."""
    objective = Objective.model_validate(trial["spec"].get("objective") or {})
    strategy = objective.strategies.get(objective.objective_metric_name, "latest")
    metrics = ((trial.get("status") or {}).get("observation") or {}).get("metrics") or ()
    found: JSON = next((m for m in metrics if m.get("name") == objective.objective_metric_name), {})
    value = str(found.get(strategy) or "")
    return "" if value == UNAVAILABLE else value


def _deleted(seen: Observed) -> tuple[Action, ...]:
    """The Trial is being deleted: its workload first, then its rows, then the finalizer."""
    if names.FINALIZER not in (seen.metadata.get("finalizers") or ()):
        return ()
    if seen.workload is not None and seen.owned:
        if seen.workload["metadata"].get("deletionTimestamp"):
            return ()
        return (DeleteWorkload(seen.workload["metadata"]["uid"]),)
    return (DeleteRows(), Annotate(finalizer=False))


# Words.


def _status(seen: Observed, condition: Condition, **more: Any) -> PatchStatus:
    """The status with this condition as the state; Running ends with a final one."""
    held = conditions.conditions(seen.trial)
    if condition.type in conditions.FINAL:
        held = conditions.without_running(held, seen.now)
    return PatchStatus({"conditions": conditions.with_condition(held, condition, seen.now), **more})


def _with_job(text: str, what: str, value: str) -> str:
    """Katib's way of passing on what the workload says: `. Job reason: R`."""
    return f"{text}. Job {what}: {value}" if value else text


def _joined(text: str, more: str) -> str:
    return f"{text}. {more}" if more else text


def _place(seen: Observed) -> str:
    return f"{seen.metadata['namespace']}/{seen.metadata['name']}"


def _number(text: object) -> int:
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() else 0


def _age(seen: Observed, pod: str) -> float:
    """Seconds since a pod was made."""
    made = next(
        (p["metadata"].get("creationTimestamp") for p in seen.pods if p["metadata"].get("name") == pod), None
    )
    return (seen.now - dt.datetime.fromisoformat(made)).total_seconds() if made else 0.0
