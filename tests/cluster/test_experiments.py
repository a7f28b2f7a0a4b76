"""Experiments and Trials on a real API server: made, changed, applied, deleted, and what kubectl prints."""

import base64
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.support import manifests
from tests.support.cluster import ControlPlane, wait_until
from tests.support.experiments import BASE, CASES, changed, trial
from tests.support.webhook import Webhook
from trialtap import crds

JSON = dict[str, Any]
COUNTER = itertools.count()
EXPERIMENTS = "/apis/kubeflow.org/v1beta1/namespaces/{}/experiments"


def configuration(kind: str, url: str, ca: bytes, entries: list[tuple[str, str, str]]) -> JSON:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": "trialtap-experiments"},
        "webhooks": [
            {
                "name": name,
                "clientConfig": {"url": f"{url}{path}", "caBundle": base64.b64encode(ca).decode()},
                "rules": [
                    {
                        "operations": ["CREATE", "UPDATE"],
                        "apiGroups": ["kubeflow.org"],
                        "apiVersions": ["v1beta1"],
                        "resources": [plural],
                    }
                ],
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": "Fail",
            }
            for name, path, plural in entries
        ],
    }


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with the chart's CRDs and the webhook registered for Experiments and Trials."""
    definitions = crds.definitions()
    control_plane.apply(*definitions.values())
    for plural in definitions:
        done = control_plane.kubectl("wait", "--for=condition=Established", f"crd/{plural}.kubeflow.org")
        assert done.returncode == 0, done.stderr
    served = (
        Webhook(tmp_path_factory.mktemp("webhook"), "--kubeconfig", control_plane.kubeconfig())
        .start()
        .wait_ready()
    )
    mutating = [("experiments.trialtap.dev", "/mutate-experiment", "experiments")]
    validating = [
        ("experiments.trialtap.dev", "/validate-experiment", "experiments"),
        ("trials.trialtap.dev", "/validate-trial", "trials"),
    ]
    control_plane.apply(
        configuration("MutatingWebhookConfiguration", served.url, served.ca, mutating),
        configuration("ValidatingWebhookConfiguration", served.url, served.ca, validating),
        manifests.namespace("registration-of-experiments", labelled=False),
    )
    path = EXPERIMENTS.format("registration-of-experiments") + "?dryRun=All"
    probe = changed({"/metadata/namespace": None})
    wait_until(lambda: control_plane.create(path, probe).status_code == 403, 20, "the webhook to be called")
    yield control_plane
    base = "/apis/admissionregistration.k8s.io/v1"
    for kind in ("mutating", "validating"):
        control_plane.client.delete(f"{base}/{kind}webhookconfigurations/trialtap-experiments")
    assert served.stop() == 0


@pytest.fixture
def hpo(plane: ControlPlane) -> str:
    name = f"experiments-{next(COUNTER)}"
    plane.apply(manifests.namespace(name))
    return name


def named(namespace: str, base: JSON = BASE) -> JSON:
    return changed({"/metadata/namespace": namespace}, base)


def test_what_is_made_is_stored_with_its_defaults(plane: ControlPlane, hpo: str) -> None:
    answer = plane.create(EXPERIMENTS.format(hpo), named(hpo))
    assert answer.status_code == 201, answer.text
    spec = answer.json()["spec"]
    assert spec["resumePolicy"] == "Never"
    assert spec["trialTemplate"]["successCondition"].startswith("status.conditions")


@pytest.mark.parametrize(
    "case", yaml.safe_load((CASES / "valid.yaml").read_text()), ids=lambda case: case["name"]
)
def test_the_crds_take_what_runs_under_katib_and_lose_nothing(
    plane: ControlPlane, hpo: str, case: JSON
) -> None:
    given = named(hpo, changed(case["set"]))
    answer = plane.create(EXPERIMENTS.format(hpo) + "?dryRun=All", given)
    assert answer.status_code == 201, answer.text
    assert _contains(answer.json()["spec"], given["spec"])


def _contains(whole: Any, part: Any) -> bool:
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(k in whole and _contains(whole[k], v) for k, v in part.items())
    if isinstance(part, list):
        return len(whole) >= len(part) and all(map(_contains, whole, part))
    return bool(whole == part)


def test_kubectl_prints_every_fault_on_a_line_of_its_own(plane: ControlPlane, hpo: str) -> None:
    broken = named(hpo, changed({"/spec/objective/type": "minimise", "/spec/maxTrialCount": -1}))
    done = plane.kubectl("create", "-f", "-", stdin=json.dumps(broken))
    assert done.returncode == 1
    assert 'The Experiment "random" is invalid' in done.stderr
    assert '* spec.objective.type: Unsupported value: "minimise"' in done.stderr
    assert "* spec.maxTrialCount: Invalid value: -1" in done.stderr


def test_a_wrong_type_is_refused_with_its_path(plane: ControlPlane, hpo: str) -> None:
    answer = plane.create(EXPERIMENTS.format(hpo), named(hpo, changed({"/spec/maxTrialCount": "many"})))
    assert answer.status_code == 422
    assert "spec.maxTrialCount" in answer.text


