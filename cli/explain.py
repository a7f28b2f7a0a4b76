"""Say why a pod of the cluster was injected, or not.

Examples:
  trialtap explain pod/mnist-a1-x7k2p -n hpo
  trialtap explain mnist-a1-x7k2p -n hpo -o patch

Reads the pod, its owners up to the Trial and what else decides about it, with your own rights, and changes nothing.
On stderr: what was noted on the pod when it was created, whose it is, and what would be decided now. With -o also the
pod, the JSON Patch or the AdmissionReview that the webhook would answer now.
"""

import argparse
import asyncio
import dataclasses
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson

from cli.inject import output, review_of
from trialtap import names
from trialtap.kube import API, Status, Unreachable, path_of
from webhook import review, settings
from webhook.cluster import NotFound, ObjectsCluster, Unreadable
from webhook.entrypoint import Entrypoints
from webhook.events import Events
from webhook.kube import KubeCluster
from webhook.ownership import Ownership, owners_of, trial_of
from webhook.pods import Pods
from webhook.review import Request, Verdict
from webhook.settings import Settings

JSON = dict[str, Any]

UNASKED_OWNERS = frozenset({("apps/v1", "DaemonSet"), ("v1", "Node")})
"""Owners whose pods the webhook is never asked about (the chart's matchConditions)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("pod", metavar="pod/NAME", help="the pod")
    parser.add_argument("-n", "--namespace", default="default", help="its namespace (default: %(default)s)")
    parser.add_argument(
        "-o",
        "--output",
        choices=("pod", "patch", "review"),
        help="also print what the webhook would answer now",
    )
    parser.add_argument(
        "--kubeconfig", type=Path, metavar="FILE", help="the cluster (default: $KUBECONFIG, ~/.kube/config)"
    )
    parser.add_argument(
        "--settings", type=Path, metavar="FILE", help="the webhook's settings (default: its defaults)"
    )


def main(args: argparse.Namespace) -> int:
    """Run the command: 0 when the pod was read, 1 when it or the cluster cannot be, or it would be refused now."""
    kind, slash, name = args.pod.rpartition("/")
    if slash and kind not in {"pod", "pods", "po"}:
        print(f"trialtap explain: {args.pod!r}: only pods are explained; write pod/NAME", file=sys.stderr)
        return 1
    try:
        chosen = settings.load(args.settings) if args.settings else Settings()
        return asyncio.run(_explain(name, chosen, args))
    except (settings.SettingsError, ValueError, OSError, NotFound, Unreadable, Status, Unreachable) as error:
        print(f"trialtap explain: {error}", file=sys.stderr)
        return 1


def kubeconfig(given: Path | None) -> Path | None:
    """The file that kubectl would read; None: the service account of the pod that this runs in."""
    if given is not None:
        return given
    named = os.environ.get("KUBECONFIG", "").partition(os.pathsep)[0]
    path = Path(named) if named else Path.home() / ".kube" / "config"
    return path if named or path.is_file() else None


class LiveCluster(ObjectsCluster):
    """What decides about one namespace's pods, read once; owners are read live."""

    def __init__(self, objects: list[JSON], live: KubeCluster, namespace: str) -> None:
        super().__init__(objects, namespace)
        self._live = live

    async def scope(self, api_version: str, kind: str) -> bool:
        """See `Cluster`."""
        return await self._live.scope(api_version, kind)

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> JSON:
        """See `Cluster`."""
        return await self._live.get(api_version, kind, namespace, name)


