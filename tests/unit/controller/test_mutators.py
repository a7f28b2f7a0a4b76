"""Hooks on workloads: found as entry points, run in order, held to their promise."""

from importlib.metadata import EntryPoint
from typing import Any

import pytest

from controller import mutators

JSON = dict[str, Any]
WORKLOAD = {"metadata": {"name": "t", "namespace": "ns", "ownerReferences": [{"uid": "u"}]}, "spec": {}}
TRIAL: JSON = {"metadata": {"name": "t"}}


def add_queue(workload: JSON, trial: JSON) -> JSON:
    """What docs/trials.md shows."""
    workload["metadata"].setdefault("labels", {})["kueue.x-k8s.io/queue-name"] = "trials"
    return workload


def rename(workload: JSON, trial: JSON) -> JSON:
    return {**workload, "metadata": {**workload["metadata"], "name": "other"}}


def fail(workload: JSON, trial: JSON) -> JSON:
    raise KeyError("queue")


def copy() -> JSON:
    return {**WORKLOAD, "metadata": {**WORKLOAD["metadata"]}}


def test_an_entry_point_adds_a_queue_label(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("queue", f"{__name__}:add_queue", mutators.GROUP)
    monkeypatch.setattr(EntryPoint, "load", lambda _self: add_queue)
    monkeypatch.setattr(mutators, "entry_points", lambda group: [entry] if group == mutators.GROUP else [])
    found = mutators.apply(mutators.load(), copy(), TRIAL)
    assert found["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "trials"}


@pytest.mark.parametrize("hook", [rename, fail, lambda _workload, _trial: None])
def test_a_hook_that_breaks_its_promise_is_named(hook: mutators.Mutator) -> None:
    with pytest.raises(mutators.MutatorError, match="mutator bad"):
        mutators.apply({"bad": hook}, copy(), TRIAL)


def test_a_hook_that_cannot_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("missing", "no_such_package:hook", mutators.GROUP)
    monkeypatch.setattr(mutators, "entry_points", lambda group: [entry] if group else [])
    with pytest.raises(mutators.MutatorError, match="missing"):
        mutators.load()
