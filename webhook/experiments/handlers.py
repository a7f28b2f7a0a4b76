"""Answers requests about Experiments and Trials: reads what the rules need, and turns faults into a refusal."""

from typing import Final

from pydantic import ValidationError

from trialtap import names
from trialtap.objects import ConfigMapSource, Experiment
from webhook import patch
from webhook.cluster import Cluster, NotFound, Unreadable
from webhook.experiments import defaults, render, rules, update
from webhook.experiments.faults import Faults
from webhook.review import JSON, Reason, Refusal, Request, Verdict
from webhook.settings import Settings

_TEMPLATES_LABEL: Final = ("katib.kubeflow.org/component", "trial-templates")
"""A ConfigMap that carries it is a template for every namespace."""
_CONFIG_MAP: Final = "spec.trialTemplate.configMap"
_INVALID: Final = 422
_SECTIONS: Final = ("suggestions", "earlyStoppings", "metricsCollectors")


async def mutate_experiment(request: Request, _cluster: Cluster, _settings: Settings) -> Verdict:
    """Fill in an Experiment's defaults."""
    if not _concerns(request, "Experiment") or _leaves_spec(request):
        return Verdict(decision="nothing to default")
    operations = patch.diff(request.object, defaults.experiment(request.object))
    return Verdict(patch=operations, decision="defaulted" if operations else "nothing to default")


async def validate_experiment(request: Request, cluster: Cluster, settings: Settings) -> Verdict:
    """Judge an Experiment that is made, or whose spec is changed."""
    if not _concerns(request, "Experiment") or _leaves_spec(request):
        return Verdict(decision="spec unchanged")
    faults = Faults()
    new = defaults.experiment(request.object)
    old = defaults.experiment(request.old_object) if request.operation == "UPDATE" else None
    around = await _surroundings(request, new, cluster, settings, faults)
    rules.check_experiment(new, old, around, faults)
    return _verdict(request, faults)


async def validate_trial(request: Request, cluster: Cluster, _settings: Settings) -> Verdict:
    """Judge a Trial that is made, or whose spec is changed."""
    if not _concerns(request, "Trial") or _leaves_spec(request):
        return Verdict(decision="spec unchanged")
    faults = Faults()
    labels = await _namespace_labels(request, cluster)
    rules.check_trial(defaults.trial(request.object), rules.Surroundings(namespace_labels=labels), faults)
    return _verdict(request, faults)


def _concerns(request: Request, kind: str) -> bool:
    return (
        request.operation in {"CREATE", "UPDATE"}
        and not request.subresource
        and (request.group, request.kind) == (names.GROUP, kind)
    )


def _leaves_spec(request: Request) -> bool:
    return request.operation == "UPDATE" and update.unchanged(request.old_object, request.object)


def _verdict(request: Request, faults: Faults) -> Verdict:
    warnings = tuple(faults.warnings)
    if not faults.causes:
        return Verdict(warnings=warnings, decision="valid")
    listed = [f"{cause.field}: {cause.message}" for cause in faults.causes]
    said = listed[0] if len(listed) == 1 else f"[{', '.join(listed)}]"
    message = f'{request.kind} "{request.label}" is invalid: {said}'
    refusal = Refusal(Reason.INVALID, message, faults.causes, code=_INVALID)
    return Verdict(warnings=warnings, refusal=refusal, decision="invalid")


async def _surroundings(
    request: Request, new: JSON, cluster: Cluster, settings: Settings, faults: Faults
) -> rules.Surroundings:
    labels = await _namespace_labels(request, cluster)
    model = _read_leniently(new)
    source = model.spec.trial_template.config_map if model.spec.trial_template else None
    return rules.Surroundings(
        namespace_labels=labels,
        config_map_template=await _template(source, request, cluster, faults) if source else None,
        katib_config=_katib_config(cluster.katib_config()),
        image_from_katib_config=settings.sidecar.image_from_katib_config,
        existing_volume=await _existing_volume(request, model, cluster, faults),
    )


def _read_leniently(new: JSON) -> Experiment:
    """The Experiment, or an empty one where its types are wrong, which the rules then say."""
    try:
        return Experiment.model_validate(new)
    except ValidationError:
        return Experiment()


async def _namespace_labels(request: Request, cluster: Cluster) -> JSON:
    """Labels of the request's namespace, which must have opted in.

    Raises:
        Refusal: it has not; or it could not be read, which is the cluster's fault and not the user's.
    """
    found = cluster.namespace(request.namespace)
    if found is None:
        try:
            found = await cluster.get("v1", "Namespace", "", request.namespace)
        except (NotFound, Unreadable) as error:
            raise Refusal(
                Reason.CONFIGURATION,
                f'{request.kind} "{request.label}": namespace {request.namespace!r} could not be read, so whether it has '
                f"opted in is not known; try again, and tell the administrator of trialtap: {error}",
                code=500,
            ) from None
    labels: JSON = (found.get("metadata") or {}).get("labels") or {}
    if labels.get(names.INJECTION_LABEL) != "enabled":
        raise Refusal(
            Reason.NAMESPACE_NOT_LABELLED,
            f'{request.kind} "{request.label}": namespace {request.namespace!r} has not opted in, so its trials would run '
            f"unobserved; run: kubectl label namespace {request.namespace} {names.INJECTION_LABEL}=enabled",
        )
    return labels


