"""Trials for the controller's tests: made, reported for, ended as kubelets and operators do."""

import json
from pathlib import Path
from typing import Any

import grpc
import yaml

from tests.support.cluster import ADMIN_TOKEN, ControlPlane, wait_until
from tests.support.programs import Program
from trialtap import messages

JSON = dict[str, Any]
TRIALS = "/apis/kubeflow.org/v1beta1/namespaces/{}/trials"
JOBS = "/apis/batch/v1/namespaces/{}/jobs"
KINDS = [
    ("alpha.example.org/v1", "Alpha", "alphas"),
    ("beta.example.org/v2", "Beta", "betas"),
    ("gamma.example.org/v1", "Gamma", "gammas"),
]
LATE = ("late.example.org/v1", "Late", "lates")
MERGE = {"Content-Type": "application/merge-patch+json"}


def config(folder: Path, *entries: Any) -> Path:
    file = folder / "controller.yaml"
    file.write_text(yaml.safe_dump({"trialResources": list(entries)}))
    return file


def kinds() -> list[Any]:
    return [
        "Job.v1.batch",
        *({"group": a.split("/")[0], "version": a.split("/")[1], "kind": k} for a, k, _ in KINDS),
    ]


def controller(
    plane: ControlPlane, database: Program, folder: Path, *more: str, token: str = ADMIN_TOKEN
) -> Program:
    return Program(
        "controller",
        folder / "log",
        *("--kubeconfig", plane.kubeconfig(token), "--db", database.ready["grpc"]),
        *(
            "--listen",
            "127.0.0.1:0",
            "--health",
            "127.0.0.1:0",
            "--config",
            folder / "controller.yaml",
            *more,
        ),
    )


def trial(namespace: str, name: str = "t", run: JSON | None = None, **spec: Any) -> JSON:
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "spec": {
            "backoffLimit": 0,
            "template": {
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [{"name": "main", "image": "i", "command": ["x"]}],
                }
            },
        },
    }
    custom = {
        "successCondition": 'status.[@this].#(phase=="Done")#',
        "failureCondition": 'status.[@this].#(phase=="Broken")#',
    }
    return {
        "apiVersion": "kubeflow.org/v1beta1",
        "kind": "Trial",
        "metadata": {"name": name, "namespace": namespace, "labels": {"katib.kubeflow.org/experiment": "e"}},
        "spec": {
            "objective": {"type": "minimize", "objectiveMetricName": "loss"},
            "primaryContainerName": "main",
            "runSpec": run or job,
            **(custom if run else {}),
            **spec,
        },
    }


def report(database: Program, namespace: str, name: str, *values: str) -> None:
    """Report values of `loss` as a collector does whose stream has ended."""
    rows = [
        messages.MetricLog(
            time_stamp=f"2026-01-01T00:00:{i:02d}Z", metric=messages.Metric(name="loss", value=value)
        )
        for i, value in enumerate(values)
    ]
    origin = messages.Origin(namespace=namespace, pod=f"{name}-0", stream=f"{namespace}-{name}", end=True)
    request = messages.ReportObservationLogRequest(
        trial_name=name, observation_log=messages.ObservationLog(metric_logs=rows), origin=origin
    )
    call(database.ready["grpc"], messages.REPORT, request)


def rows(database: Program, namespace: str, name: str) -> int:
    request = messages.GetObservationLogRequest(trial_name=name, namespace=namespace)
    return len(call(database.ready["grpc"], messages.GET, request).observation_log.metric_logs)


def call(
    address: str, method: messages.Method, request: Any, metadata: tuple[tuple[str, str], ...] = ()
) -> Any:
    with grpc.insecure_channel(address) as channel:
        made = channel.unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.reply.FromString,
        )
        return made(request, timeout=20, metadata=metadata)


def state(plane: ControlPlane, namespace: str, name: str = "t") -> JSON:
    found = (plane.get(f"{TRIALS.format(namespace)}/{name}").get("status") or {}).get("conditions") or [{}]
    last: JSON = found[-1]
    return last


def wait_for(plane: ControlPlane, namespace: str, of_type: str, name: str = "t", seconds: float = 40) -> JSON:
    def reached() -> JSON | None:
        found = state(plane, namespace, name)
        return found if found.get("type") == of_type else None

    try:
        found: JSON = wait_until(reached, seconds, f"{namespace}/{name} to be {of_type}")
    except AssertionError as error:
        raise AssertionError(f"{error}; it is {state(plane, namespace, name)}") from None
    return found


def jobs_pod(plane: ControlPlane, namespace: str) -> JSON:
    listed = wait_until(
        lambda: plane.get(f"/api/v1/namespaces/{namespace}/pods")["items"], 30, "the Job's pod"
    )
    found: JSON = listed[0]
    return found


def end_pod(plane: ControlPlane, namespace: str, phase: str, code: int, why: str, **status: Any) -> None:
    """Say of the Job's pod what a kubelet says at its end; label it as the webhook does."""
    name = jobs_pod(plane, namespace)["metadata"]["name"]
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    plane.client.patch(
        path, content=json.dumps({"metadata": {"labels": {"katib.kubeflow.org/trial": "t"}}}), headers=MERGE
    )
    ended = {"exitCode": code, "reason": why, "startedAt": None, "finishedAt": "2026-01-01T00:00:00Z"}
    container = {
        "name": "main",
        "image": "i",
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": {"terminated": ended},
    }
    body = {"status": {"phase": phase, "containerStatuses": [container], **status}}
    answer = plane.client.patch(f"{path}/status", content=json.dumps(body), headers=MERGE)
    assert answer.status_code == 200, answer.text


def create(plane: ControlPlane, made: JSON) -> JSON:
    answer = plane.create(TRIALS.format(made["metadata"]["namespace"]), made)
    assert answer.status_code == 201, answer.text
    stored: JSON = answer.json()
    return stored


def set_phase(
    plane: ControlPlane, kind: tuple[str, str, str], namespace: str, phase: str, name: str = "t"
) -> None:
    path = f"/apis/{kind[0]}/namespaces/{namespace}/{kind[2]}/{name}"
    wait_until(lambda: plane.client.get(path).status_code == 200, 30, f"{kind[1]} {name}")
    answer = plane.client.patch(
        f"{path}/status",
        content=json.dumps({"status": {"phase": phase, "message": "so it said"}}),
        headers=MERGE,
    )
    assert answer.status_code == 200, answer.text
