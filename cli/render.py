"""Print the run object that one trial of an experiment would get.

  trialtap render -f experiment.yaml --set lr=0.1 --set layers=3

FILE holds the Experiment, and the ConfigMap where its template stands in one. Every parameter that the
template uses needs a --set.
"""

import argparse
import sys
from typing import Any

import yaml

from cli import manifests
from trialtap import names
from trialtap.objects import Experiment, TrialTemplate
from webhook.experiments import defaults, render

JSON = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "-f", "--file", action="append", required=True, metavar="FILE", help="YAML or JSON; - for stdin"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        dest="assignments",
        help="a parameter's value",
    )
    parser.add_argument("--name", help="the trial's name (default: the experiment's with -trial)")


def main(args: argparse.Namespace) -> int:
    """Render one trial."""
    try:
        print(yaml.safe_dump(_render(args), sort_keys=False, allow_unicode=True), end="")
    except (manifests.ManifestError, ValueError) as error:
        print(f"trialtap render: {error}", file=sys.stderr)
        return 1
    return 0


def _render(args: argparse.Namespace) -> JSON:
    objects = manifests.load(args.file)
    experiments = [
        o for o in objects if o["kind"] == "Experiment" and o["apiVersion"].startswith(f"{names.GROUP}/")
    ]
    if len(experiments) != 1:
        raise ValueError(
            f"{', '.join(args.file)}: holds {len(experiments)} Experiments; one is rendered at a time"
        )
    experiment = Experiment.model_validate(defaults.experiment(experiments[0]))
    template = experiment.spec.trial_template
    if template is None:
        raise ValueError(f"Experiment {experiment.metadata.name}: spec.trialTemplate: missing")
    body = _body(template, objects)
    assignments = dict(map(_assignment, args.assignments))
    known = {parameter.reference for parameter in template.trial_parameters or ()}
    for name in assignments:
        if name not in known:
            raise ValueError(
                f"--set {name}: no trialParameter refers to it; the references are {', '.join(sorted(known))}"
            )
    name = args.name or f"{experiment.metadata.name}-trial"
    namespace = experiment.metadata.namespace or "default"
    held = render.values(body, template.trial_parameters or (), assignments, name, namespace)
    return render.render(body, held, name, namespace)


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--set {text}: write NAME=VALUE")
    return name, value


def _body(template: TrialTemplate, objects: list[JSON]) -> JSON:
    """The template, from the Experiment or from a ConfigMap among the objects."""
    if template.trial_spec:
        return template.trial_spec
    source = template.config_map
    if source is None:
        raise ValueError("spec.trialTemplate: neither trialSpec nor configMap is set")
    for item in objects:
        metadata = item.get("metadata") or {}
        place = metadata.get("name"), metadata.get("namespace", source.config_map_namespace)
        if item["kind"] == "ConfigMap" and place == (source.config_map_name, source.config_map_namespace):
            text = (item.get("data") or {}).get(source.template_path)
            if text is None:
                raise ValueError(f"ConfigMap {source.config_map_name}: has no key {source.template_path}")
            try:
                return render.parse(text)
            except render.RenderError as error:
                raise ValueError(
                    f"ConfigMap {source.config_map_name}, key {source.template_path}: {error}"
                ) from None
    raise ValueError(
        f"ConfigMap {source.config_map_namespace}/{source.config_map_name} is not in the files: add -f with it"
    )
