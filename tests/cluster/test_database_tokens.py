"""Tokens of a real API server open their own namespace in the DB manager, and nothing else does."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.cluster import ControlPlane
from tests.unit.dbmanager.conftest import Process
from trialtap.messages import GET, REPORT


@pytest.fixture
def namespaces(control_plane: ControlPlane) -> tuple[str, str, str]:
    """Two users' namespaces and the DB manager's, where an account may create TokenReviews and nothing else."""
    names = tuple(f"tokens-{word}-{uuid.uuid4().hex[:6]}" for word in ("a", "b", "home"))
    rbac = "rbac.authorization.k8s.io"
    role = names[2]
    control_plane.apply(
        *({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in names),
        *(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "runner", "namespace": name}}
            for name in names
        ),
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": role},
            "rules": [
                {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]}
            ],
        },
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": role},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": "runner", "namespace": role}],
        },
    )
    return names[0], names[1], names[2]


@pytest.fixture
def served(
    control_plane: ControlPlane, namespaces: tuple[str, str, str], tmp_path: Path
) -> Iterator[Process]:
    kubeconfig = control_plane.kubeconfig(control_plane.token(namespaces[2], "runner"))
    process = Process(f"sqlite:///{tmp_path}/x.db", "--auth", "token", "--kubeconfig", str(kubeconfig))
    yield process
    process.kill()


def report(namespace: str) -> Any:
    request = REPORT.request(trial_name="t")
    log = request.observation_log.metric_logs.add(time_stamp="2026-01-01T00:00:00Z")
    log.metric.name, log.metric.value = "loss", "1"
    request.origin.namespace, request.origin.stream, request.origin.end = namespace, f"s-{namespace}", True
    return request


def as_(token: str) -> dict[str, Any]:
    return {"metadata": [("authorization", f"Bearer {token}")]}


def refusal(call: Callable[[], Any]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as error:
        call()
    failed: Any = error.value
    return failed.code(), failed.details()


def test_a_projected_token_writes_in_its_own_namespace_only(
    control_plane: ControlPlane, namespaces: tuple[str, str, str], served: Process
) -> None:
    mine, other, _ = namespaces
    token = control_plane.token(mine, "runner", audience="trialtap")
    assert served.call(REPORT, report(mine), **as_(token)).next == 1
    reply = served.call(GET, GET.request(trial_name="t", metric_name="loss"), **as_(token))
    assert [log.metric.value for log in reply.observation_log.metric_logs] == ["1"]
    code, details = refusal(lambda: served.call(REPORT, report(other), **as_(token)))
    assert code == grpc.StatusCode.PERMISSION_DENIED
    assert details == f"origin.namespace: the token is of namespace {mine}, the request is for {other}"


def test_a_token_of_another_audience_and_one_that_was_changed_are_refused(
    control_plane: ControlPlane, namespaces: tuple[str, str, str], served: Process
) -> None:
    mine = namespaces[0]
    for_the_api = control_plane.token(mine, "runner")
    good = control_plane.token(mine, "runner", audience="trialtap")
    head, claims, signature = good.split(".")
    for token in (for_the_api, f"{head}.{claims}.{signature[::-1]}", "nonsense"):
        code, details = refusal(lambda token=token: served.call(REPORT, report(mine), **as_(token)))  # type: ignore[misc]
        assert code == grpc.StatusCode.UNAUTHENTICATED
        assert "the API server does not accept the token for audience trialtap" in details
        assert token not in details
