"""What the tests on a real API server install: custom kinds, the webhook's account and its configuration."""

import base64
from collections.abc import Iterable

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


ACCOUNT = ("trialtap-system", "webhook")


def account(trial_resources: Iterable[str]) -> list[JSON]:
    """The webhook's service account with what it may do: `trial_resources` as PLURAL.GROUP."""
    by_group: dict[str, list[str]] = {}
    for resource in trial_resources:
        plural, _, group = resource.partition(".")
        by_group.setdefault(group, []).append(plural)
    rules = [
        {
            "apiGroups": ["kubeflow.org"],
            "resources": ["trials", "suggestions"],
            "verbs": ["get", "list", "watch"],
        },
        {"apiGroups": [""], "resources": ["namespaces", "limitranges"], "verbs": ["get", "list", "watch"]},
        {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "resourceNames": ["katib-config"],
            "verbs": ["get", "list", "watch"],
        },
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
        *({"apiGroups": [g], "resources": plurals, "verbs": ["get"]} for g, plurals in by_group.items()),
    ]
    home, name = ACCOUNT
    subject = {"kind": "ServiceAccount", "name": name, "namespace": home}
    rbac = "rbac.authorization.k8s.io"
    return [
        namespace(home, labelled=False),
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": home}},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "trialtap-webhook"},
            "rules": rules,
        },
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "trialtap-webhook"},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "trialtap-webhook"},
            "subjects": [subject],
        },
    ]


def _owner(api_version: str, kind: str) -> str:
    return f'(o.apiVersion == "{api_version}" && o.kind == "{kind}")'


NEVER = " || ".join([_owner("apps/v1", "DaemonSet"), _owner("v1", "Node")])
SELDOM = " || ".join([_owner("apps/v1", "ReplicaSet"), _owner("apps/v1", "StatefulSet")])
OWNERS = "object.metadata.?ownerReferences.orValue([])"
USUALLY_CONDITION = f"{OWNERS}.exists(o, !({NEVER} || {SELDOM}))"
SELDOM_CONDITION = f"{OWNERS}.exists(o, {SELDOM}) && !({USUALLY_CONDITION})"


def configuration(url: str, ca: bytes, name: str = "trialtap") -> JSON:
    """The pod webhook: owners that make trials with Fail, those that seldom do with Ignore, the rest unseen."""

    def entry(prefix: str, policy: str, condition: str) -> JSON:
        return {
            "name": f"{prefix}.trialtap.dev",
            "clientConfig": {"url": f"{url}/mutate-pod", "caBundle": base64.b64encode(ca).decode()},
            "rules": [
                {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
            ],
            "admissionReviewVersions": ["v1"],
            "sideEffects": "NoneOnDryRun",
            "failurePolicy": policy,
            "reinvocationPolicy": "IfNeeded",
            "timeoutSeconds": 10,
            "namespaceSelector": {
                "matchLabels": {"katib.kubeflow.org/metrics-collector-injection": "enabled"},
                "matchExpressions": [
                    {
                        "key": "kubernetes.io/metadata.name",
                        "operator": "NotIn",
                        "values": ["kube-system", ACCOUNT[0]],
                    }
                ],
            },
            "matchConditions": [{"name": "owners", "expression": condition}],
        }

    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [
            entry("pods", "Fail", USUALLY_CONDITION),
            entry("seldom", "Ignore", SELDOM_CONDITION),
        ],
    }
