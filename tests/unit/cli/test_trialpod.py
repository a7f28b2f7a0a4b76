"""From a file's objects to the pod that a cluster would make, or a fault that names object and field."""

from typing import Any

import pytest

from cli import trialpod

JSON = dict[str, Any]


def trial(**spec: Any) -> JSON:
    job = {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "i", "command": ["x"]}]}}}}
    return {
        "apiVersion": "kubeflow.org/v1beta1",
        "kind": "Trial",
        "metadata": {"name": "t", "namespace": "ns"},
        "spec": {
            "objective": {"type": "minimize", "objectiveMetricName": "loss"},
            "primaryContainerName": "main",
            "runSpec": {"apiVersion": "batch/v1", "kind": "Job", **job},
            **spec,
        },
    }


POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"generateName": "t-chief-", "labels": {"role": "chief"}},
    "spec": {"containers": [{"name": "main", "image": "i", "command": ["x"]}]},
}
TRAIN = {"apiVersion": "example.com/v1", "kind": "Train", "spec": {}}


def test_a_jobs_pod_is_owned_by_the_job_and_the_job_by_the_trial() -> None:
    made = trialpod.build([trial()])
    root, job, namespace = made.owners
    assert made.pod["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
    assert job["metadata"]["ownerReferences"][0]["uid"] == root["metadata"]["uid"]
    assert job["metadata"]["name"] == "t"
    assert namespace["metadata"]["labels"] == {"katib.kubeflow.org/metrics-collector-injection": "enabled"}
    assert made.pod["metadata"]["labels"]["job-name"] == "t"
    request = made.review()["request"]
    assert (request["namespace"], request["operation"], request["object"]) == ("ns", "CREATE", made.pod)


def test_the_pod_of_any_other_kind_comes_from_the_file() -> None:
    made = trialpod.build([trial(runSpec=TRAIN), POD])
    reference = made.pod["metadata"]["ownerReferences"][0]
    assert (reference["kind"], reference["name"], made.pod["metadata"]["name"]) == ("Train", "t", "t-chief-0")
    assert made.pod["metadata"]["labels"] == {"role": "chief"}


@pytest.mark.parametrize(
    ("objects", "said"),
    [
        ([], "holds no Trial"),
        ([POD], "holds no Trial"),
        ([{**trial(), "apiVersion": "other.org/v1"}], "holds no Trial"),
        ([trial(), trial()], r"holds 2 Trials \(t, t\)"),
        ([trial(runSpec=TRAIN)], "spec.runSpec is a Train"),
        ([trial(runSpec=TRAIN), POD, POD], "holds 2 Pods"),
        ([trial(runSpec={"kind": "Job"})], "spec.runSpec.apiVersion: missing"),
        ([trial(runSpec=None)], "spec.runSpec: missing"),
        ([trial(runSpec={"apiVersion": "batch/v1", "kind": "Job"})], "template.spec.containers: missing"),
        ([trial(primaryContainerName="other")], r"spec.primaryContainerName: 'other' .*\(main\)"),
        ([trial(primaryContainerName="")], "spec.primaryContainerName: missing"),
        ([trial(objective={"goal": "high"})], "spec.objective.goal"),
        ([trial(objective={})], "objectiveMetricName: missing"),
        ([{**trial(), "metadata": {}}], "metadata.name: missing"),
    ],
)
def test_a_fault_names_the_object_and_the_field(objects: list[JSON], said: str) -> None:
    with pytest.raises(trialpod.TrialFileError, match=said):
        trialpod.build(objects)
