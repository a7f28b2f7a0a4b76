"""Kubernetes objects for tests, and a cluster that counts reads and fails on demand."""

from collections.abc import Callable
from typing import Any

from webhook.cluster import JSON, NotFound, ObjectsCluster, Unreadable


def obj(api_version: str, kind: str, name: str, *owners: JSON, uid: str = "", **rest: Any) -> JSON:
    """An object of namespace `hpo` with a UID made from kind and name, owned by `owners`."""
    namespace = rest.pop("namespace", "hpo")
    metadata: JSON = {"name": name, "uid": uid or f"uid-{kind}-{name}", "namespace": namespace}
    if owners:
        metadata["ownerReferences"] = [ref(owner) for owner in owners]
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **rest}


def ref(owner: JSON, **changes: Any) -> JSON:
    """The ownerReference to an object; `changes` tell lies."""
    metadata = owner["metadata"]
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        **changes,
    }


def trial(name: str = "t1", run: str = "batch/v1 Job", container: str = "main", **rest: Any) -> JSON:
    """A Trial that runs objects of this apiVersion and kind."""
    api_version, kind = run.split()
    spec = {
        "objective": {"type": "maximize", "objectiveMetricName": "accuracy"},
        "metricsCollector": {"collector": {"kind": "StdOut"}},
        "primaryContainerName": container,
        "runSpec": {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}},
        **rest.pop("spec", {}),
    }
    return obj("kubeflow.org/v1beta1", "Trial", name, spec=spec, **rest)


def pod(*owners: JSON, name: str = "t1-abcde", refs: list[JSON] | None = None, **metadata: Any) -> JSON:
    """A pod with one container `main`, owned by `owners`, or with these ownerReferences."""
    references = [ref(owner) for owner in owners] if refs is None else refs
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "ownerReferences": references, **metadata},
        "spec": {"containers": [{"name": "main", "image": "i", "command": ["train"]}]},
    }


def review(of: JSON, operation: str = "CREATE", namespace: str = "hpo", **rest: Any) -> JSON:
    """The AdmissionReview that an API server sends of this object."""
    group, _, version = of["apiVersion"].rpartition("/")
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "review-1",
            "kind": {"group": group, "version": version, "kind": of["kind"]},
            "operation": operation,
            "namespace": namespace,
            "name": of["metadata"].get("name", ""),
            "object": of,
            "oldObject": None,
            "dryRun": False,
            "userInfo": {"username": "somebody"},
            **rest,
        },
    }


class Counted(ObjectsCluster):
    """Counts live reads; `fail` may raise for one of (kind, name)."""

    def __init__(self, *objects: JSON, fail: Callable[[str, str], None] = lambda _kind, _name: None) -> None:
        super().__init__(objects)
        self.reads: list[str] = []
        self._fail = fail

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> JSON:
        self.reads.append(f"{kind}/{name}")
        self._fail(kind, name)
        return await super().get(api_version, kind, namespace, name)

    def remove(self, item: JSON) -> None:
        metadata = item["metadata"]
        group = item["apiVersion"].rpartition("/")[0]
        del self._objects[(group, item["kind"], metadata["namespace"], metadata["name"])]
        self._trials.pop(metadata["uid"], None)


def unreadable(*kinds: str) -> Callable[[str, str], None]:
    """A `fail` for `Counted`: owners of these kinds cannot be read."""

    def fail(kind: str, name: str) -> None:
        if kind in kinds:
            raise Unreadable(f'{kind} "{name}": 403')

    return fail


def gone(kind: str, name: str) -> None:
    raise NotFound(f"{kind}/{name}")
