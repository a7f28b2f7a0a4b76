"""What batch/v1 would refuse in a Job: wrong types, missing parts, names that are none. Templates may hold placeholders."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from webhook.experiments import podtypes
from webhook.experiments.faults import Faults, nearest
from webhook.experiments.render import PLACEHOLDER

_QUANTITY: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?", re.ASCII)
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_TYPES: Final[Mapping[str, tuple[type, str]]] = {
    "str": (str, "must be a string"),
    "int": (int, "must be a whole number"),
    "float": (float, "must be a number"),
    "bool": (bool, "must be true or false"),
    "datetime": (str, "must be an RFC 3339 time"),
}
_NOT_NEGATIVE: Final = (
    "parallelism",
    "completions",
    "backoffLimit",
    "activeDeadlineSeconds",
    "ttlSecondsAfterFinished",
)
_RESTART: Final = ("Never", "OnFailure")


def check(job: Mapping[str, Any], path: str, faults: Faults) -> None:
    """Check a batch/v1 Job, or a template of one."""
    _check_types(dict(job), podtypes.JOB, path, faults)
    spec = job.get("spec")
    if not isinstance(spec, dict):
        faults.required(f"{path}.spec", "a Job needs its spec")
        return
    for name in _NOT_NEGATIVE:
        number = spec.get(name)
        if isinstance(number, int) and number < 0:
            faults.invalid(f"{path}.spec.{name}", number, "must not be negative")
    template = spec.get("template")
    pod = template.get("spec") if isinstance(template, dict) else None
    if not isinstance(pod, dict):
        faults.required(f"{path}.spec.template.spec", "a Job needs the spec of its pods")
        return
    _check_pod(pod, f"{path}.spec.template.spec", faults)


def _check_pod(pod: Mapping[str, Any], path: str, faults: Faults) -> None:
    restart = pod.get("restartPolicy")
    if restart not in _RESTART and not _has_placeholder(restart):
        faults.unsupported(f"{path}.restartPolicy", restart, _RESTART)
    if not pod.get("containers"):
        faults.required(f"{path}.containers", "a pod needs at least one container")
    seen: set[str] = set()
    for here, container in _containers(pod, path):
        name = container.get("name")
        if not name:
            faults.required(f"{here}.name", "a container needs its name")
        elif isinstance(name, str) and not _has_placeholder(name):
            if name in seen:
                faults.duplicate(f"{here}.name", name, "another container has this name")
            elif len(name) > 63 or not _LABEL.fullmatch(name):
                faults.invalid(
                    f"{here}.name", name, "must be at most 63 lower-case letters, digits and dashes"
                )
            seen.add(name)
        if not container.get("image"):
            faults.required(f"{here}.image", "a container needs its image")
        _check_mounts(container, pod, here, faults)


def _containers(pod: Mapping[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for group in ("initContainers", "containers"):
        listed = pod.get(group)
        for index, container in enumerate(listed if isinstance(listed, list) else ()):
            if isinstance(container, dict):
                yield f"{path}.{group}[{index}]", container


def _check_mounts(container: Mapping[str, Any], pod: Mapping[str, Any], path: str, faults: Faults) -> None:
    volumes = pod.get("volumes")
    known = (
        [v["name"] for v in volumes if isinstance(v, dict) and "name" in v]
        if isinstance(volumes, list)
        else []
    )
    mounts = container.get("volumeMounts")
    for index, mount in enumerate(mounts if isinstance(mounts, list) else ()):
        name = mount.get("name") if isinstance(mount, dict) else None
        if isinstance(name, str) and name not in known and not any(map(_has_placeholder, (name, *known))):
            hint = nearest(name, known)
            faults.invalid(
                f"{path}.volumeMounts[{index}].name", name, f"the pod has no volume of this name{hint}"
            )


def _has_placeholder(text: object) -> bool:
    return isinstance(text, str) and PLACEHOLDER.search(text) is not None


def _check_types(node: Any, of_type: str, path: str, faults: Faults) -> None:
    if node is None or of_type == podtypes.ANY or _has_placeholder(node):
        return
    if of_type == podtypes.QUANTITY:
        if isinstance(node, bool) or not _QUANTITY.fullmatch(str(node)):
            faults.invalid(path, node, "must be a quantity such as 500m, 1.5 or 2Gi")
        return
    if of_type in _TYPES:
        _check_scalar(node, of_type, path, faults)
        return
    items, known = podtypes.item(of_type), podtypes.fields(of_type)
    if items is not None:
        if not isinstance(node, list):
            faults.invalid(path, node, "must be a list")
            return
        for index, child in enumerate(node):
            _check_types(child, items, f"{path}[{index}]", faults)
    elif not isinstance(node, dict):
        faults.invalid(path, node, "must be an object")
    elif known is None:
        for key, child in node.items():
            _check_types(child, podtypes.value(of_type) or podtypes.ANY, f"{path}.{key}", faults)
    else:
        _check_object(node, known, path, faults)


def _check_object(node: dict[str, Any], known: Mapping[str, str], path: str, faults: Faults) -> None:
    for key, child in node.items():
        if key in known:
            _check_types(child, known[key], f"{path}.{key}", faults)
        elif hint := nearest(key, known):
            faults.invalid(f"{path}.{key}", key, f"unknown field{hint}")
        elif not _has_placeholder(key):
            faults.warn(f"{path}.{key}: unknown field, an older API server drops it")


def _check_scalar(node: Any, of_type: str, path: str, faults: Faults) -> None:
    right, words = _TYPES[of_type]
    number = isinstance(node, int | float) and not isinstance(node, bool)
    if not (number if of_type == "float" else isinstance(node, right) and (of_type != "int" or number)):
        faults.invalid(path, node, words)
