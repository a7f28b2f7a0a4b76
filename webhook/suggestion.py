"""What a trial takes from its experiment's Suggestion: PBT's volume, and the EarlyStopping service."""

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
    given = _algorithm(subject.surroundings.suggestion).get("algorithmSettings") or ()
    directory = next((item.get("value") for item in given if item.get("name") == "suggestion_trial_dir"), "")
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
    name = ((suggestion or {}).get("metadata") or {}).get("name")
    algorithm = _algorithm(suggestion).get("algorithmName")
    return f"{name}-{algorithm}" if name and algorithm else ""


def _algorithm(suggestion: JSON | None) -> JSON:
    spec: JSON = (suggestion or {}).get("spec") or {}
    return spec.get("algorithm") or {}
