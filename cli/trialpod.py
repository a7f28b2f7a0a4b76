"""From a file's Trial to what a cluster would hold: its run object, the pod and the AdmissionReview."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from trialtap import names
from trialtap.objects import Trial

JSON = dict[str, Any]


class TrialFileError(Exception):
    """The objects are no runnable trial; the message names the object and the field."""


@dataclass(frozen=True)
class TrialPod:
    """One trial, ready to run."""

    trial: Trial
    pod: JSON
    owners: tuple[JSON, ...]
    """The Trial, its run object and the namespace: what the webhook looks up."""

    @property
    def namespace(self) -> str:
        """The Trial's namespace."""
        return self.trial.metadata.namespace

    @property
    def name(self) -> str:
        """The Trial's name."""
        return self.trial.metadata.name

    @property
    def primary(self) -> JSON:
        """The primary container."""
        return next(
            c for c in self.pod["spec"]["containers"] if c["name"] == self.trial.spec.primary_container_name
        )

    def review(self) -> JSON:
        """The AdmissionReview v1 that an API server would send for the pod."""
        kind = {"group": "", "version": "v1", "kind": "Pod"}
        resource = {"group": "", "version": "v1", "resource": "pods"}
        return {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {
                "uid": str(uuid.uuid4()),
                "kind": kind,
                "resource": resource,
                "requestKind": kind,
                "requestResource": resource,
                "namespace": self.namespace,
                "operation": "CREATE",
                "userInfo": {"username": "trialtap run"},
                "object": self.pod,
                "oldObject": None,
                "dryRun": False,
                "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
            },
        }


def build(objects: Sequence[JSON]) -> TrialPod:
    """Make the pod of the one Trial among `objects`.

    A Trial whose runSpec is a Job gives the pod that the Job's controller would make; for any other kind
    the file holds the Pod. Objects besides them (owners between Trial and Pod) go to the webhook as they are.

    Raises:
        TrialFileError: no Trial or several, no pod for it, or the primary container is missing.
    """
    trials = [
        o for o in objects if o["kind"] == "Trial" and str(o["apiVersion"]).startswith(f"{names.GROUP}/")
    ]
    pods = [o for o in objects if o["kind"] == "Pod" and o["apiVersion"] == "v1"]
    raw = _one(trials, "Trial", f"a Trial ({names.API_VERSION})")
    metadata = {"namespace": "default", "uid": str(uuid.uuid4())} | (raw.get("metadata") or {})
    if not metadata.get("name"):
        raise TrialFileError("Trial: metadata.name: missing")
    raw = {**raw, "metadata": metadata}
    trial = _read(raw)
    run_object = _run_object(trial)
    if pods:
        pod = _given_pod(_one(pods, "Pod", "a Pod"), run_object)
    elif run_object["apiVersion"].startswith("batch/") and run_object["kind"] == "Job":
        pod = _job_pod(run_object)
    else:
        raise TrialFileError(
            f"Trial {trial.metadata.name}: spec.runSpec is a {run_object['kind']}, whose pods its own operator makes: "
            "put the Pod it would create into the file too"
        )
    _check_primary(trial, pod)
    rest = [o for o in objects if o not in trials and o not in pods]
    return TrialPod(trial, pod, (raw, run_object, _namespace(metadata["namespace"]), *rest))


def _one(found: Sequence[JSON], kind: str, wanted: str) -> JSON:
    if not found:
        raise TrialFileError(f"holds no {kind}; put {wanted} into it")
    if len(found) > 1:
        listed = ", ".join(str((o.get("metadata") or {}).get("name", "(no name)")) for o in found)
        raise TrialFileError(
            f"holds {len(found)} {kind}s ({listed}); one is run at a time: keep one in the file"
        )
    return found[0]


def _read(raw: JSON) -> Trial:
    try:
        trial = Trial.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise TrialFileError(f"Trial {raw['metadata']['name']}: {place}: {first['msg']}") from None
    missing = [
        path
        for path, value in {
            "spec.runSpec": trial.spec.run_spec,
            "spec.primaryContainerName": trial.spec.primary_container_name,
            "spec.objective.objectiveMetricName": trial.spec.objective.objective_metric_name,
        }.items()
        if not value
    ]
    if missing:
        raise TrialFileError(f"Trial {trial.metadata.name}: {missing[0]}: missing")
    return trial


def _run_object(trial: Trial) -> JSON:
    spec = trial.spec.run_spec or {}
    for key in ("apiVersion", "kind"):
        if not isinstance(spec.get(key), str):
            raise TrialFileError(f"Trial {trial.metadata.name}: spec.runSpec.{key}: missing")
    owner = _owner_reference(names.API_VERSION, "Trial", trial.metadata.name, trial.metadata.uid)
    metadata = {
        **(spec.get("metadata") or {}),
        "name": trial.metadata.name,
        "namespace": trial.metadata.namespace,
        "uid": str(uuid.uuid4()),
        "ownerReferences": [owner],
    }
    return {**spec, "metadata": metadata}


def _owner_reference(api_version: str, kind: str, name: str, uid: str) -> JSON:
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _owned_by(run_object: JSON) -> JSON:
    metadata = run_object["metadata"]
    return _owner_reference(run_object["apiVersion"], run_object["kind"], metadata["name"], metadata["uid"])


def _job_pod(job: JSON) -> JSON:
    """The pod that the Job's controller would make, with what the API server adds to it."""
    name = job["metadata"]["name"]
    template = (job.get("spec") or {}).get("template") or {}
    if not (template.get("spec") or {}).get("containers"):
        raise TrialFileError(f"Trial {name}: spec.runSpec.spec.template.spec.containers: missing")
    labels = {"batch.kubernetes.io/job-name": name, "job-name": name}
    given = template.get("metadata") or {}
    metadata = {
        **given,
        "name": f"{name}-{uuid.uuid4().hex[:5]}",
        "namespace": job["metadata"]["namespace"],
        "labels": {**(given.get("labels") or {}), **labels},
        "ownerReferences": [_owned_by(job)],
    }
    return _defaulted({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})


def _given_pod(pod: JSON, run_object: JSON) -> JSON:
    metadata = pod.get("metadata") or {}
    owner = run_object["metadata"]
    metadata = {
        "name": metadata.get("name") or f"{metadata.get('generateName') or owner['name'] + '-'}0",
        **metadata,
        "namespace": owner["namespace"],
        "ownerReferences": metadata.get("ownerReferences") or [_owned_by(run_object)],
    }
    if not (pod.get("spec") or {}).get("containers"):
        raise TrialFileError(f"Pod {metadata['name']}: spec.containers: missing")
    return _defaulted({**pod, "metadata": metadata})


def _defaulted(pod: JSON) -> JSON:
    defaults = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 30,
        "serviceAccountName": "default",
    }
    return {**pod, "spec": {**defaults, **pod["spec"]}}


def _check_primary(trial: Trial, pod: JSON) -> None:
    wanted = trial.spec.primary_container_name
    there = [str(container.get("name")) for container in pod["spec"]["containers"]]
    if wanted not in there:
        raise TrialFileError(
            f"Trial {trial.metadata.name}: spec.primaryContainerName: {wanted!r} is not among the pod's containers "
            f"({', '.join(there)})"
        )


def _namespace(name: str) -> JSON:
    labels = {names.INJECTION_LABEL: "enabled"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
