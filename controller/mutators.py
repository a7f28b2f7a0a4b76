"""Hooks for those who must change a workload before it is made: entry points of the group `trialtap.mutators`.

An entry point is a function `(workload, trial) -> workload` of plain objects. They run in the order of
their names. Katib's MutateJob was such a hook, and went.
"""

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, Final

JSON = dict[str, Any]
Mutator = Callable[[JSON, JSON], JSON]

GROUP: Final = "trialtap.mutators"


class MutatorError(Exception):
    """A mutator raised, or gave back no workload; the message names it."""


def load() -> dict[str, Mutator]:
    """Every installed mutator by its name.

    Raises:
        MutatorError: one cannot be imported.
    """
    found: dict[str, Mutator] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            found[entry.name] = entry.load()
        except Exception as error:
            raise MutatorError(f"mutator {entry.name} ({entry.value}): cannot be loaded: {error}") from error
    return found


def apply(mutators: dict[str, Mutator], workload: JSON, trial: JSON) -> JSON:
    """Let every mutator change the workload; what makes it the trial's stays.

    Raises:
        MutatorError: one raised, or gave back something else than an object of the same kind and name.
    """
    own = workload["metadata"]
    for name, mutate in mutators.items():
        try:
            workload = mutate(workload, trial)
        except Exception as error:
            raise MutatorError(f"mutator {name}: {type(error).__name__}: {error}") from error
        metadata = workload.get("metadata") if isinstance(workload, dict) else None
        kept = isinstance(metadata, dict) and all(
            metadata.get(key) == own[key] for key in ("name", "namespace", "ownerReferences")
        )
        if not kept:
            raise MutatorError(
                f"mutator {name}: must give back the workload with its name, namespace and ownerReferences"
            )
    return workload
