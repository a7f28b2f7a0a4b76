"""Rules of trialTemplate: its parameters, their references, the template itself and its primary container."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from trialtap.objects import ExperimentSpec, TrialTemplate
from webhook.experiments import conditions, job, podtypes, render
from webhook.experiments.faults import Faults
from webhook.review import JSON

_PATH: Final = "spec.trialTemplate"


def check(spec: ExperimentSpec, config_map_template: JSON | None, faults: Faults) -> None:
    """Check the template.

    Args:
        spec: the Experiment's, defaulted.
        config_map_template: the parsed template where it stands in a ConfigMap; None: not to be had, which
            whoever fetched it has said.
        faults: what is wrong is added; of a ConfigMap's template no content is quoted.
    """
    template = spec.trial_template
    if template is None:
        faults.required(_PATH, "give the template that every trial runs")
        return
    if not template.primary_container_name:
        faults.required(f"{_PATH}.primaryContainerName", "name the container that trains")
    conditions.check(template.success_condition, f"{_PATH}.successCondition", faults)
    conditions.check(template.failure_condition, f"{_PATH}.failureCondition", faults)
    _check_source(template, faults)
    _check_parameters(template, spec, faults)
    if template.trial_spec:
        _check_body(template.trial_spec, template, f"{_PATH}.trialSpec", faults)
    elif config_map_template is not None:
        with _without_quoting(faults):
            _check_body(config_map_template, template, f"{_PATH}.configMap.templatePath", faults)


@contextmanager
def _without_quoting(faults: Faults) -> Iterator[None]:
    faults.quoting = False
    try:
        yield
    finally:
        faults.quoting = True


def _check_source(template: TrialTemplate, faults: Faults) -> None:
    if template.trial_spec and template.config_map:
        faults.forbidden(f"{_PATH}.configMap", "set either trialSpec or configMap, not both")
    elif not template.trial_spec and not template.config_map:
        faults.required(f"{_PATH}.trialSpec", "write the template here, or name a configMap that holds it")
    if template.config_map:
        for field in ("config_map_name", "config_map_namespace", "template_path"):
            if not getattr(template.config_map, field):
                name = type(template.config_map).model_fields[field].alias
                faults.required(
                    f"{_PATH}.configMap.{name}", "a ConfigMap's template is found by name, namespace and key"
                )


def _check_parameters(template: TrialTemplate, spec: ExperimentSpec, faults: Faults) -> None:
    path = f"{_PATH}.trialParameters"
    if not template.trial_parameters:
        faults.required(path, "name the parameters that the template uses, each with its reference")
    searched = [parameter.name for parameter in spec.parameters or () if parameter.name]
    names: set[str] = set()
    references: set[str] = set()
    for index, parameter in enumerate(template.trial_parameters or ()):
        here = f"{path}[{index}]"
        if not parameter.name:
            faults.required(f"{here}.name", "name it as the template does in ${trialParameters.NAME}")
        elif "{" in parameter.name or "}" in parameter.name:
            faults.invalid(f"{here}.name", parameter.name, "must not contain { or }")
        elif parameter.name in names:
            faults.duplicate(f"{here}.name", parameter.name, "another trialParameter has this name")
        names.add(parameter.name)
        if parameter.reference in references and parameter.reference:
            faults.duplicate(
                f"{here}.reference", parameter.reference, "another trialParameter has this reference"
            )
        else:
            # A neural architecture search refers to what its algorithm assigns, which no parameter names.
            known = None if spec.nas_config else searched
            _check_reference(parameter.reference, f"{here}.reference", known, faults)
        references.add(parameter.reference)
    for index, parameter_name in enumerate(searched):
        if template.trial_parameters and parameter_name not in references:
            faults.invalid(
                f"spec.parameters[{index}].name",
                parameter_name,
                "no trialParameter refers to it, so no trial would use it: add one with this reference",
            )


def _check_reference(reference: str, path: str, searched: Sequence[str] | None, faults: Faults) -> None:
    if not reference:
        faults.required(path, "name the parameter that it stands for")
    elif reference.startswith("${"):
        if not render.is_metadata(reference):
            faults.unsupported(path, reference, [f"${{trialSpec.{key}}}" for key in render.METADATA_KEYS])
    elif searched is not None and reference not in searched:
        faults.unsupported(path, reference, searched)


def _check_body(body: JSON, template: TrialTemplate, path: str, faults: Faults) -> None:
    for field in ("apiVersion", "kind"):
        if not isinstance(body.get(field), str) or not body[field]:
            faults.required(f"{path}.{field}", "every Kubernetes object has it")
    metadata = body.get("metadata")
    for field in ("name", "namespace"):
        if isinstance(metadata, dict) and metadata.get(field):
            faults.forbidden(f"{path}.metadata.{field}", "the Trial's own is put there: remove it")
    _check_placeholders(body, template, path, faults)
    if podtypes.of_workload(body) == podtypes.JOB:
        job.check(body, path, faults)
    check_primary(body, template.primary_container_name, path, f"{_PATH}.primaryContainerName", faults)


def _check_placeholders(body: JSON, template: TrialTemplate, path: str, faults: Faults) -> None:
    used = render.used(body)
    declared = [parameter.name for parameter in template.trial_parameters or () if parameter.name]
    for name in sorted(used - set(declared)):
        faults.unsupported(
            path, f"${{trialParameters.{name}}}", [f"${{trialParameters.{known}}}" for known in declared]
        )
    for index, parameter in enumerate(template.trial_parameters or ()):
        here = f"{_PATH}.trialParameters[{index}]"
        if parameter.name and parameter.name not in used:
            faults.invalid(
                f"{here}.name",
                parameter.name,
                f"the template does not use ${{trialParameters.{parameter.name}}}",
            )
        is_metadata = render.is_metadata(parameter.reference)
        if is_metadata and render.metadata_value(parameter.reference, body, "name", "namespace") is None:
            faults.invalid(
                f"{here}.reference", parameter.reference, "the template's metadata has no such key"
            )


def check_primary(body: JSON, name: str, path: str, field: str, faults: Faults) -> None:
    """Check that the primary container is in the pods that can be seen in a workload."""
    found = list(podtypes.pod_specs(body, path))
    containers = {container["name"] for _, pod in found for container in pod["containers"]}
    if not name or not found or name in containers or any(map(render.PLACEHOLDER.search, containers)):
        return
    if podtypes.of_workload(body) == podtypes.JOB:
        faults.unsupported(field, name, sorted(containers))
    else:
        listed = ", ".join(sorted(containers))
        faults.warn(f"{field}: {name!r} is in no pod that can be seen in {path} (containers there: {listed})")


def istio_pods(body: Any) -> bool:
    """Whether some pod that can be seen in a workload does not turn Istio's sidecar off."""
    return any(_wants_istio(template) for template in _pod_templates(body))


def _pod_templates(node: Any) -> Iterator[JSON]:
    if isinstance(node, dict):
        if (
            isinstance(node.get("spec"), dict)
            and next(podtypes.pod_specs(node["spec"], ""), ("-", None))[0] == ""
        ):
            yield node
        for child in node.values():
            yield from _pod_templates(child)
    elif isinstance(node, list):
        for child in node:
            yield from _pod_templates(child)


def _wants_istio(template: JSON) -> bool:
    metadata = template.get("metadata")
    held = [metadata.get(where) for where in ("labels", "annotations")] if isinstance(metadata, dict) else []
    said = [where.get("sidecar.istio.io/inject") for where in held if isinstance(where, dict)]
    return not any(str(value).lower() == "false" for value in said)
