"""What a trial takes from its experiment's Suggestion: PBT's volume, and the EarlyStopping service."""

from typing import Any

from trialtap import names
from webhook import volumes
from webhook.build import Injection
from webhook.review import JSON
from webhook.surroundings import Subject


def early_stopping_address(subject: Subject) -> tuple[str, tuple[str, ...]]:
    """HOST:PORT of the EarlyStopping service ("" without rules), and warnings.

    The settings name ours; without, it is the one beside the suggestion, as Katib's webhook has it.
    """
    trial, settings = subject.trial, subject.settings
    if not trial.spec.early_stopping_rules:
        return "", ()
    if settings.early_stopping_address:
        return settings.early_stopping_address, ()
    if service := _service(subject.surroundings.suggestion):
        return f"{service}.{subject.surroundings.namespace}:{names.EARLY_STOPPING_PORT}", ()
    return "", (
        f"trial {trial.metadata.name!r} has early-stopping rules, and no EarlyStopping service is known: its"
        " experiment has no Suggestion, and the webhook's earlyStoppingAddress is not set",
    )


def with_volume(subject: Subject, base: Injection) -> Injection:
    """PBT's checkpoints: the suggestion's claim at `suggestion_trial_dir`, each trial in a folder of its own."""
    service = _service(subject.surroundings.suggestion)
    directory = _settings(subject.surroundings.suggestion).get("suggestion_trial_dir")
    if not directory or not service:
        return base
    claim = {"persistentVolumeClaim": {"claimName": service}}
    present = (subject.pod["spec"].get("volumes")) or ()
    ours = next((v["name"] for v in present if _claim(v) == service), None)
    name = ours or volumes.free_name(names.SUGGESTION_VOLUME, subject.pod)
    experiment = (subject.trial.metadata.labels or {}).get(names.EXPERIMENT_LABEL, "")
    mount = {
        "name": name,
        "mountPath": directory,
        "subPath": f"{experiment}/{subject.trial.metadata.name}",
    }
    return base._replace(volumes=(*base.volumes, {"name": name, **claim}), mounts=(*base.mounts, mount))


def _claim(volume: JSON) -> str | None:
    return (volume.get("persistentVolumeClaim") or {}).get("claimName")


def _service(suggestion: JSON | None) -> str:
    """`<suggestion>-<algorithm>`, the name of a suggestion's Service and of its claim; "" where unknown."""
    name = _mapping(suggestion, "metadata").get("name")
    algorithm = _mapping(suggestion, "spec", "algorithm").get("algorithmName")
    return f"{name}-{algorithm}" if name and algorithm else ""


def _settings(suggestion: JSON | None) -> dict[str, str]:
    """The algorithm's settings by name; what is no setting is passed over."""
    given = _mapping(suggestion, "spec", "algorithm").get("algorithmSettings")
    return {
        item["name"]: item["value"]
        for item in (given if isinstance(given, list) else ())
        if isinstance(item, dict) and isinstance(item.get("name"), str) and isinstance(item.get("value"), str)
    }


def _mapping(document: JSON | None, *keys: str) -> JSON:
    """The mapping that the keys lead to; an empty one where they do not: the CRD keeps whatever is written."""
    found: Any = document
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}
