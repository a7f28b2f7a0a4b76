"""What the tests on a real API server install: custom kinds, and of the chart the webhook's account and configuration."""

import base64
import copy
from functools import cache

from tests.support import helm
from webhook.cluster import JSON

ANY = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def crd(api_version: str, kind: str, plural: str, *, namespaced: bool = True) -> JSON:
    """A custom kind whose objects may hold anything."""
    group, _, version = api_version.rpartition("/")
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, a test's"},
        },
        "spec": {
            "group": group,
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "scope": "Namespaced" if namespaced else "Cluster",
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": ANY},
                    "subresources": {"status": {}},
                }
            ],
        },
    }


KATIB = [
    crd("kubeflow.org/v1beta1", kind, plural)
    for kind, plural in (("Trial", "trials"), ("Experiment", "experiments"), ("Suggestion", "suggestions"))
]


def namespace(name: str, *, labelled: bool = True) -> JSON:
    labels = {"katib.kubeflow.org/metrics-collector-injection": "enabled"} if labelled else {}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


HOME = "trialtap-system"
"""Namespace that the chart is rendered for."""


@cache
def _chart() -> list[JSON]:
    """The chart with its default values."""
    return helm.objects(helm.template(namespace=HOME))


def _rendered(kind: str, ending: str = "") -> JSON:
    (found,) = (o for o in _chart() if o["kind"] == kind and o["metadata"]["name"].endswith(ending))
    return copy.deepcopy(found)


def account() -> list[JSON]:
    """The webhook's service account with what the chart lets it do."""
    binding = _rendered("ClusterRoleBinding", "-webhook")
    (subject,) = binding["subjects"]
    return [
        namespace(HOME, labelled=False),
        _rendered("ServiceAccount", subject["name"]),
        _rendered("ClusterRole", "-webhook"),
        binding,
    ]


def account_name() -> str:
    """Name of the webhook's service account."""
    name: str = _rendered("ClusterRoleBinding", "-webhook")["subjects"][0]["name"]
    return name


def configuration(url: str, ca: bytes, name: str = "trialtap") -> JSON:
    """The chart's webhooks for pods, served at a URL in the place of its Service."""
    made = _rendered("MutatingWebhookConfiguration")
    made["metadata"] = {"name": name}
    made["webhooks"] = [entry for entry in made["webhooks"] if entry["name"].startswith("pods")]
    for entry in made["webhooks"]:
        entry["clientConfig"] = {"url": f"{url}/mutate-pod", "caBundle": base64.b64encode(ca).decode()}
    return made