def _katib_config(config: JSON | None) -> JSON | None:
    """The `katib-config`, where it has a shape that can be judged by.

    Raises:
        Refusal: it has not: the administrator's fault, and named so.
    """
    if config is None:
        return None
    runtime = config.get("runtime")
    sections = [runtime.get(name) for name in _SECTIONS] if isinstance(runtime, dict) else []
    if not isinstance(runtime, dict | None) or not all(
        isinstance(section, list | None) for section in sections
    ):
        raise Refusal(
            Reason.CONFIGURATION,
            f"ConfigMap {names.KATIB_CONFIG}, key {names.KATIB_CONFIG_KEY}: runtime must be an object with the lists "
            f"{', '.join(_SECTIONS)}; this is the cluster's configuration and not your object: tell its administrator",
            code=500,
        )
    return config


async def _template(
    source: ConfigMapSource, request: Request, cluster: Cluster, faults: Faults
) -> JSON | None:
    """Fetch and parse a ConfigMap's template; a fault says why not, and quotes nothing of it."""
    if not (source.config_map_name and source.config_map_namespace and source.template_path):
        return None  # the rules say which part is missing
    place = f"{source.config_map_namespace}/{source.config_map_name}"
    found = await _config_map(source, place, request, cluster, faults)
    if found is None:
        return None
    path = f"{_CONFIG_MAP}.templatePath"
    text = (found.get("data") or {}).get(source.template_path)
    if not isinstance(text, str):
        faults.invalid(path, source.template_path, f"ConfigMap {place} has no such key")
        return None
    try:
        return render.parse(text)
    except render.RenderError as error:
        faults.invalid(path, source.template_path, f"the template {error}")
        return None


async def _config_map(
    source: ConfigMapSource, place: str, request: Request, cluster: Cluster, faults: Faults
) -> JSON | None:
    """The ConfigMap, where it is there and whoever asks may see it."""
    try:
        found = await cluster.get("v1", "ConfigMap", source.config_map_namespace, source.config_map_name)
        readable = await _may_read(source, found, request, cluster)
    except NotFound:
        faults.invalid(_CONFIG_MAP, place, "no such ConfigMap")
        return None
    except Unreadable as error:
        faults.invalid(
            _CONFIG_MAP,
            place,
            f"could not be read; trialtap's webhook needs get on configmaps there: {error}",
        )
        return None
    if not readable:
        label = "=".join(_TEMPLATES_LABEL)
        faults.forbidden(
            _CONFIG_MAP,
            f"ConfigMap {place} is of another namespace: label it {label}, or use one that you may read",
        )
        return None
    return found


async def _may_read(source: ConfigMapSource, found: JSON, request: Request, cluster: Cluster) -> bool:
    """Whether whoever asks may see the ConfigMap: his own namespace's, one for everybody, or by RBAC."""
    labels = (found.get("metadata") or {}).get("labels") or {}
    key, value = _TEMPLATES_LABEL
    if source.config_map_namespace == request.namespace or labels.get(key) == value:
        return True
    user = request.user
    review = {
        "spec": {
            "user": user.get("username", ""),
            "uid": user.get("uid", ""),
            "groups": user.get("groups") or [],
            "extra": user.get("extra") or {},
            "resourceAttributes": {
                "verb": "get",
                "resource": "configmaps",
                "namespace": source.config_map_namespace,
                "name": source.config_map_name,
            },
        }
    }
    answer = await cluster.create("authorization.k8s.io/v1", "SubjectAccessReview", "", review)
    return bool((answer.get("status") or {}).get("allowed"))


async def _existing_volume(request: Request, model: Experiment, cluster: Cluster, faults: Faults) -> str:
    """Name of FromVolume's PersistentVolume when it is there on CREATE, else ""."""
    algorithm = model.spec.algorithm.algorithm_name if model.spec.algorithm else ""
    if (
        request.operation != "CREATE"
        or model.spec.resume_policy != "FromVolume"
        or not request.name
        or not algorithm
    ):
        return ""
    name = f"{request.name}-{algorithm}-{request.namespace}"
    try:
        await cluster.get("v1", "PersistentVolume", "", name)
    except NotFound:
        return ""
    except Unreadable as error:
        faults.warn(
            f"spec.resumePolicy: whether PersistentVolume {name} is there already is not known: {error}"
        )
        return ""
    return name
