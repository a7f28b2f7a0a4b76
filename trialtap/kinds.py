"""What workload kinds are to a trial: their conditions and primary pods by default, and how a list names them."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple


class KindDefaults(NamedTuple):
    """What a trial of one kind gets where it says nothing (Katib v1beta1)."""

    success: str
    failure: str
    primary_pod_labels: Mapping[str, str] = {}


def _condition(of_type: str) -> str:
    return f'status.conditions.#(type=="{of_type}")#|#(status=="True")#'


_TRAINING: Final = KindDefaults(
    _condition("Succeeded"), _condition("Failed"), {"training.kubeflow.org/job-role": "master"}
)
_KINDS: Final[Mapping[tuple[str, str], KindDefaults]] = {
    ("batch", "Job"): KindDefaults(_condition("Complete"), _condition("Failed")),
    ("kubeflow.org", "TFJob"): _TRAINING,
    ("kubeflow.org", "PyTorchJob"): _TRAINING,
    ("kubeflow.org", "XGBoostJob"): _TRAINING,
    ("kubeflow.org", "MPIJob"): _TRAINING,
    ("trainer.kubeflow.org", "TrainJob"): KindDefaults(
        _condition("Complete"),
        _condition("Failed"),
        {
            "jobset.sigs.k8s.io/replicatedjob-name": "node",
            "batch.kubernetes.io/job-completion-index": "0",
        },
    ),
}
_LAUNCHER: Final = _TRAINING._replace(primary_pod_labels={"training.kubeflow.org/job-role": "launcher"})
"""An MPIJob of kubeflow.org/v2beta1 labels its launcher so; the `master` of Katib's default is in no pod of it."""


def defaults_of(workload: object) -> KindDefaults | None:
    """What a workload's API group and kind get; None for kinds without defaults (a Volcano Job is one)."""
    if not isinstance(workload, dict):
        return None
    api_version, kind = workload.get("apiVersion"), workload.get("kind")
    if not isinstance(api_version, str) or not isinstance(kind, str):
        return None
    if (api_version, kind) == ("kubeflow.org/v2beta1", "MPIJob"):
        return _LAUNCHER
    return _KINDS.get((api_version.rpartition("/")[0], kind))


class Kind(NamedTuple):
    """A kind that trials may be of."""

    group: str
    version: str
    kind: str
    resource: str = ""
    """Its plural; "" where discovery has to say."""

    @property
    def api_version(self) -> str:
        """`batch/v1`; `v1` for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @classmethod
    def parse(cls, entry: Any) -> "Kind":
        """Read `{group, version, kind, resource}`, or Katib's way of writing it, `Job.v1.batch`.

        Raises:
            ValueError: it is neither; the message names what is missing.
        """
        if isinstance(entry, str):
            kind, _, rest = entry.partition(".")
            version, _, group = rest.partition(".")
            entry = {"kind": kind, "version": version, "group": group}
        if not isinstance(entry, dict):
            raise ValueError(f"trialResources: {entry!r} is neither Kind.version.group nor an object")
        for key in ("version", "kind"):
            if not isinstance(entry.get(key), str) or not entry[key]:
                raise ValueError(
                    f"trialResources: {entry!r}: {key} is missing; write Kind.version.group, as Job.v1.batch"
                )
        return cls(
            str(entry.get("group") or ""), entry["version"], entry["kind"], str(entry.get("resource") or "")
        )

    def __str__(self) -> str:
        """`Job (batch/v1)`, as messages have it."""
        return f"{self.kind} ({self.api_version})"