def test_an_unlabelled_namespace_is_refused_with_the_command(plane: ControlPlane) -> None:
    plane.apply(manifests.namespace("unlabelled", labelled=False))
    answer = plane.create(EXPERIMENTS.format("unlabelled"), named("unlabelled"))
    assert answer.status_code == 403
    assert "kubectl label namespace unlabelled" in answer.json()["message"]


def test_the_life_of_an_experiment(plane: ControlPlane, hpo: str) -> None:
    made = plane.create(
        EXPERIMENTS.format(hpo), named(hpo, changed({"/metadata/finalizers": ["test.example/keep"]}))
    )
    path = f"{EXPERIMENTS.format(hpo)}/random"
    merge = {"Content-Type": "application/merge-patch+json"}

    def patch(body: JSON, where: str = "") -> int:
        return plane.client.patch(path + where, content=json.dumps(body), headers=merge).status_code

    assert made.status_code == 201
    assert patch({"spec": {"maxTrialCount": 20}}) == 200
    assert patch({"spec": {"objective": {"goal": 0.5}}}) == 422
    assert patch({"status": {"trials": 4}}, "/status") == 200
    assert patch({"spec": {"maxTrialCount": 4}}) == 422
    plane.client.patch(
        f"/api/v1/namespaces/{hpo}",
        content=json.dumps(
            {"metadata": {"labels": {"katib.kubeflow.org/metrics-collector-injection": None}}}
        ),
        headers=merge,
    )
    assert patch({"metadata": {"labels": {"a": "b"}}}) == 200, (
        "an update of labels is held up by the namespace's label"
    )
    assert plane.client.delete(path).status_code == 200
    assert patch({"metadata": {"finalizers": []}}) == 200, "a finalizer cannot be removed"
    assert plane.client.get(path).status_code == 404


def test_server_side_apply_twice_changes_nothing(plane: ControlPlane, hpo: str) -> None:
    manifest = json.dumps(named(hpo))
    for _ in range(2):
        done = plane.kubectl("apply", "--server-side", "-f", "-", stdin=manifest)
        assert done.returncode == 0, done.stderr
    assert plane.get(f"{EXPERIMENTS.format(hpo)}/random")["metadata"]["generation"] == 1


def test_a_dry_run_stores_nothing(plane: ControlPlane, hpo: str) -> None:
    assert plane.create(EXPERIMENTS.format(hpo) + "?dryRun=All", named(hpo)).status_code == 201
    assert plane.client.get(f"{EXPERIMENTS.format(hpo)}/random").status_code == 404


def test_a_template_of_another_namespace_is_read_by_its_label(plane: ControlPlane, hpo: str) -> None:
    shared = f"{hpo}-shared"
    text = yaml.safe_dump(BASE["spec"]["trialTemplate"]["trialSpec"])
    held = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "t", "namespace": shared},
        "data": {"job": text},
    }
    plane.apply(manifests.namespace(shared), held)
    source = {"configMapName": "t", "configMapNamespace": shared, "templatePath": "job"}
    asked = named(
        hpo,
        changed(
            {
                "/spec/trialTemplate/trialSpec": None,
                "/spec/trialTemplate/configMap": source,
                "/spec/trialTemplate/successCondition": "a",
                "/spec/trialTemplate/failureCondition": "b",
            }
        ),
    )
    path = EXPERIMENTS.format(hpo) + "?dryRun=All"
    stranger = {"Impersonate-User": "stranger"}
    rules = [{"apiGroups": ["kubeflow.org"], "resources": ["experiments"], "verbs": ["create"]}]
    rbac = "rbac.authorization.k8s.io"
    plane.apply(
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "Role",
            "metadata": {"name": "r", "namespace": hpo},
            "rules": rules,
        },
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "r", "namespace": hpo},
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "r"},
            "subjects": [{"kind": "User", "name": "stranger", "apiGroup": rbac}],
        },
    )
    assert plane.create(path, asked).status_code == 201, "the administrator may read it"
    refused = plane.create(path, asked, **stranger)
    assert refused.status_code == 422, refused.text
    assert "label it" in refused.text
    held["metadata"]["labels"] = {"katib.kubeflow.org/component": "trial-templates"}
    plane.apply(held)
    assert plane.create(path, asked, **stranger).status_code == 201


def test_a_trial_is_judged_and_printed(plane: ControlPlane, hpo: str) -> None:
    trials = f"/apis/kubeflow.org/v1beta1/namespaces/{hpo}/trials"
    wrong = named(hpo, trial({"/spec/metricsCollector": {"collector": {"kind": "stdout"}}}))
    refused = plane.create(trials, wrong)
    assert refused.status_code == 422
    assert "did you mean" in refused.text
    assert plane.create(trials, named(hpo, trial())).status_code == 201
    listed = plane.kubectl("get", "trials", "-n", hpo).stdout
    assert listed.split()[:6] == ["NAME", "TYPE", "STATUS", "OBJECTIVE", "VALUE", "REASON"]
    assert "loss" in listed
    explained = plane.kubectl("explain", "trials.spec.objective.goal").stdout
    assert "The value at which the experiment is done." in explained
