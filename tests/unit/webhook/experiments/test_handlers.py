"""Requests about Experiments and Trials: what is looked at, what is fetched, how faults are said."""

import copy
import json
from typing import Any

import jsonpatch
import pytest
import yaml

from tests.support.admission import RECORDED
from tests.support.experiments import BASE, changed, trial
from webhook import review
from webhook.cluster import ObjectsCluster, Unreadable
from webhook.experiments import handlers
from webhook.review import Reason, Refusal, Request, Verdict
from webhook.settings import Settings

JSON = dict[str, Any]
SETTINGS = Settings()


def namespace(**labels: str) -> JSON:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "hpo", "labels": labels}}


LABELLED = namespace(**{"katib.kubeflow.org/metrics-collector-injection": "enabled"})


def request(new: JSON, old: JSON | None = None, *, kind: str = "Experiment", user: str = "alice") -> Request:
    return Request(
        uid="u",
        operation="UPDATE" if old else "CREATE",
        kind=kind,
        group="kubeflow.org",
        version="v1beta1",
        namespace="hpo",
        name=new["metadata"]["name"],
        subresource="",
        object=new,
        old_object=old or {},
        dry_run=False,
        user={"username": user, "groups": ["g"]},
    )


async def validate(asked: Request, *objects: JSON) -> Verdict:
    handler = handlers.validate_trial if asked.kind == "Trial" else handlers.validate_experiment
    try:
        return await handler(asked, ObjectsCluster([LABELLED, *objects]), SETTINGS)
    except Refusal as refusal:
        return Verdict(refusal=refusal)


@pytest.mark.parametrize(
    "name", ["experiment-create", "experiment-update-counts", "experiment-status", "experiment-delete"]
)
async def test_a_recorded_request_is_allowed(name: str) -> None:
    recorded = json.loads((RECORDED / f"{name}.json").read_text())
    asked = review.parse(json.dumps(recorded["review"]).encode())
    assert (await validate(asked, *recorded["objects"])).refusal is None


async def test_a_recorded_update_of_more_than_the_counts_is_refused() -> None:
    recorded = json.loads((RECORDED / "experiment-update-forbidden.json").read_text())
    verdict = await validate(review.parse(json.dumps(recorded["review"]).encode()))
    assert verdict.refusal is not None
    assert verdict.refusal.causes[0].reason == "FieldValueForbidden"


async def test_a_recorded_experiment_is_defaulted_by_a_patch() -> None:
    recorded = json.loads((RECORDED / "experiment-create.json").read_text())
    asked = review.parse(json.dumps(recorded["review"]).encode())
    verdict = await handlers.mutate_experiment(asked, ObjectsCluster([]), SETTINGS)
    spec = jsonpatch.apply_patch(asked.object, list(verdict.patch))["spec"]
    assert spec["resumePolicy"] == "Never"
    assert spec["metricsCollectorSpec"] == {"collector": {"kind": "StdOut"}}


async def test_a_refusal_carries_every_fault_as_a_cause_for_kubectl() -> None:
    verdict = await validate(request(changed({"/spec/objective/type": "x", "/spec/algorithm": None})))
    assert verdict.refusal is not None
    answer = json.loads(review.answer(request(BASE), verdict))["response"]["status"]
    assert (answer["reason"], answer["code"]) == ("Invalid", 422)
    causes = answer["details"]["causes"]
    assert [cause["field"] for cause in causes] == ["spec.objective.type", "spec.algorithm"]
    assert answer["message"].startswith(
        'Experiment "random" is invalid: [spec.objective.type: Unsupported value: "x"'
    )


async def test_an_unlabelled_namespace_is_refused_with_the_command_that_mends_it() -> None:
    for asked in (request(BASE), request(trial(), kind="Trial")):
        verdict = await validate(asked, namespace())
        assert verdict.refusal is not None
        assert verdict.refusal.reason == Reason.NAMESPACE_NOT_LABELLED
        assert "kubectl label namespace hpo katib.kubeflow.org/metrics-collector-injection=enabled" in str(
            verdict.refusal
        )


