"""Rules of an Experiment's update: what may change, and when a completed one may go on."""

from collections.abc import Mapping
from typing import Any, Final

from trialtap.objects import Experiment
from webhook.experiments.faults import Faults
from webhook.review import JSON

COUNTS: Final = ("maxFailedTrialCount", "maxTrialCount", "parallelTrialCount")
RESUMABLE: Final = ("LongRunning", "FromVolume")
_MAX_TRIALS_REACHED: Final = "ExperimentMaxTrialsReached"


def unchanged(old: JSON, new: JSON) -> bool:
    """Whether an update leaves the spec alone (status, labels, finalizers), or the object is being deleted."""
    return bool((new.get("metadata") or {}).get("deletionTimestamp")) or old.get("spec") == new.get("spec")


def check(old: JSON, new: JSON, model: Experiment, faults: Faults) -> None:
    """Check an update.

    Args:
        old: the stored object, defaulted.
        new: the object that is to be stored, defaulted.
        model: `new`, read.
        faults: what is wrong is added.
    """
    before, after = old.get("spec") or {}, new.get("spec") or {}
    for name in sorted(before.keys() | after.keys()):
        if name not in COUNTS and before.get(name) != after.get(name):
            faults.forbidden(
                f"spec.{name}", f"only {', '.join(COUNTS)} of an experiment may change; make a new one"
            )
    _check_restart(old.get("status") or {}, model, faults)
    _check_budget(old.get("status") or {}, model, faults)


def _check_restart(status: Mapping[str, Any], model: Experiment, faults: Faults) -> None:
    done = [c for c in status.get("conditions") or () if c.get("type") in {"Succeeded", "Failed"}]
    completed = next((condition for condition in done if condition.get("status") == "True"), None)
    if completed is None:
        return
    if (completed["type"], completed.get("reason")) != ("Succeeded", _MAX_TRIALS_REACHED):
        faults.forbidden(
            "spec",
            f"the experiment is complete ({completed['type']}, {completed.get('reason')}); only one that succeeded by "
            "reaching maxTrialCount can go on: make a new one",
        )
    elif model.spec.resume_policy not in RESUMABLE:
        faults.forbidden(
            "spec.resumePolicy",
            f"the experiment is complete and its resumePolicy is {model.spec.resume_policy}; only "
            f"{' or '.join(RESUMABLE)} can go on: make a new one",
        )


def _check_budget(status: Mapping[str, Any], model: Experiment, faults: Faults) -> None:
    made, most = status.get("trials"), model.spec.max_trial_count
    if not isinstance(made, int) or most is None:
        return
    if most <= made:
        faults.invalid(
            "spec.maxTrialCount", most, f"must be greater than status.trials, the {made} trials made so far"
        )
    elif (model.spec.parallel_trial_count or 0) > most - made:
        faults.warn(
            f"spec.parallelTrialCount: {model.spec.parallel_trial_count} trials at once, and only {most - made} are left "
            "of maxTrialCount"
        )
