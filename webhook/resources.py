"""The sidecar's requests and limits, so that the pod keeps its QoS class and the namespace's LimitRanges hold."""

import re
from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any, Final

from webhook.review import JSON
from webhook.settings import DEFAULT_RESOURCES, Resources

_COMPUTE: Final = ("cpu", "memory")
_STORAGE: Final = "ephemeral-storage"
_SUFFIXES: Final[dict[str, Decimal]] = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    **{letter: Decimal(1000) ** power for power, letter in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", 1)},
}
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))([eE][+-]?\d+|[numkMGTPE]?|[KMGTPE]i)", re.ASCII)


def quantity(text: Any) -> Decimal | None:
    """A Kubernetes quantity (`500m`, `1Gi`, `1e3`) in base units; None when it is none."""
    match = _QUANTITY.fullmatch(str(text))
    if match is None:
        return None
    number, suffix = match.groups()
    if suffix[:1] in ("e", "E") and len(suffix) > 1:
        return Decimal(number + suffix)
    return Decimal(number) * _SUFFIXES[suffix]


def qos_class(pod: JSON) -> str:
    """Guaranteed, Burstable or BestEffort, as the API server will compute it (cpu and memory alone count)."""
    spec = pod["spec"]
    containers = [*spec.get("containers", ()), *(spec.get("initContainers") or ())]
    some = False
    all_equal = True
    for container in containers:
        resources = container.get("resources") or {}
        requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
        for name in _COMPUTE:
            limit, request = limits.get(name), requests.get(name, limits.get(name))
            some = some or bool(request is not None and quantity(request))
            all_equal = all_equal and limit is not None and quantity(limit) == quantity(request)
    if not some:
        return "BestEffort"
    return "Guaranteed" if all_equal else "Burstable"


def for_sidecar(pod: JSON, wanted: Resources, limit_ranges: Iterable[JSON] = ()) -> JSON:
    """`resources` of the sidecar of this pod.

    - A pod with resources of its own (`spec.resources`) shares those: none are set.
    - A BestEffort pod stays BestEffort: none are set, unless a LimitRange would give defaults anyway.
    - A Guaranteed pod stays Guaranteed: requests equal limits (the requested cpu, the limit of memory).
    - Any other: requests and limits are always explicit, so that a ResourceQuota finds what it asks for.
    - No limit of ephemeral storage unless every regular container has one: passing the pod's sum evicts
      the training.
    """
    ranges = [item for entry in limit_ranges for item in (entry.get("spec") or {}).get("limits") or ()]
    if pod["spec"].get("resources"):
        return {}
    qos = qos_class(pod)
    if qos == "BestEffort" and not _defaulted(ranges):
        return {}
    requests = {**DEFAULT_RESOURCES.requests, **wanted.requests}
    limits = {**DEFAULT_RESOURCES.limits, **wanted.limits}
    for name in limits.keys() & requests.keys():
        if (quantity(limits[name]) or 0) < (quantity(requests[name]) or 0):
            limits[name] = requests[name]
    if not _all_limit_storage(pod):
        limits.pop(_STORAGE, None)
    if qos == "Guaranteed":
        limits["cpu"] = requests["cpu"]
        requests["memory"] = limits["memory"]
    if ranges:
        _clamp(pod, requests, limits, ranges)
        if qos == "Guaranteed":
            requests.update({name: limits[name] for name in _COMPUTE})
    return {"requests": requests, "limits": limits}


def _defaulted(ranges: Iterable[JSON]) -> bool:
    """Whether a LimitRange gives a container without cpu and memory some."""
    return any(
        item.get("type") == "Container"
        and any((item.get(field) or {}).keys() & set(_COMPUTE) for field in ("default", "defaultRequest"))
        for item in ranges
    )


def _all_limit_storage(pod: JSON) -> bool:
    return all(
        _STORAGE in ((container.get("resources") or {}).get("limits") or {})
        for container in pod["spec"].get("containers", ())
    )


def _clamp(pod: JSON, requests: dict[str, str], limits: dict[str, str], ranges: list[JSON]) -> None:
    """Bring both into every range: up to the minimum, down to the maximum, then within the ratio."""
    for item in ranges:
        if item.get("type") == "Container":
            for name, least in (item.get("min") or {}).items():
                for side in (requests, limits):
                    if name in side and _less(side[name], least):
                        side[name] = least
            for name, most in (item.get("max") or {}).items():
                for side in (requests, limits):
                    if name in side and _less(most, side[name]):
                        side[name] = most
    for item in ranges:
        if item.get("type") == "Pod":
            _leave_room(pod, requests, limits, item.get("max") or {})
        elif item.get("type") == "Container":
            _hold_ratio(requests, limits, item.get("maxLimitRequestRatio") or {})


def _leave_room(pod: JSON, requests: dict[str, str], limits: dict[str, str], most: Mapping[str, str]) -> None:
    """Keep the whole pod's limits under its maximum, where what the others leave is enough to live on."""
    for name, bound in most.items():
        top = quantity(bound)
        if top is None or name not in limits:
            continue
        left = top - sum(
            quantity(((container.get("resources") or {}).get("limits") or {}).get(name, 0)) or 0
            for container in pod["spec"].get("containers", ())
        )
        if 0 < left < (quantity(limits[name]) or 0):
            limits[name] = _text(left, name)
            if _less(limits[name], requests.get(name, "0")):
                requests[name] = limits[name]


def _hold_ratio(requests: dict[str, str], limits: dict[str, str], ratios: Mapping[str, str]) -> None:
    """Lower the limit of cpu, which only slows down; raise the request of anything else."""
    for name, text in ratios.items():
        ratio, limit = quantity(text), quantity(limits.get(name, ""))
        request = quantity(requests.get(name, ""))
        if ratio is None or limit is None or request is None or limit <= request * ratio:
            continue
        if name == "cpu":
            limits[name] = _text(request * ratio, name)
        else:
            requests[name] = _text(limit / ratio, name, up=True)


def _less(one: Any, other: Any) -> bool:
    first, second = quantity(one), quantity(other)
    return first is not None and second is not None and first < second


def _text(value: Decimal, name: str, *, up: bool = False) -> str:
    """Write in thousandths of a cpu, and whole bytes of anything else, rounded to the safe side."""
    rounding = ROUND_CEILING if up else ROUND_FLOOR
    if name == "cpu":
        return f"{int((value * 1000).to_integral_value(rounding))}m"
    return str(int(value.to_integral_value(rounding)))
