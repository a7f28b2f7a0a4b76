"""Experiments and Trials for tests: a valid one, and changes of it by JSON pointers."""

import copy
from pathlib import Path
from typing import Any

import yaml

CASES = Path(__file__).parents[1] / "cases" / "experiments"
BASE = yaml.safe_load((CASES / "base.yaml").read_text())
JSON = dict[str, Any]


def changed(changes: JSON, base: JSON = BASE) -> JSON:
    """The base with values set at JSON pointers; null removes."""
    result = copy.deepcopy(base)
    for pointer, value in copy.deepcopy(changes).items():
        *above, last = pointer.replace("~1", "\0").strip("/").split("/")
        node: Any = result
        for part in above:
            node = node[int(part)] if isinstance(node, list) else node.setdefault(part, {})
        if isinstance(node, list):
            index = int(last)
            node[index : index + 1] = [] if value is None else [value]
        elif value is None:
            node.pop(last, None)
        else:
            node[last] = value
    return result


def trial(changes: JSON | None = None) -> JSON:
    return changed(
        changes or {},
        {
            "apiVersion": "kubeflow.org/v1beta1",
            "kind": "Trial",
            "metadata": {"name": "random-abcd1234", "namespace": "hpo"},
            "spec": {
                "objective": copy.deepcopy(BASE["spec"]["objective"]),
                "parameterAssignments": [{"name": "lr", "value": "0.01"}],
                "primaryContainerName": "training",
                "runSpec": copy.deepcopy(BASE["spec"]["trialTemplate"]["trialSpec"]),
            },
        },
    )
