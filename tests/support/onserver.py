"""Objects of tests on a real API server: trials, owners in chains, pods."""

import itertools
from typing import Any

from tests.support import manifests
from tests.support.cluster import ControlPlane, wait_until
from tests.support.objects import JSON, ref
from tests.support.webhook import Webhook

READABLE = {
    "batch/v1 Job": "jobs",
    "apps/v1 ReplicaSet": "replicasets",
    "apps/v1 StatefulSet": "statefulsets",
    "apps/v1 Deployment": "deployments",
    "kubeflow.org/v1 PyTorchJob": "pytorchjobs",
    "kubeflow.org/v2beta1 MPIJob": "mpijobs",
    "trainer.kubeflow.org/v1alpha1 TrainJob": "trainjobs",
    "jobset.x-k8s.io/v1alpha2 JobSet": "jobsets",
    "argoproj.io/v1alpha1 Workflow": "workflows",
    "tekton.dev/v1 TaskRun": "taskruns",
    "tekton.dev/v1 PipelineRun": "pipelineruns",
}
BUILT_IN = {"jobs", "replicasets", "statefulsets", "deployments"}
UNREADABLE = "secret.example.org/v1 Hidden"
COUNTER = itertools.count()


def wait_for_registration(plane: ControlPlane, served: Webhook) -> None:
    """The API server takes a moment to heed a webhook configuration."""
    plane.apply(manifests.namespace("registration"))
    probe = pod(refs=[{"apiVersion": "batch/v1", "kind": "Job", "name": "no", "uid": "no"}])

    def seen() -> bool:
        plane.create("/api/v1/namespaces/registration/pods?dryRun=All", probe)
        return bool(served.admissions(namespace="registration"))

    wait_until(seen, 20, "the API server to call the webhook")


def plural_of(api_version: str, kind: str) -> str:
    known = {"kubeflow.org/v1beta1 Trial": "trials", UNREADABLE: "hiddens", **READABLE}
    return known.get(f"{api_version} {kind}", f"{kind.lower()}s")


def path(api_version: str, kind: str, namespace: str) -> str:
    root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
    return f"{root}/namespaces/{namespace}/{plural_of(api_version, kind)}"


def make(
    plane: ControlPlane, namespace: str, api_version: str, kind: str, name: str, *owners: JSON, **rest: Any
) -> JSON:
    body = {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": name, "ownerReferences": [ref(owner) for owner in owners]},
        **rest,
    }
    answer = plane.create(path(api_version, kind, namespace), body)
    assert answer.status_code == 201, answer.text
    made: JSON = answer.json()
    return made


def make_trial(
    plane: ControlPlane,
    namespace: str,
    name: str,
    run: str = "batch/v1 Job",
    *,
    collector: str = "Push",
    container: str = "main",
) -> JSON:
    api_version, kind = run.split()
    spec = {
        "objective": {"type": "maximize", "objectiveMetricName": "accuracy"},
        "metricsCollector": {"collector": {"kind": collector}},
        "primaryContainerName": container,
        "runSpec": {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}},
    }
    return make(plane, namespace, "kubeflow.org/v1beta1", "Trial", name, spec=spec)


CONTAINER = {
    "name": "main",
    "image": "example.org/i:1",
    "command": ["python", "train.py", "--note=it's $HOME"],
}
JOB_SPEC = {
    "backoffLimit": 0,
    "template": {"spec": {"restartPolicy": "Never", "containers": [CONTAINER]}},
}
SUSPENDED = {"spec": JOB_SPEC | {"suspend": True}}
SET_SPEC = {
    "spec": {
        "replicas": 0,
        "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [CONTAINER]}},
    }
}
SPECS: dict[str, JSON] = {
    "Job": SUSPENDED,
    "ReplicaSet": SET_SPEC,
    "Deployment": SET_SPEC,
    "StatefulSet": {"spec": SET_SPEC["spec"] | {"serviceName": "s"}},
}


def pod(*owners: JSON, name: str = "", refs: list[JSON] | None = None, **spec: Any) -> JSON:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **({"name": name} if name else {"generateName": "pod-"}),
            "ownerReferences": [ref(owner) for owner in owners] if refs is None else refs,
        },
        "spec": {"restartPolicy": "Never", "containers": [CONTAINER], **spec},
    }


def create(plane: ControlPlane, namespace: str, body: JSON, *, dry_run: bool = False) -> JSON:
    answer = plane.create(f"/api/v1/namespaces/{namespace}/pods" + ("?dryRun=All" if dry_run else ""), body)
    assert answer.status_code == 201, answer.text
    made: JSON = answer.json()
    return made


def sidecars(made: JSON) -> list[str]:
    return [c["name"] for c in made["spec"].get("initContainers", []) if c.get("restartPolicy") == "Always"]


def label(made: JSON) -> str | None:
    found: str | None = made["metadata"].get("labels", {}).get("katib.kubeflow.org/trial")
    return found


CHAINS: dict[str, list[str]] = {
    "Job": ["batch/v1 Job t1"],
    "PyTorchJob": ["kubeflow.org/v1 PyTorchJob t1"],
    "MPIJob": ["kubeflow.org/v2beta1 MPIJob t1", "batch/v1 Job t1-launcher"],
    "TrainJob": [
        "trainer.kubeflow.org/v1alpha1 TrainJob t1",
        "jobset.x-k8s.io/v1alpha2 JobSet t1",
        "batch/v1 Job t1-node-0",
    ],
    "Workflow": ["argoproj.io/v1alpha1 Workflow t1"],
    "PipelineRun": ["tekton.dev/v1 PipelineRun t1", "tekton.dev/v1 TaskRun t1-train"],
    "Deployment": ["apps/v1 Deployment t1", "apps/v1 ReplicaSet t1-5d4"],
    "StatefulSet": ["apps/v1 StatefulSet t1"],
}


def make_chain(plane: ControlPlane, namespace: str, links: list[str], collector: str = "Push") -> JSON:
    """The lowest owner of a chain that ends at Trial t1."""
    lowest = make_trial(plane, namespace, "t1", " ".join(links[0].split()[:2]), collector=collector)
    for link in links:
        api_version, kind, name = link.split()
        lowest = make(plane, namespace, api_version, kind, name, lowest, **SPECS.get(kind, {}))
    return lowest
