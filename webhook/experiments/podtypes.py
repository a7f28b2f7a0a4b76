"""The types of batch/v1 Job's and PodSpec's fields, read from the Kubernetes client's own models."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

from kubernetes.aio.client import models

JOB: Final = "V1Job"
POD_SPEC: Final = "V1PodSpec"
ANY: Final = "object"
"""A field whose type the models leave open (IntOrString among them), or that they do not know."""
QUANTITY: Final = "Quantity"
"""A resource quantity: a number or a string such as `1024Mi`."""

_LIST = re.compile(r"[Ll]ist\[(.+)\]")
_DICT = re.compile(r"[Dd]ict\[str, (.+)\]|dict\(str, (.+)\)")
_QUANTITIES: Final = frozenset({"limits", "requests", "overhead", "sizeLimit", "divisor"})
"""Fields that the models call strings, or maps of strings, and the API calls Quantity."""


@cache
def fields(type_name: str) -> Mapping[str, str] | None:
    """The fields of an object type by their JSON names, with their types; None: not an object of known fields."""
    model = getattr(models, type_name, None)
    if model is None:
        return None
    types: Mapping[str, str] = model.openapi_types
    found = {model.attribute_map[name]: of_type for name, of_type in types.items()}
    return found | {name: _quantity(found[name]) for name in _QUANTITIES & found.keys()}


def _quantity(of_type: str) -> str:
    return QUANTITY if of_type == "str" else f"Dict[str, {QUANTITY}]"


@cache
def item(type_name: str) -> str | None:
    """The type of a list's items; None: no list."""
    found = _LIST.fullmatch(type_name)
    return found[1] if found else None


@cache
def value(type_name: str) -> str | None:
    """The type of a map's values; None: no map."""
    found = _DICT.fullmatch(type_name)
    return (found[1] or found[2]) if found else None


def of_workload(workload: Mapping[str, Any]) -> str:
    """The type to begin with: `V1Job` for batch/v1's Job, else ANY."""
    return JOB if (workload.get("apiVersion"), workload.get("kind")) == ("batch/v1", "Job") else ANY


def below(type_name: str, key: str | int, child: Any) -> str:
    """The type of what stands under `key` (an index in a list) of something of this type.

    Under ANY a PodSpec is recognised by its list of named containers, so that the fields of
    a PyTorchJob's or a custom resource's pods are typed as a Job's are.
    """
    if isinstance(key, int):
        found = item(type_name)
    else:
        found = value(type_name) or (fields(type_name) or {}).get(key)
    if found is None or found == ANY:
        return POD_SPEC if _is_pod_spec(child) else ANY
    return found


def _is_pod_spec(node: Any) -> bool:
    if not isinstance(node, dict):
        return False
    containers = node.get("containers")
    return (
        isinstance(containers, list)
        and bool(containers)
        and all(isinstance(item, dict) and isinstance(item.get("name"), str) for item in containers)
    )


def pod_specs(node: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every PodSpec inside a workload, with its field path."""
    if _is_pod_spec(node):
        yield path, node
    if isinstance(node, dict):
        for key, child in node.items():
            yield from pod_specs(child, f"{path}.{key}")
    elif isinstance(node, list):
        for index, child in enumerate(node):
            yield from pod_specs(child, f"{path}[{index}]")
