"""The chart rendered from several values files: as it was, valid, and by rules written by hand."""

from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

import certs.__main__ as certs_program
import controller.__main__ as controller_program
import dbmanager.__main__ as dbmanager_program
import webhook.__main__ as webhook_program
from tests.support import helm
from trialtap.kinds import Kind
from webhook import settings

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(helm.find() is None, reason=helm.HOW_TO_GET),
]
HERE = Path(__file__).parent
CASES = sorted(path.parent.name for path in HERE.glob("*/values.yaml"))
OURS = {"Certificate", "Issuer", "ServiceMonitor", "Trial"}
"""Kinds of CRDs, which the API's own schemas do not know."""
JSON = dict[str, Any]


@cache
def text(case: str) -> str:
    # One case is installed under other names.
    release, namespace = ("collect", "metrics") if case == "air-gap" else ("trialtap", "trialtap")
    return helm.template(HERE / case / "values.yaml", release=release, namespace=namespace)


def render(case: str) -> list[JSON]:
    return helm.objects(text(case))


def one(objects: list[JSON], kind: str, name: str = "") -> JSON:
    (found,) = [o for o in objects if o["kind"] == kind and o["metadata"]["name"].endswith(name)]
    return found


def pods(objects: list[JSON]) -> list[JSON]:
    templates = [o["spec"]["template"] for o in objects if o["kind"] == "Deployment"]
    return templates + [o for o in objects if o["kind"] == "Pod"]


def containers(pod: JSON) -> list[JSON]:
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


@pytest.mark.parametrize("case", CASES)
def test_a_render_is_as_it_was(case: str, update_golden: bool) -> None:
    rendered = text(case)
    golden = HERE / case / "rendered.yaml"
    if update_golden:
        golden.write_text(rendered)
    assert rendered == golden.read_text(), "look at the difference, then run with --update-golden"


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("version", ["1.29", "1.37"])
def test_every_object_is_valid_by_the_schemas_of_the_api(case: str, version: str) -> None:
    for item in render(case):
        if item["kind"] not in OURS:
            kubernetes_validate.validate(item, version, strict=True)


