"""What `katib-config` says about a collector: read leniently, since it is another program's file."""

from dataclasses import dataclass
from typing import Any

from webhook.review import JSON


@dataclass(frozen=True, slots=True)
class CollectorConfig:
    """One entry of `runtime.metricsCollectors`; None where it says nothing."""

    image: str | None = None
    pull_policy: str | None = None
    resources: JSON | None = None
    wait_all: bool | None = None


def collector(config: JSON | None, kind: str) -> CollectorConfig:
    """The entry for a collector kind; an empty one when there is none."""
    runtime = (config or {}).get("runtime")
    entries = runtime.get("metricsCollectors") if isinstance(runtime, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and entry.get("kind") == kind:
            return CollectorConfig(
                image=_typed(entry.get("image"), str),
                pull_policy=_typed(entry.get("imagePullPolicy"), str),
                resources=_typed(entry.get("resources"), dict),
                wait_all=_typed(entry.get("waitAllProcesses"), bool),
            )
    return CollectorConfig()


def _typed(value: Any, kind: type) -> Any:
    return value if isinstance(value, kind) and value != "" else None
