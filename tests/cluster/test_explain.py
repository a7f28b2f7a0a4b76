"""`trialtap explain` against a real API server."""

import subprocess
import sys

import pytest

from tests.support import manifests
from tests.support.cluster import ControlPlane
from tests.support.objects import JSON
from tests.support.onserver import CHAINS, create, make, make_chain, pod


def explain(of: ControlPlane, made: JSON, *options: str) -> subprocess.CompletedProcess[str]:
    metadata = made["metadata"]
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "cli",
            "explain",
            f"pod/{metadata['name']}",
            "-n",
            metadata["namespace"],
            "--kubeconfig",
            of.kubeconfig(),
            *options,
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.usefixtures("webhook")
def test_an_injected_pod_is_explained_by_its_chain_and_its_annotation(
    plane: ControlPlane,
    hpo: str,
) -> None:
    said = explain(plane, create(plane, hpo, pod(make_chain(plane, hpo, CHAINS["TrainJob"], "StdOut"))))
    assert said.returncode == 0
    first, second, third = said.stderr.splitlines()
    assert first.endswith("at its creation: injected")
    assert second.endswith(
        'belongs to Job batch/v1 "t1-node-0" < JobSet jobset.x-k8s.io/v1alpha2 "t1"'
        ' < TrainJob trainer.kubeflow.org/v1alpha1 "t1" < Trial kubeflow.org/v1beta1 "t1"'
    )
    assert third.endswith("now: injected")
    assert said.stdout == ""


def test_a_pod_that_came_before_the_label_is_told_what_it_would_get_now(
    plane: ControlPlane,
    hpo: str,
) -> None:
    bare = f"{hpo}-bare"
    plane.apply(manifests.namespace(bare, labelled=False))
    plane.kubectl("wait", "--for=create", "serviceaccount/default", "-n", bare, "--timeout=20s")
    made = create(plane, bare, pod(make_chain(plane, bare, CHAINS["Job"], "StdOut")))
    said = explain(plane, made)
    assert "left as it was, or not seen" in said.stderr
    assert f"namespace {bare} lacks the label katib.kubeflow.org/metrics-collector-injection" in said.stderr
    plane.apply(manifests.namespace(bare))
    said = explain(plane, made, "-o", "pod")
    assert "now: injected, and it would be changed" in said.stderr
    assert "metrics-logger-and-collector" in said.stdout


@pytest.mark.usefixtures("webhook")
def test_a_pod_of_no_trial_is_told_how_far_its_owners_lead(plane: ControlPlane, hpo: str) -> None:
    workflow = make(plane, hpo, "argoproj.io/v1alpha1", "Workflow", "stray")
    said = explain(plane, create(plane, hpo, pod(workflow)))
    assert said.returncode == 0
    assert 'no Trial is found above its owner Workflow argoproj.io/v1alpha1 "stray"' in said.stderr
    said = explain(plane, create(plane, hpo, pod()))
    assert "it has no owner, so it is no trial's" in said.stderr
    assert "the webhook is not asked" in said.stderr


def test_a_pod_that_is_not_there_is_an_error_in_one_line(plane: ControlPlane, hpo: str) -> None:
    said = explain(plane, {"metadata": {"name": "absent", "namespace": hpo}})
    assert said.returncode == 1
    assert said.stderr.count("\n") == 1
    assert 'Pod v1 "absent"' in said.stderr