@asynccontextmanager
async def _connected(chosen: Settings, args: argparse.Namespace) -> AsyncIterator[LiveCluster]:
    """The cluster, with what stands around the pods of the namespace.

    What may not be read counts as absent, and that is said: it may change the answer.
    """
    api = await API.connect(kubeconfig(args.kubeconfig))
    try:
        namespace = args.namespace
        katib_config = path_of("v1", "configmaps", chosen.katib_namespace, names.KATIB_CONFIG)
        paths = [
            ("Namespace", path_of("v1", "namespaces", name=namespace)),
            ("ConfigMap", katib_config),
            ("LimitRange", path_of("v1", "limitranges", namespace)),
            ("Suggestion", path_of(names.API_VERSION, "suggestions", namespace)),
            ("Trial", path_of(names.API_VERSION, "trials", namespace)),
        ]
        objects: list[JSON] = []
        for kind, path in paths:
            try:
                found = await api.request("GET", path)
            except Status as status:
                if status.code != 404:
                    print(f"{path}: {status}; it counts as absent here", file=sys.stderr)
                continue
            items = found.get("items", [found])
            version = str(found.get("apiVersion"))
            objects += [{"apiVersion": version, "kind": kind, **item} for item in items]
        yield LiveCluster(objects, KubeCluster(api, chosen.katib_namespace), namespace)
    finally:
        await api.close()


async def _explain(name: str, chosen: Settings, args: argparse.Namespace) -> int:
    async with _connected(chosen, args) as cluster:
        pod = await cluster.get("v1", "Pod", args.namespace, name)
        found = await trial_of(pod, args.namespace, cluster)
        entrypoints = Entrypoints(chosen.entrypoint_lookup, cluster)
        pods = Pods(Events(cluster), entrypoints.look_up)
        request = review.parse(orjson.dumps(review_of(pod, args.namespace)))
        verdict = await pods.mutate(dataclasses.replace(request, dry_run=True), cluster, chosen)
        await entrypoints.close()
        for line in (noted(pod), whose(pod, found), decided(pod, verdict, cluster, request)):
            print(f"pod {args.namespace}/{name}: {line}", file=sys.stderr)
        for warning in verdict.warnings:
            print(f"pod {args.namespace}/{name}: warning: {warning}", file=sys.stderr)
        if args.output:
            print(output(request, verdict, args.output), end="")
        return 1 if verdict.refusal else 0


def noted(pod: JSON) -> str:
    """What the webhook wrote on the pod when it was created."""
    annotations = pod["metadata"].get("annotations") or {}
    decision = annotations.get(names.DECISION_ANNOTATION)
    return f"at its creation: {decision}" if decision else "at its creation: left as it was, or not seen"


def whose(pod: JSON, found: Ownership) -> str:
    """The chain of owners, as far as it leads."""
    if found.trial is not None:
        return "it belongs to " + " < ".join(map(str, found.chain))
    if found.unreadable:
        return f"its owners cannot be read: {'; '.join(found.unreadable)}"
    owners = owners_of(pod)
    if not owners:
        return "it has no owner, so it is no trial's"
    return (
        f"no Trial is found above its owner {owners[0]}: the owners must be there with the same uid, and the last"
        " one below the Trial must be the object that the Trial's runSpec makes, of the Trial's name"
    )


def decided(pod: JSON, verdict: Verdict, cluster: ObjectsCluster, request: Request) -> str:
    """What would happen to it now, or why the webhook would not be asked."""
    held = cluster.namespace(request.namespace)
    labels = ((held or {}).get("metadata") or {}).get("labels") or {}
    if labels.get(names.INJECTION_LABEL) != "enabled":
        label = f"{names.INJECTION_LABEL}=enabled"
        return f"the webhook is not asked: namespace {request.namespace} lacks the label {label}"
    owners = owners_of(pod)
    if not owners or all((owner.api_version, owner.kind) in UNASKED_OWNERS for owner in owners):
        return "the webhook is not asked: it has no owner that could be a trial's"
    if verdict.refusal is not None:
        return f"now it would be refused ({verdict.refusal.reason}): {verdict.refusal.message}"
    if verdict.patch:
        return (
            f"now: {verdict.decision}, and it would be changed: it was created before the Trial, the label or the"
            " webhook was there, or by other settings"
        )
    return f"now: {verdict.decision}"
