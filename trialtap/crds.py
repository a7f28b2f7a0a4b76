"""The CustomResourceDefinitions of Katib's objects, generated from `objects`: `python -m trialtap.crds DIR`.

Structural, with descriptions and printer columns. They take every object that runs under Katib: any field
may be null, and fields that the types do not know are preserved at every object level.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from trialtap import names
from trialtap.objects import Experiment, Model, Trial

JSON = dict[str, Any]

_CONDITION: Final = ".status.conditions[-1:]"
_COLUMNS: Final[Mapping[str, tuple[tuple[str, str, int], ...]]] = {
    "Experiment": (
        ("Objective", ".spec.objective.objectiveMetricName", 0),
        ("Algorithm", ".spec.algorithm.algorithmName", 1),
        ("Trials", ".status.trials", 1),
        ("Succeeded", ".status.trialsSucceeded", 1),
    ),
    "Trial": (
        ("Objective", ".spec.objective.objectiveMetricName", 0),
        ("Value", f".metadata.annotations['{names.VALUE_ANNOTATION}']", 0),
        ("Reason", f"{_CONDITION}.reason", 0),
    ),
    "Suggestion": (
        ("Requested", ".spec.requests", 0),
        ("Assigned", ".status.suggestionCount", 0),
    ),
}
"""Columns between Katib's own Type, Status and Age: name, JSON path, priority (1: only with -o wide)."""
_NUMBERS: Final = frozenset({"Trials", "Succeeded", "Requested", "Assigned"})
_OPEN: Final[JSON] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def definitions() -> dict[str, JSON]:
    """Every CRD by its plural."""
    return {
        "experiments": definition("Experiment", Experiment),
        "suggestions": definition("Suggestion", None),
        "trials": definition("Trial", Trial),
    }


def definition(kind: str, model: type[Model] | None) -> JSON:
    """One CRD; without a model its spec and status are open objects."""
    singular = kind.lower()
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{singular}s.{names.GROUP}"},
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": f"{singular}s",
                "singular": singular,
                "categories": ["all", "kubeflow", "katib"],
            },
            "versions": [
                {
                    "name": names.API_VERSION.rpartition("/")[2],
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": _columns(kind),
                    "schema": {"openAPIV3Schema": _root(model)},
                }
            ],
        },
    }


def _columns(kind: str) -> list[JSON]:
    state = [("Type", f"{_CONDITION}.type", 0), ("Status", f"{_CONDITION}.status", 0)]
    columns = [_column(*column) for column in (*state, *_COLUMNS[kind])]
    return [*columns, {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}]


def _column(name: str, path: str, priority: int) -> JSON:
    column = {"name": name, "type": "integer" if name in _NUMBERS else "string", "jsonPath": path}
    return column | ({"priority": priority} if priority else {})


def _root(model: type[Model] | None) -> JSON:
    if model is None:
        return {**_OPEN, "properties": {"spec": _OPEN, "status": _OPEN}}
    schema = model.model_json_schema(by_alias=True)
    root = _structural(schema, schema["$defs"])
    root["properties"] = {name: root["properties"][name] for name in ("spec", "status")}
    return {key: value for key, value in root.items() if key != "nullable"}


def _structural(schema: JSON, known: Mapping[str, JSON]) -> JSON:
    """Turn pydantic's JSON Schema into a structural one: no references, no unions, no defaults."""
    described = {key: schema[key] for key in ("description",) if key in schema}
    if "$ref" in schema:
        return _structural(known[schema["$ref"].rpartition("/")[2]], known) | described
    if "anyOf" in schema:
        choices = [choice for choice in schema["anyOf"] if choice.get("type") != "null"]
        if {choice.get("type") for choice in choices} == {"integer", "string"}:
            return {"x-kubernetes-int-or-string": True, "nullable": True, **described}
        return _structural(choices[0], known) | described
    result: JSON = {"type": schema["type"], "nullable": True, **described}
    if schema["type"] == "array":
        result["items"] = _structural(schema["items"], known)
    elif isinstance(schema.get("additionalProperties"), dict):
        result["additionalProperties"] = _structural(schema["additionalProperties"], known)
    elif schema["type"] == "object":
        result["x-kubernetes-preserve-unknown-fields"] = True
        if "properties" in schema:
            result["properties"] = {
                name: _structural(part, known) for name, part in schema["properties"].items()
            }
    return result


def text(plural: str) -> str:
    """The YAML of one CRD."""
    made: str = yaml.safe_dump(definitions()[plural], sort_keys=False, width=110)
    return f"# Generated by `make crds` from trialtap/objects.py.\n{made}"


def main(folder: Path) -> None:
    """Write every CRD into a folder."""
    for plural in definitions():
        (folder / f"{plural}.yaml").write_text(text(plural))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