@pytest.mark.parametrize("case", CASES)
def test_lint_is_strict_and_finds_nothing(case: str) -> None:
    done = helm.run("lint", "--strict", helm.CHART, "--values", HERE / case / "values.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("case", CASES)
def test_the_programs_know_every_flag_and_setting(case: str) -> None:
    objects = render(case)
    parsed = settings.parse(yaml.safe_load(one(objects, "ConfigMap", "-webhook")["data"]["settings.yaml"]))
    assert parsed.entrypoint_lookup.registries
    for pod in pods(objects):
        for container in containers(pod):
            match container["name"]:
                case "webhook":
                    webhook_program._parser().parse_args(container["args"])
                case "db-manager":
                    dbmanager_program.parser().parse_args(container["args"])
                case "controller":
                    controller_program._parser().parse_args(container["args"])
                    entries = yaml.safe_load(
                        one(objects, "ConfigMap", "-controller")["data"]["controller.yaml"]
                    )
                    assert {Kind.parse(entry).kind for entry in entries["trialResources"]} >= {
                        "Job",
                        "TrainJob",
                    }
                case "certs":
                    parser = certs_program.parser()
                    parser.parse_args([container["command"][-1], *container["args"]])


@pytest.mark.parametrize("case", CASES)
def test_our_pods_pass_pod_security_restricted(case: str) -> None:
    for pod in pods(render(case)):
        context = pod["spec"]["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context["seccompProfile"]["type"] == "RuntimeDefault"
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod["spec"].keys()
        assert {"emptyDir", "configMap", "secret", "persistentVolumeClaim"} >= {
            kind for volume in pod["spec"]["volumes"] for kind in volume if kind != "name"
        }
        for container in containers(pod):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["requests"]
            assert container["resources"]["limits"]["memory"]


@pytest.mark.parametrize("case", CASES)
def test_programs_that_serve_are_probed(case: str) -> None:
    for item in render(case):
        if item["kind"] == "Deployment":
            for container in containers(item["spec"]["template"]):
                assert {"startupProbe", "readinessProbe", "livenessProbe"} <= container.keys()


@pytest.mark.parametrize("case", CASES)
def test_no_webhook_ever_sees_our_own_namespace_or_kube_system(case: str) -> None:
    objects = render(case)
    namespace = one(objects, "Deployment", "-webhook")["metadata"]["namespace"]
    for item in objects:
        for webhook in item.get("webhooks", []):
            expressions = webhook["namespaceSelector"]["matchExpressions"]
            assert {
                "key": "kubernetes.io/metadata.name",
                "operator": "NotIn",
                "values": ["kube-system", namespace],
            } in expressions
            assert webhook["clientConfig"]["service"]["namespace"] == namespace


@pytest.mark.parametrize("case", CASES)
def test_the_configuration_sorts_behind_a_mesh(case: str) -> None:
    assert one(render(case), "MutatingWebhookConfiguration")["metadata"]["name"] > "istio-sidecar-injector"


@pytest.mark.parametrize("case", CASES)
def test_secrets_and_leases_are_ours_by_name_alone(case: str) -> None:
    for item in render(case):
        for rule in item.get("rules", []) if item["kind"] in {"Role", "ClusterRole"} else []:
            if {"secrets", "leases"} & set(rule["resources"]) and "pull-secrets" not in item["metadata"][
                "name"
            ]:
                assert rule["resourceNames"]
            if {"mutatingwebhookconfigurations", "validatingwebhookconfigurations"} & set(rule["resources"]):
                assert rule["resourceNames"]
            assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]


def test_by_default_pods_of_replicas_are_never_kept_waiting_and_others_are() -> None:
    webhooks = one(render("default"), "MutatingWebhookConfiguration")["webhooks"]
    policies = {webhook["name"]: webhook["failurePolicy"] for webhook in webhooks}
    assert policies["pods.webhook.trialtap"] == "Fail"
    assert policies["pods-of-replicas.webhook.trialtap"] == "Ignore"


def test_beside_katib_only_the_pod_webhook_is_there() -> None:
    objects = render("beside-katib")
    (mutating,) = [o for o in objects if o["kind"].endswith("WebhookConfiguration")]
    assert [w["name"].split(".")[0] for w in mutating["webhooks"]] == ["pods", "pods-of-replicas"]
    assert not [o for o in objects if o["kind"] == "CustomResourceDefinition"]
    assert not [o for o in objects if o["metadata"]["name"].endswith("db-manager")]
    written = one(objects, "ConfigMap", "-webhook")["data"]["settings.yaml"]
    assert yaml.safe_load(written)["dbAddress"] == "katib-db-manager.kubeflow:6789"
    read = {
        r for o in objects if o["kind"] == "ClusterRole" for rule in o["rules"] for r in rule["resources"]
    }
    assert "trainings" in read
    assert "pytorchjobs" not in read


def test_an_air_gap_takes_every_image_from_its_registry() -> None:
    objects = render("air-gap")
    images = {container["image"] for pod in pods(objects) for container in containers(pod)}
    written = one(objects, "ConfigMap", "-webhook")["data"]["settings.yaml"]
    images.add(yaml.safe_load(written)["sidecar"]["image"])
    assert images == {
        "registry.example.com/mirror/trialtap-webhook@sha256:" + "0123456789abcdef" * 4,
        "registry.example.com/mirror/ml/collector:0.1.0-mirror",
    }
    for pod in pods(objects):
        assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    for item in objects:
        assert item["metadata"]["labels"]["team"] == "ml-platform"


def test_the_controller_may_make_workloads_but_nothing_that_lies_on_the_way_to_a_pod() -> None:
    rules = one(render("without-katib"), "ClusterRole", "-controller")["rules"]
    made = {resource for rule in rules if "delete" in rule["verbs"] for resource in rule["resources"]}
    assert {"jobs", "trainjobs", "pytorchjobs", "workflows"} <= made
    assert not {"pods", "replicasets", "deployments", "statefulsets", "trials"} & made


def test_collectors_are_told_the_controllers_address_where_it_runs() -> None:
    for case, address in (("without-katib", "trialtap-controller.trialtap.svc:6788"), ("default", None)):
        written = one(render(case), "ConfigMap", "-webhook")["data"]["settings.yaml"]
        assert yaml.safe_load(written).get("earlyStoppingAddress") == address


def test_what_must_outlive_the_release_is_kept() -> None:
    kept = {
        item["kind"]
        for item in render("default")
        if (item["metadata"].get("annotations") or {}).get("helm.sh/resource-policy") == "keep"
    }
    assert kept == {"CustomResourceDefinition", "PersistentVolumeClaim"}


def test_katibs_own_programs_reach_the_port_without_tokens_and_nobody_else_does() -> None:
    policy = one(render("postgresql-with-tokens-and-tls"), "NetworkPolicy", "-db-manager")
    (rule,) = [r for r in policy["spec"]["ingress"] if r["ports"][0]["port"] == "grpc-katib"]
    katib, controller = rule["from"]
    assert katib == {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kubeflow"}}}
    assert controller["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "controller"


def test_a_changed_setting_rolls_the_webhook() -> None:
    def annotation(*more: str) -> str:
        objects = helm.objects(helm.template(None, *more))
        template = one(objects, "Deployment", "-webhook")["spec"]["template"]
        return str(template["metadata"]["annotations"]["trialtap/settings-hash"])

    assert annotation() == annotation()
    assert annotation() != annotation("--set", "sidecar.keep=5")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ("webhok.replicas=2", "additional properties 'webhok' not allowed"),
        ("webhook.replica=2", "additional properties 'replica' not allowed"),
        ("webhook.replicas=two", "/webhook/replicas': got string, want integer"),
        ("webhooks.pod=maybe", "/webhooks/pod': got string, want boolean"),
        ("webhooks.failurePolicy=Never", "/webhooks/failurePolicy"),
        ("dbManager.enabled=false", "/dbManager/address"),
        ("dbManager.database.kind=oracle", "value must be one of 'sqlite', 'postgresql', 'mysql'"),
        ("dbManager.database.kind=mysql", "/dbManager/database/urlSecret/name"),
        ("dbManager.replicas=2", "a SQLite file has one writer"),
        ("certificates.mode=provided", "/certificates/provided/secretName"),
        ("certificates.builtin.leafDays=0", "/certificates/builtin/leafDays"),
        ("image.server.digest=abc", "/image/server/digest"),
        ("trialResources[0].kind=Job", "missing properties"),
        ("sidecar.keep=0", "/sidecar/keep"),
    ],
)
def test_values_that_make_no_sense_are_refused_by_name(values: str, words: str) -> None:
    done = helm.run("template", "trialtap", helm.CHART, "--set", values)
    assert done.returncode != 0
    assert words in done.stderr


def test_an_older_kubernetes_is_refused() -> None:
    done = helm.run("template", "trialtap", helm.CHART, "--kube-version", "1.28.9")
    assert done.returncode != 0
    assert ">=1.29.0-0" in done.stderr
