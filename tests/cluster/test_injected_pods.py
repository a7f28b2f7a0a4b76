"""What admission plugins of a real API server say to an injected pod: limits, quotas, tokens, QoS classes."""

from typing import Any

import pytest

from tests.support import manifests
from tests.support.admission import recorded
from tests.support.cluster import ControlPlane, wait_until
from tests.support.objects import JSON
from trialtap.objects import Trial
from webhook import injection
from webhook.injection import Surroundings

TRIAL = Trial.model_validate(next(o for o in recorded("job-stdout")["objects"] if o["kind"] == "Trial"))
CONTAINER = {"min": {"cpu": "100m", "memory": "100Mi"}, "max": {"cpu": "2", "memory": "150Mi"}}

CASES: dict[str, tuple[JSON, JSON, list[JSON], str]] = {
    # name: (resources of the training, more of the pod's spec, limits of the LimitRange, QoS class)
    "besteffort": ({}, {}, [], "BestEffort"),
    "burstable": ({"requests": {"cpu": "1"}}, {}, [], "Burstable"),
    "guaranteed": ({"limits": {"cpu": "1", "memory": "1Gi"}}, {}, [], "Guaranteed"),
    "besteffort-by-defaults": (
        {},
        {},
        [{"type": "Container", "default": {"cpu": "1", "memory": "120Mi"}, **CONTAINER}],
        "Guaranteed",
    ),
    "minimum-and-maximum": (
        {"requests": {"cpu": "1", "memory": "128Mi"}, "limits": {"cpu": "2", "memory": "150Mi"}},
        {},
        [{"type": "Container", **CONTAINER}],
        "Burstable",
    ),
    "ratio": (
        {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}},
        {},
        [{"type": "Container", "maxLimitRequestRatio": {"cpu": "3", "memory": "2"}}],
        "Guaranteed",
    ),
    "ratio-of-burstable": (
        {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "1Gi"}},
        {},
        [{"type": "Container", "maxLimitRequestRatio": {"cpu": "3", "memory": "2"}}],
        "Burstable",
    ),
    "maximum-of-pods": (
        {"requests": {"cpu": "1800m", "memory": "1Gi"}, "limits": {"cpu": "1800m", "memory": "1Gi"}},
        {},
        [{"type": "Pod", "max": {"cpu": "2", "memory": "1100Mi"}}],
        "Guaranteed",
    ),
    "pod-level": (
        {"requests": {"cpu": "1"}},
        {"resources": {"requests": {"cpu": "2", "memory": "2Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}}},
        [],
        "Guaranteed",
    ),
    "storage": (
        {"limits": {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "10Gi"}},
        {},
        [{"type": "Container", "max": {"ephemeral-storage": "20Gi"}, "min": {"ephemeral-storage": "100Mi"}}],
        "Guaranteed",
    ),
}


def pod_of(resources: JSON, spec: JSON) -> JSON:
    container = {
        "name": "training-container",
        "image": "example.com/t:1",
        "command": ["train"],
        "resources": resources,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "mnist-a1b2c3-"},
        "spec": {"containers": [container], "restartPolicy": "Never", **spec},
    }


def submit(plane: ControlPlane, namespace: str, pod: JSON) -> JSON:
    answer = plane.create(f"/api/v1/namespaces/{namespace}/pods?dryRun=All&fieldValidation=Strict", pod)
    assert answer.status_code == 201, answer.json()["message"]
    stored: JSON = answer.json()
    return stored


def admitted(stored: JSON) -> JSON:
    """A pod as the webhook sees it after LimitRanger and ServiceAccount, in its `generateName` form."""
    metadata = {key: stored["metadata"][key] for key in ("generateName", "namespace")}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": stored["spec"]}


def injected(pod: JSON, namespace: str, ranges: list[JSON]) -> JSON:
    surroundings = Surroundings(namespace=namespace, limit_ranges=tuple(ranges))
    return injection.inject(pod, injection.plan(pod, TRIAL, surroundings))


def make_namespace(plane: ControlPlane, name: str, *objects: JSON) -> None:
    plane.apply(manifests.namespace(name, labelled=False), *objects)
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    wait_until(lambda: plane.client.get(account).status_code == 200, 20, account)


@pytest.mark.parametrize("name", CASES)
def test_limits_hold_and_the_class_stays(control_plane: ControlPlane, name: str) -> None:
    resources, spec, limits, qos = CASES[name]
    namespace = f"limits-{name}"
    ranges: list[JSON] = [
        {
            "apiVersion": "v1",
            "kind": "LimitRange",
            "metadata": {"name": "limits", "namespace": namespace},
            "spec": {"limits": limits},
        }
    ]
    make_namespace(control_plane, namespace, *(ranges if limits else ()))
    before = submit(control_plane, namespace, pod_of(resources, spec))
    after = submit(control_plane, namespace, injected(admitted(before), namespace, ranges))
    assert before["status"]["qosClass"] == after["status"]["qosClass"] == qos


def test_a_quota_finds_every_request_and_limit_that_it_asks_for(control_plane: ControlPlane) -> None:
    hard = dict.fromkeys(
        (
            "requests.cpu",
            "limits.cpu",
            "requests.memory",
            "limits.memory",
            "requests.ephemeral-storage",
            "limits.ephemeral-storage",
        ),
        "100Gi",
    )
    quota: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "all", "namespace": "quota"},
        "spec": {"hard": hard},
    }
    make_namespace(control_plane, "quota", quota)
    full = {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi"}
    pod = pod_of({"requests": {**full, "cpu": "500m"}, "limits": full}, {})
    before = submit(control_plane, "quota", pod)
    submit(control_plane, "quota", injected(admitted(before), "quota", []))


def test_the_sidecar_gets_no_api_token_and_the_training_keeps_its_own(control_plane: ControlPlane) -> None:
    make_namespace(control_plane, "tokens")
    stored = submit(control_plane, "tokens", injected(pod_of({}, {}), "tokens", []))

    def token_mounts(container: JSON) -> list[str]:
        return [m["name"] for m in container["volumeMounts"] if m["name"].startswith("kube-api-access")]

    assert token_mounts(stored["spec"]["initContainers"][-1]) == []
    assert len(token_mounts(stored["spec"]["containers"][0])) == 1
