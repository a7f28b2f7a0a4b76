"""Show what the webhook would do to a pod, without a cluster.

Examples:
  kubectl get trial,job,pod -l katib.kubeflow.org/trial=mnist-a1 -o yaml | trialtap inject -f -
  trialtap inject -f trial.yaml -f pod.yaml -o patch
  trialtap inject -f review.json -f trial.yaml -f job.yaml -o review

FILE holds Pods or AdmissionReviews, and whatever decides about them: the Trial, the owners between it and the pod,
and where they matter the Namespace, LimitRanges, the Suggestion and the ConfigMap katib-config. A Trial whose
runSpec is a Job needs no Pod beside it. What is decided about each pod, and why, is said on stderr.
"""

import argparse
import asyncio
import dataclasses
import json
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonpatch
import orjson
import yaml

from cli import manifests, trialpod
from trialtap import names
from webhook import review, settings
from webhook.cluster import CLUSTER_SCOPED, Cluster, NotFound, ObjectsCluster, Unreadable
from webhook.entrypoint import Entrypoints
from webhook.events import Events
from webhook.injection import Entrypoint
from webhook.pods import Pods
from webhook.review import Malformed, Request, Verdict
from webhook.settings import Settings

JSON = dict[str, Any]

NO_TRIAL = "no trial's pod"
"""The webhook's decision about a pod of no trial."""
_OWNERS = 20
"""How many owners are looked at to say which one is missing among the files."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "-f",
        "--file",
        action="append",
        required=True,
        metavar="FILE",
        help="YAML or JSON, - for stdin; may repeat",
    )
    parser.add_argument(
        "-n", "--namespace", default="default", help="namespace of what names none (default: %(default)s)"
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=("pod", "patch", "review"),
        default="pod",
        help="print the pod, the JSON Patch, or the AdmissionReview that the webhook answers (default: %(default)s)",
    )
    parser.add_argument(
        "--settings", type=Path, metavar="FILE", help="the webhook's settings (default: its defaults)"
    )
    parser.add_argument(
        "--lookup-entrypoints",
        action="store_true",
        help="ask registries for the entrypoint of images whose container sets no command",
    )


def main(args: argparse.Namespace) -> int:
    """Run the command: 0 when every pod is allowed, 1 when one is refused or a file cannot be read."""
    try:
        objects = [_placed(item, args.namespace) for item in manifests.load(args.file)]
        chosen = settings.load(args.settings) if args.settings else Settings()
        reviews, rest = _sorted(objects, args.namespace)
    except (manifests.ManifestError, settings.SettingsError, trialpod.TrialFileError) as error:
        print(f"trialtap inject: {error}", file=sys.stderr)
        return 1
    return asyncio.run(_answer(reviews, ObjectsCluster(rest, args.namespace), chosen, args))


def _placed(item: JSON, namespace: str) -> JSON:
    """The object in a namespace, where it is of a kind that lives in one."""
    if item["kind"] in {*CLUSTER_SCOPED, "AdmissionReview"}:
        return item
    return {**item, "metadata": {"namespace": namespace, **(item.get("metadata") or {})}}


def _sorted(objects: Sequence[JSON], namespace: str) -> tuple[list[JSON], list[JSON]]:
    """AdmissionReviews to answer (a Pod's made for it), and the objects of the cluster.

    Raises:
        TrialFileError: there is neither Pod nor AdmissionReview, nor a Trial of which one can be made.
    """
    reviews = [item for item in objects if item["kind"] == "AdmissionReview"]
    pods = [item for item in objects if item["kind"] == "Pod" and item["apiVersion"] == "v1"]
    rest = [item for item in objects if item["kind"] != "AdmissionReview" and item not in pods]
    if not reviews and not pods:
        made = trialpod.build(rest)
        return [review_of(made.pod, namespace)], [*made.owners, *rest]
    return [*reviews, *(review_of(pod, namespace) for pod in pods)], [*rest, *pods]


def review_of(pod: JSON, namespace: str) -> JSON:
    """The AdmissionReview that an API server would send for a pod that is created."""
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    request = {
        "uid": str(uuid.uuid4()),
        "kind": kind,
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "namespace": pod["metadata"].get("namespace") or namespace,
        "name": pod["metadata"].get("name") or "",
        "operation": "CREATE",
        "object": pod,
        "dryRun": True,
    }
    return {"apiVersion": review.REVIEW_API_VERSION, "kind": "AdmissionReview", "request": request}


async def _answer(
    reviews: Sequence[JSON], cluster: ObjectsCluster, chosen: Settings, args: argparse.Namespace
) -> int:
    lookups = dataclasses.replace(
        chosen.entrypoint_lookup,
        enabled=args.lookup_entrypoints,
        # Secrets among the files are the user's own.
        pull_secret_namespaces=tuple((item.get("request") or {}).get("namespace", "") for item in reviews),
    )
    entrypoints = Entrypoints(lookups, cluster)
    pods = Pods(Events(cluster), entrypoints.look_up if args.lookup_entrypoints else _not_asked)
    status = 0
    for document in reviews:
        try:
            request = review.parse(orjson.dumps(document))
            verdict = await _verdict(request, pods, cluster, chosen)
        except (Malformed, TypeError) as error:
            print(f"AdmissionReview: cannot be answered: {error}", file=sys.stderr)
            status = 1
            continue
        for line in await _lines(request, verdict, cluster):
            print(line, file=sys.stderr)
        print(output(request, verdict, args.output), end="")
        status = 1 if verdict.refusal else status
    await entrypoints.close()
    return status


async def _verdict(request: Request, pods: Pods, cluster: ObjectsCluster, chosen: Settings) -> Verdict:
    """What the webhook would answer, or why it would not even be asked."""
    held = cluster.namespace(request.namespace)
    labels = ((held or {}).get("metadata") or {}).get("labels") or {}
    if held is not None and labels.get(names.INJECTION_LABEL) != "enabled":
        label = f"{names.INJECTION_LABEL}: enabled"
        return Verdict(decision=f"namespace {request.namespace} lacks the label {label}")
    return await pods.mutate(dataclasses.replace(request, dry_run=True), cluster, chosen)


async def _not_asked(pod: JSON, namespace: str, image: str) -> Entrypoint:  # noqa: ARG001 - a Lookup
    raise LookupError("no registry was asked; --lookup-entrypoints does")


async def _lines(request: Request, verdict: Verdict, cluster: Cluster) -> list[str]:
    """What is said of one request: the decision, then each warning."""
    name = f"{request.kind.lower()} {request.namespace}/{request.label}"
    if verdict.refusal:
        decision = f"refused ({verdict.refusal.reason}): {verdict.refusal.message}"
    elif verdict.patch or not request.object:
        decision = verdict.decision
    else:
        decision = f"unchanged: {verdict.decision}"
        if verdict.decision == NO_TRIAL:
            decision += await _missing(request, cluster)
    return [f"{name}: {decision}", *(f"{name}: warning: {warning}" for warning in verdict.warnings)]


async def _missing(request: Request, cluster: Cluster) -> str:
    """Which owner the files do not hold, so that no trial was found."""
    pending, seen = [request.object], 0
    if not request.object["metadata"].get("ownerReferences"):
        return "; it has no ownerReferences"
    while pending and seen < _OWNERS:
        for owner in pending.pop().get("metadata", {}).get("ownerReferences") or ():
            seen += 1
            shown = f'{owner.get("kind")} {owner.get("apiVersion")} "{owner.get("name")}"'
            try:
                held = await cluster.get(
                    str(owner.get("apiVersion")),
                    str(owner.get("kind")),
                    request.namespace,
                    str(owner.get("name")),
                )
            except (NotFound, Unreadable):
                return f"; its owner {shown} is not among the files"
            if held["metadata"].get("uid") != owner.get("uid"):
                return f"; its owner {shown} has another uid in the files than in ownerReferences"
            pending.append(held)
    return ""


def output(request: Request, verdict: Verdict, shape: str) -> str:
    """What is printed of one answer: the pod, the patch or the whole AdmissionReview."""
    if shape == "review":
        return json.dumps(orjson.loads(review.answer(request, verdict)), indent=2) + "\n"
    if verdict.refusal:
        return ""
    if shape == "patch":
        return json.dumps(verdict.patch, indent=2, ensure_ascii=False) + "\n"
    pod = jsonpatch.apply_patch(request.object, list(verdict.patch))
    return "---\n" + yaml.safe_dump(pod, sort_keys=False, allow_unicode=True)