UNTOUCHED = [
    ("a status", lambda o: o | {"status": {"trials": 3}}),
    ("a finalizer's removal", lambda o: o | {"metadata": o["metadata"] | {"finalizers": []}}),
    ("a label", lambda o: o | {"metadata": o["metadata"] | {"labels": {"a": "b"}}}),
    (
        "an object that is being deleted",
        lambda o: o | {"metadata": o["metadata"] | {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {}},
    ),
]


@pytest.mark.parametrize("change", [u[1] for u in UNTOUCHED], ids=[u[0] for u in UNTOUCHED])
@pytest.mark.parametrize("kind", ["Experiment", "Trial"])
async def test_an_update_passes_whatever_the_spec_and_the_namespace_say_now(kind: str, change: Any) -> None:
    old = changed({"/spec/objective/type": "nonsense"}) | {"kind": kind}
    asked = request(change(copy.deepcopy(old)), old, kind=kind)
    assert (await validate(asked, namespace())).refusal is None
    assert (await handlers.mutate_experiment(asked, ObjectsCluster([]), SETTINGS)).patch == ()


TEMPLATE = yaml.safe_dump(BASE["spec"]["trialTemplate"]["trialSpec"])


def from_config_map(where: str = "hpo") -> JSON:
    source = {"configMapName": "templates", "configMapNamespace": where, "templatePath": "job.yaml"}
    conditions = {"/spec/trialTemplate/successCondition": "a", "/spec/trialTemplate/failureCondition": "b"}
    return changed(
        {"/spec/trialTemplate/trialSpec": None, "/spec/trialTemplate/configMap": source, **conditions}
    )


def config_map(text: str = TEMPLATE, where: str = "hpo", **labels: str) -> JSON:
    metadata = {"name": "templates", "namespace": where, "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"job.yaml": text}}


SHARED = {"katib.kubeflow.org/component": "trial-templates"}
CONFIG_MAPS = [
    ("of the namespace", "hpo", config_map(), "", ""),
    ("of another namespace with the label", "kubeflow", config_map(where="kubeflow", **SHARED), "", ""),
    (
        "of another namespace without it",
        "kubeflow",
        config_map(where="kubeflow"),
        "spec.trialTemplate.configMap",
        "label it",
    ),
    ("that is not there", "hpo", LABELLED, "spec.trialTemplate.configMap", "no such ConfigMap"),
    (
        "that is no YAML",
        "hpo",
        config_map("a: [secret"),
        "spec.trialTemplate.configMap.templatePath",
        "line 1",
    ),
    (
        "that is no object",
        "hpo",
        config_map("secret"),
        "spec.trialTemplate.configMap.templatePath",
        "no object",
    ),
    (
        "that names itself",
        "hpo",
        config_map(TEMPLATE + "metadata: {name: secret}"),
        "spec.trialTemplate.configMap.templatePath.metadata.name",
        "remove it",
    ),
    (
        "with a wrong Job",
        "hpo",
        config_map(TEMPLATE.replace("restartPolicy: Never", "restartPolicy: secret")),
        "spec.trialTemplate.configMap.templatePath.spec.template.spec.restartPolicy",
        "(not shown)",
    ),
    (
        "with unquoted numbers",
        "hpo",
        config_map(TEMPLATE + "  parallelism: ${trialParameters.numLayers}\n"),
        "",
        "",
    ),
]


@pytest.mark.parametrize(
    ("where", "held", "field", "says"), [c[1:] for c in CONFIG_MAPS], ids=[c[0] for c in CONFIG_MAPS]
)
async def test_a_template_from_a_config_map(where: str, held: JSON, field: str, says: str) -> None:
    verdict = await validate(request(from_config_map(where)), held)
    causes = verdict.refusal.causes if verdict.refusal else ()
    assert [cause.field for cause in causes] == ([field] if field else [])
    message = "".join(cause.message for cause in causes)
    assert says in message
    assert "secret" not in message


class Reviewed(ObjectsCluster):
    """Lets alice read what she asks for, and nobody else."""

    async def create(self, api_version: str, kind: str, namespace: str, body: JSON) -> JSON:
        assert (api_version, kind) == ("authorization.k8s.io/v1", "SubjectAccessReview")
        assert body["spec"]["resourceAttributes"]["name"] == "templates"
        return {"status": {"allowed": body["spec"]["user"] == "alice"}}


@pytest.mark.parametrize(("user", "refused"), [("alice", False), ("mallory", True)])
async def test_another_namespaces_template_is_read_for_whom_rbac_lets_read_it(
    user: str, refused: bool
) -> None:
    cluster = Reviewed([LABELLED, config_map(where="kubeflow")])
    verdict = await handlers.validate_experiment(
        request(from_config_map("kubeflow"), user=user), cluster, SETTINGS
    )
    assert (verdict.refusal is not None) == refused


class Forbidden(ObjectsCluster):
    """An API server that lets us read nothing."""

    def namespace(self, name: str) -> JSON | None:
        return None

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> JSON:
        raise Unreadable(f"403: {kind} may not be read: RBAC lacks get")


async def test_a_namespace_that_cannot_be_read_is_named_as_our_fault() -> None:
    with pytest.raises(Refusal, match="administrator") as refused:
        await handlers.validate_experiment(request(BASE), Forbidden([]), SETTINGS)
    assert (refused.value.reason, refused.value.code) == (Reason.CONFIGURATION, 500)


class Unread(ObjectsCluster):
    """An API server that knows the namespace and lets us read nothing else."""

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> JSON:
        raise Unreadable("403: configmaps is forbidden")


async def test_a_template_that_cannot_be_read_names_the_missing_right() -> None:
    asked = request(from_config_map())
    verdict = await handlers.validate_experiment(asked, Unread([LABELLED]), SETTINGS)
    assert verdict.refusal is not None
    assert [cause.field for cause in verdict.refusal.causes] == ["spec.trialTemplate.configMap"]
    assert "needs get on configmaps" in str(verdict.refusal)
    assert "403" in str(verdict.refusal)


async def test_a_katib_config_that_is_none_is_named_as_the_clusters_fault() -> None:
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "katib-config", "namespace": "kubeflow"},
        "data": {"katib-config.yaml": "runtime: {suggestions: yes}"},
    }
    verdict = await validate(request(BASE), config)
    assert verdict.refusal is not None
    assert verdict.refusal.reason == Reason.CONFIGURATION
    assert "not your object" in str(verdict.refusal)


async def test_a_volume_of_an_earlier_experiment_is_found() -> None:
    volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "random-random-hpo"}}
    verdict = await validate(request(changed({"/spec/resumePolicy": "FromVolume"})), volume)
    assert verdict.refusal is not None
    assert "random-random-hpo" in str(verdict.refusal)
    assert (await validate(request(BASE), volume)).refusal is None


async def test_a_trial_is_judged_like_an_experiment() -> None:
    assert (await validate(request(trial(), kind="Trial"))).refusal is None
    wrong = trial({"/spec/objective/type": "minimise"})
    verdict = await validate(request(wrong, kind="Trial"))
    assert verdict.refusal is not None
    assert 'did you mean "minimize"?' in str(verdict.refusal)
