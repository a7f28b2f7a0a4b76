"""Verdicts about pods that come from one template: decided once, while nothing around them changes.

The pods of a Job, of a set of workers or of a retry are equal but for their names and for the name of
the token volume that Kubernetes makes up for each (`kube-api-access-x7k2p`), so their patches are equal too.
"""

from dataclasses import dataclass, field, replace
from typing import Final

import orjson

from trialtap.objects import Trial
from webhook.review import JSON, Malformed, Verdict, encode
from webhook.surroundings import Surroundings

MAX_KEPT: Final = 512
_TOKEN_VOLUME: Final = "kube-api-access-"  # noqa: S105 - a volume's name


@dataclass(slots=True)
class Templates:
    """Verdicts of late, by what decided them."""

    _kept: dict[bytes, tuple[Trial, Surroundings, Verdict]] = field(default_factory=dict)

    def recall(self, template: bytes, trial: Trial, surroundings: Surroundings) -> Verdict | None:
        """The verdict about a pod of this template; None when the trial or anything around it is another."""
        kept = self._kept.get(template)
        if kept is None or kept[0] is not trial or kept[1] != surroundings:
            return None
        return kept[2]

    def keep(self, template: bytes, trial: Trial, surroundings: Surroundings, verdict: Verdict) -> None:
        """Keep a verdict, unless it speaks of the one pod: refusals and warnings name it.

        Its patch is kept as the answer carries it, too.
        """
        if verdict.refusal or verdict.warnings or _TOKEN_VOLUME.encode() in orjson.dumps(verdict.patch):
            return
        self._kept.pop(template, None)
        while len(self._kept) >= MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[template] = (trial, surroundings, replace(verdict, encoded=encode(verdict.patch)))


def template_of(pod: JSON) -> bytes:
    """What is alike in all pods of a template: everything that decides what a pod gets but its trial.

    Raises:
        Malformed: the pod is nested too deeply to be written.
    """
    metadata, spec = pod["metadata"], pod["spec"]
    try:
        written = orjson.dumps((metadata.get("labels"), metadata.get("annotations"), spec))
    except TypeError as error:
        raise Malformed(400, f"request.object: cannot be read: {error}") from None
    for volume in spec.get("volumes") or ():
        name = volume.get("name")
        if isinstance(name, str) and name.startswith(_TOKEN_VOLUME):
            return written.replace(orjson.dumps(name), b'"' + _TOKEN_VOLUME.encode() + b'"')
    return written
