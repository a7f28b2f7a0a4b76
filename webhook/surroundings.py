"""What an injection is planned from: the pod, its trial, and what was read around them."""

from dataclasses import dataclass, field
from typing import Final

from trialtap.objects import Trial
from webhook.command import Entrypoint
from webhook.review import JSON
from webhook.settings import Settings

DEFAULT_GRACE: Final = 30
"""terminationGracePeriodSeconds where a pod sets none (Kubernetes API)."""


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
    """Why the look-up was not made or failed; it stands in the refusal."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One primary pod with all that decides about it."""

    pod: JSON
    container: JSON
    """Its primary container, the training."""
    trial: Trial
    surroundings: Surroundings

    @property
    def settings(self) -> Settings:
        """The administrator's."""
        return self.surroundings.settings

    @property
    def whose(self) -> str:
        """The trial as messages name it."""
        return f'Trial "{self.trial.metadata.name}"'

    @property
    def grace(self) -> int:
        """The pod's seconds from SIGTERM to SIGKILL, lengthened by the settings."""
        given = self.pod["spec"].get("terminationGracePeriodSeconds")
        return max(DEFAULT_GRACE if given is None else given, self.settings.sidecar.flush_grace_seconds)
