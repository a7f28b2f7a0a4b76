"""A cluster in memory, just large enough for one Trial: it does what the controller's actions say."""

import copy
import datetime as dt
from dataclasses import dataclass, field
from typing import Any

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
from controller.plan import Observed, Rows, plan

JSON = dict[str, Any]
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
SUCCESS = 'status.conditions.#(type=="Complete")#|#(status=="True")#'
FAILURE = 'status.conditions.#(type=="Failed")#|#(status=="True")#'


def trial(**spec: Any) -> JSON:
    return {
        "apiVersion": "kubeflow.org/v1beta1",
        "kind": "Trial",
        "metadata": {
            "name": "t",
            "namespace": "ns",
            "uid": "trial-uid",
            "labels": {"katib.kubeflow.org/experiment": "e"},
            "annotations": {},
            "finalizers": [],
        },
        "spec": {
            "objective": {"type": "minimize", "objectiveMetricName": "loss"},
            "primaryContainerName": "main",
            "successCondition": SUCCESS,
            "failureCondition": FAILURE,
            "runSpec": {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"labels": {"own": "1"}},
                "spec": {},
            },
            **spec,
        },
    }


GOOD = Rows(({"name": "loss", "min": "0.1", "max": "0.9", "latest": "0.2"},), "0.2")


@dataclass
class World:
    """Objects, and a log of what was done. `step` observes, plans and performs once."""

    trial: JSON = field(default_factory=trial)
    workload: JSON | None = None
    pods: list[JSON] = field(default_factory=list)
    rows: Rows = field(default_factory=Rows)
    rows_deleted: bool = False
    log: str = "Traceback: boom"
    kind_fault: str = ""
    trouble: str = ""
    now: dt.datetime = START
    since: dt.datetime | None = None
    gone: bool = False
    events: list[Emit] = field(default_factory=list)
    created: list[JSON] = field(default_factory=list)
    uids: int = 0

    def observe(self) -> Observed:
        waited = (self.now - self.since).total_seconds() if self.since else 0.0
        return Observed(
            copy.deepcopy(self.trial),
            self.now,
            copy.deepcopy(self.workload),
            tuple(copy.deepcopy(self.pods)),
            self.kind_fault,
            self.trouble,
            waited=waited,
        )

    def step(self, stop_after: int = 99) -> list[Action]:
        """One look; performs at most so many actions, as a controller that is killed in between does."""
        seen = self.observe()
        actions = list(plan(seen))
        while len(actions) == 1 and isinstance(actions[0], ReadRows | ReadLog):
            if isinstance(actions[0], ReadRows):
                self.since = self.since or self.now
                object.__setattr__(seen, "rows", self.rows)
            else:
                object.__setattr__(seen, "log", self.log)
            actions = list(plan(seen))
        for action in actions[:stop_after]:
            self.perform(action)
        return actions

    def settle(self, steps: int = 50) -> None:
        """Look until nothing is left to do; time passes where the plan waits."""
        for _ in range(steps):
            actions = self.step()
            if all(isinstance(action, Wait) for action in actions):
                if not actions or actions[0].seconds > 2:  # type: ignore[union-attr]
                    return
                self.now += dt.timedelta(seconds=actions[0].seconds)  # type: ignore[union-attr]
        raise AssertionError("the plan does not come to rest")

    def perform(self, action: Action) -> None:  # noqa: PLR0912 - one branch an action
        metadata = self.trial["metadata"]
        match action:
            case Annotate():
                for key, value in action.annotations.items():
                    if value is None:
                        metadata["annotations"].pop(key, None)
                    else:
                        metadata["annotations"][key] = value
                if action.finalizer is True and "clean-metrics-in-db" not in metadata["finalizers"]:
                    metadata["finalizers"].append("clean-metrics-in-db")
                if action.finalizer is False:
                    metadata["finalizers"].remove("clean-metrics-in-db")
                    self.gone = bool(metadata.get("deletionTimestamp"))
            case PatchStatus():
                self.trial["status"] = {**self.trial.get("status", {}), **copy.deepcopy(action.status)}
            case Create():
                assert self.workload is None, "two workloads at once"
                self.uids += 1
                self.workload = copy.deepcopy(action.body)
                self.workload["metadata"]["uid"] = f"workload-{self.uids}"
                self.created.append(self.workload)
            case DeleteWorkload():
                assert self.workload is not None
                assert self.workload["metadata"]["uid"] == action.uid
                self.workload = None
                self.pods = []
            case DeleteRows():
                self.rows_deleted = True
            case Emit():
                self.events.append(action)
            case Wait():
                if action.settling:
                    self.since = self.since or self.now

    def run(self) -> "World":
        """Let the trial run, its pod too."""
        self.settle()
        assert self.workload is not None
        self.pods = [pod("Running")]
        return self

    def ends(self, of_type: str, **more: Any) -> None:
        """The workload's controller says how it ended."""
        assert self.workload is not None
        condition = {"type": of_type, "status": "True", "reason": "R", "message": "M", **more}
        self.workload["status"] = {"conditions": [condition]}

    @property
    def conditions(self) -> list[tuple[str, str]]:
        return [(c["type"], c["status"]) for c in self.trial.get("status", {}).get("conditions", [])]

    @property
    def state(self) -> JSON:
        last: JSON = self.trial["status"]["conditions"][-1]
        return last


def pod(phase: str, name: str = "t-0", **status: Any) -> JSON:
    return {
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": name,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"nodeName": "node1"},
        "status": {"phase": phase, **status},
    }


def terminated(code: int, reason: str = "Error", name: str = "main", **more: Any) -> JSON:
    return {"name": name, "state": {"terminated": {"exitCode": code, "reason": reason, **more}}}
