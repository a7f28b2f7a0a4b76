"""A trial's pod in, the same pod with its collector out: pure, idempotent, and without copying what stays."""

from dataclasses import dataclass, field
from typing import Any

from trialtap.objects import Trial
from webhook.review import JSON, Verdict
from webhook.settings import Settings


@dataclass(frozen=True, slots=True)
class Entrypoint:
    """What an image runs when its container says nothing, as its configuration has it."""

    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Everything outside pod and trial that decides what the pod gets; whoever calls has read it."""

    settings: Settings = field(default_factory=Settings)
    namespace: str = "default"
    """Namespace of the request; the pod itself may lack it."""
    namespace_labels: dict[str, str] = field(default_factory=dict)
    """Labels of that namespace (Istio's opt-in stands there)."""
    own_job: bool = False
    """The pod's controller is the batch/v1 Job that the Trial itself made."""
    limit_ranges: tuple[JSON, ...] = ()
    """The namespace's LimitRange objects."""
    katib_config: JSON | None = None
    """The parsed `katib-config.yaml`, where there is one."""
    suggestion: JSON | None = None
    """The Suggestion of the trial's experiment, where there is one."""
    entrypoint: Entrypoint | None = None
    """What `image_to_look_up` names, looked up; None: not needed, or not had."""
    entrypoint_fault: str = ""
    """Why the look-up was not made or failed; it ends the refusal's first sentence."""


@dataclass(frozen=True, slots=True)
class Injection:
    """What one pod gets, decided; `inject` puts it in. Everything in it is ready to be placed."""

    decision: str
    """`injected`, or why the pod gets no sidecar: text of the annotation `trialtap/decision`."""
    labels: dict[str, str] = field(default_factory=dict)
    """Labels that the pod has afterwards."""
    container: int | None = None
    """Index of the primary container in `spec.containers`; None: the pod has none."""
    sidecar: JSON | None = None
    """The collector's container; None: none is added."""
    native: bool = True
    """The sidecar is an init container with restartPolicy Always, else an ordinary container."""
    volumes: tuple[JSON, ...] = ()
    """Volumes that are added to the pod."""
    mounts: tuple[JSON, ...] = ()
    """Mounts that are added to the primary container."""
    env: tuple[JSON, ...] = ()
    """Environment that the primary container gets where it has no variable of that name."""
    command: tuple[str, ...] | None = None
    """The primary container's command afterwards; None: untouched."""
    args: tuple[str, ...] | None = None
    """The primary container's args afterwards; None: untouched."""
    pull_secret: str = ""
    """Name added to imagePullSecrets; empty: none."""
    share_processes: bool = False
    """The pod gets a shared process namespace (Custom collectors of Katib's lifecycle)."""
    grace: int | None = None
    """terminationGracePeriodSeconds afterwards; None: untouched."""
    warnings: tuple[str, ...] = ()
    """Shown by kubectl to whoever made the pod."""


def image_to_look_up(pod: JSON, trial: Trial) -> str | None:
    """Image whose entrypoint `plan` needs in `Surroundings.entrypoint`; None: it needs none."""
    raise NotImplementedError


def needs_suggestion(trial: Trial, pod: JSON) -> bool:
    """Whether `plan` would use `Surroundings.suggestion` (the pod has the primary container)."""
    raise NotImplementedError


def plan(pod: JSON, trial: Trial, surroundings: Surroundings) -> Injection:
    """Decide what a pod of a trial gets.

    Raises:
        webhook.review.Refusal: the pod must not be created as it is; the message says what to change.
    """
    raise NotImplementedError


def inject(pod: JSON, injection: Injection) -> JSON:
    """Put an injection into a pod: a new pod that shares every unchanged part with the old one."""
    raise NotImplementedError


def admit(pod: JSON, trial: Trial, surroundings: Surroundings) -> Verdict:
    """`plan`, `inject` and the JSON Patch between the two pods, as one verdict (refusals stand in it)."""
    raise NotImplementedError
