"""Check Experiments and Trials as the webhook does, without a cluster.

FILE holds Experiments and Trials, and what they need: the ConfigMap of a template, katib-config, the
Namespace (one that is not in the files counts as labelled). Faults go to stderr, one line each, and the
exit status is 1; without faults it is 0, and what was defaulted is said, or printed with -o yaml.
"""

import argparse
import asyncio
import copy
import sys
import uuid
from collections.abc import Sequence
from typing import Any

import yaml

from cli import manifests
from trialtap import names
from webhook.cluster import ObjectsCluster
from webhook.experiments import defaults, handlers
from webhook.review import Refusal, Request, Verdict
from webhook.settings import Settings

JSON = dict[str, Any]

_JUDGED = {"Experiment": handlers.validate_experiment, "Trial": handlers.validate_trial}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "-f", "--file", action="append", required=True, metavar="FILE", help="YAML or JSON; - for stdin"
    )
    parser.add_argument("--old", metavar="FILE", help="the stored objects: judge an update of them")
    parser.add_argument("-o", "--output", choices=["yaml"], help="print the defaulted objects")


def main(args: argparse.Namespace) -> int:
    """Check the files."""
    try:
        objects = manifests.load(args.file)
        stored = manifests.load([args.old]) if args.old else []
    except manifests.ManifestError as error:
        print(f"trialtap validate: {error}", file=sys.stderr)
        return 1
    judged = [o for o in objects if _is_ours(o)]
    if not judged:
        print(f"trialtap validate: {', '.join(args.file)}: holds no Experiment or Trial", file=sys.stderr)
        return 1
    cluster = ObjectsCluster([*_namespaces(objects), *objects])
    before = {_key(o): o for o in stored if _is_ours(o)}
    refused = sum(_judge(item, before.get(_key(item)), cluster) for item in judged)
    if args.output and not refused:
        yaml.safe_dump_all(
            [_defaulted(item) for item in judged], sys.stdout, sort_keys=False, allow_unicode=True
        )
    return 1 if refused else 0


def _is_ours(item: JSON) -> bool:
    return item["kind"] in _JUDGED and str(item["apiVersion"]).startswith(f"{names.GROUP}/")


def _key(item: JSON) -> tuple[str, str, str]:
    metadata = item.get("metadata") or {}
    return item["kind"], metadata.get("namespace") or "default", metadata.get("name") or ""


def _namespaces(objects: Sequence[JSON]) -> list[JSON]:
    """A labelled Namespace for every namespace that the files use and do not hold."""
    used = {(o.get("metadata") or {}).get("namespace") or "default" for o in objects}
    labels = {names.INJECTION_LABEL: "enabled"}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        for name in sorted(used)
    ]


def _judge(item: JSON, old: JSON | None, cluster: ObjectsCluster) -> bool:
    """Say what is wrong with one object, or what was defaulted; returns whether it is refused."""
    kind, namespace, name = _key(item)
    request = Request(
        uid=str(uuid.uuid4()),
        operation="UPDATE" if old else "CREATE",
        kind=kind,
        group=names.GROUP,
        version="v1beta1",
        namespace=namespace,
        name=name,
        subresource="",
        object=item,
        old_object=old or {},
        dry_run=True,
        user={},
    )
    try:
        verdict = asyncio.run(_JUDGED[kind](request, cluster, Settings()))
    except Refusal as refusal:
        verdict = Verdict(refusal=refusal)
    for warning in verdict.warnings:
        print(f'{kind} "{request.label}": warning: {warning}', file=sys.stderr)
    if verdict.refusal:
        lines = [f"{cause.field}: {cause.message}" for cause in verdict.refusal.causes] or [
            verdict.refusal.message
        ]
        for line in lines:
            print(f'{kind} "{request.label}": {line}', file=sys.stderr)
        return True
    changed = _added(item.get("spec"), _defaulted(item).get("spec"), "spec")
    print(
        f'{kind} "{request.label}": valid' + (f"; defaulted: {', '.join(changed)}" if changed else ""),
        file=sys.stderr,
    )
    return False


def _defaulted(item: JSON) -> JSON:
    fill = defaults.trial if item["kind"] == "Trial" else defaults.experiment
    return copy.deepcopy(fill(item))


def _added(before: Any, after: Any, path: str) -> list[str]:
    """Paths of what is in `after` and not in `before`."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [
            place
            for key in after
            for place in (
                _added(before[key], after[key], f"{path}.{key}") if key in before else [f"{path}.{key}"]
            )
        ]
    if isinstance(before, list) and isinstance(after, list):
        return [
            place
            for index, item in enumerate(after)
            for place in (
                _added(before[index], item, f"{path}[{index}]")
                if index < len(before)
                else [f"{path}[{index}]"]
            )
        ]
    return [] if before == after else [path]
