"""The sidecar's resources: the pod keeps its class, and every LimitRange holds."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.resources import for_sidecar, qos_class, quantity
from webhook.settings import DEFAULT_RESOURCES, Resources

QUANTITIES = [
    ("0", "0"),
    ("1", "1"),
    ("500m", "0.5"),
    ("1.5", "1.5"),
    (".5", "0.5"),
    ("1e3", "1000"),
    ("1E3", "1000"),
    ("2k", "2000"),
    ("1Ki", "1024"),
    ("1.5Gi", "1610612736"),
    ("1E", "1000000000000000000"),
    ("100u", "0.0001"),
    ("7n", "0.000000007"),
    (3, "3"),
]


@pytest.mark.parametrize(("text", "value"), QUANTITIES)
def test_quantities_are_read_as_kubernetes_writes_them(text: Any, value: str) -> None:
    assert quantity(text) == Decimal(value)


@pytest.mark.parametrize("text", ["", "x", "1 Gi", "1GiB", "Ki", "1ki", None, "٣"])
def test_what_is_no_quantity_has_no_value(text: Any) -> None:
    assert quantity(text) is None


def pod(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "c", "resources": item} for item in containers], **spec}}


FULL = {"limits": {"cpu": "1", "memory": "1Gi"}}
CLASSES = [
    ("BestEffort", pod({})),
    ("BestEffort", pod({"limits": {"nvidia.com/gpu": "1"}, "requests": {"ephemeral-storage": "1Gi"}})),
    ("BestEffort", pod({"requests": {"cpu": "0"}})),
    ("Guaranteed", pod(FULL)),
    ("Guaranteed", pod({**FULL, "requests": {"cpu": "1000m", "memory": "1024Mi"}})),
    ("Burstable", pod({**FULL, "requests": {"cpu": "500m"}})),
    ("Burstable", pod(FULL, {})),
    ("Burstable", pod({"limits": {"cpu": "1"}})),
    ("Burstable", pod(FULL, initContainers=[{"name": "i"}])),
    ("Guaranteed", pod(FULL, initContainers=[{"name": "i", "resources": FULL}])),
]


@pytest.mark.parametrize(("qos", "given_pod"), CLASSES)
def test_the_class_is_the_one_that_the_api_server_computes(qos: str, given_pod: dict[str, Any]) -> None:
    assert qos_class(given_pod) == qos


@pytest.mark.parametrize(("qos", "given_pod"), CLASSES)
def test_the_pod_keeps_its_class_with_the_sidecar(qos: str, given_pod: dict[str, Any]) -> None:
    sidecar = {"name": "s", "resources": for_sidecar(given_pod, DEFAULT_RESOURCES)}
    spec = given_pod["spec"]
    with_sidecar = {"spec": {**spec, "initContainers": [*spec.get("initContainers", ()), sidecar]}}
    assert qos_class(with_sidecar) == qos


AMOUNTS = st.integers(1, 4096).map(lambda number: f"{number}Mi")
CPUS = st.integers(1, 8000).map(lambda number: f"{number}m")
ITEMS = st.fixed_dictionaries({"cpu": CPUS, "memory": AMOUNTS})


@given(ITEMS, ITEMS, ITEMS, ITEMS, st.booleans())
def test_requests_and_limits_stand_within_any_minimum_and_maximum(
    wanted_requests: dict[str, str],
    wanted_limits: dict[str, str],
    one: dict[str, str],
    other: dict[str, str],
    guaranteed: bool,
) -> None:
    bounds = {name: sorted((one[name], other[name]), key=lambda text: quantity(text) or 0) for name in one}
    limit_range = {
        "spec": {
            "limits": [
                {
                    "type": "Container",
                    "min": {name: pair[0] for name, pair in bounds.items()},
                    "max": {name: pair[1] for name, pair in bounds.items()},
                }
            ]
        }
    }
    given_pod = pod(FULL if guaranteed else {"requests": {"cpu": "1"}})
    resources = for_sidecar(given_pod, Resources(wanted_requests, wanted_limits), [limit_range])
    for name, (least, most) in bounds.items():
        request, limit = quantity(resources["requests"][name]), quantity(resources["limits"][name])
        assert request is not None
        assert limit is not None
        assert (quantity(least) or 0) <= request <= limit <= (quantity(most) or 0)
        assert not guaranteed or request == limit


RATIOS = st.decimals(1, 10, places=1)


@given(ITEMS, ITEMS, RATIOS, RATIOS)
def test_a_ratio_holds(
    requests: dict[str, str], limits: dict[str, str], cpu: Decimal, memory: Decimal
) -> None:
    item = {"type": "Container", "maxLimitRequestRatio": {"cpu": str(cpu), "memory": str(memory)}}
    limit_range = {"spec": {"limits": [item]}}
    found = for_sidecar(pod({"requests": {"cpu": "1"}}), Resources(requests, limits), [limit_range])
    for name, ratio in (("cpu", cpu), ("memory", memory)):
        limit, request = quantity(found["limits"][name]), quantity(found["requests"][name])
        assert limit is not None
        assert request is not None
        assert request <= limit <= request * ratio


def test_a_pod_s_maximum_that_is_used_up_leaves_the_sidecar_as_it_is() -> None:
    limit_range = {"spec": {"limits": [{"type": "Pod", "max": {"cpu": "1"}}]}}
    found = for_sidecar(pod(FULL, {}), DEFAULT_RESOURCES, [limit_range])
    assert found["limits"]["cpu"] == "500m"


ODD = {"spec": {"limits": [{"type": "Container", "maxLimitRequestRatio": {"cpu": "x", "pods": "2"}}]}}


@pytest.mark.parametrize(
    "limit_range", [{}, {"spec": None}, {"spec": {"limits": None}}, {"spec": {"limits": [{}]}}, ODD]
)
def test_a_limit_range_that_says_nothing_limits_nothing(limit_range: dict[str, Any]) -> None:
    assert (
        for_sidecar(pod({"requests": {"cpu": "1"}}), DEFAULT_RESOURCES, [limit_range])["limits"]["cpu"]
        == "500m"
    )


@pytest.mark.parametrize(
    ("containers", "limited"),
    [
        ([{"limits": {"ephemeral-storage": "1Gi", "cpu": "1"}}], True),
        ([{"limits": {"ephemeral-storage": "1Gi", "cpu": "1"}}, {"limits": {"cpu": "1"}}], False),
        ([{"limits": {"cpu": "1"}}], False),
    ],
)
def test_storage_is_limited_only_where_every_container_s_is(
    containers: list[dict[str, Any]], limited: bool
) -> None:
    found = for_sidecar(pod(*containers), DEFAULT_RESOURCES)
    assert ("ephemeral-storage" in found["limits"]) is limited
    assert "ephemeral-storage" in found["requests"]
