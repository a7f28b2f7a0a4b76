"""A pod is created: find its trial, gather what surrounds it, decide. Allowed untouched when it is no trial's."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from pydantic import ValidationError

from trialtap import names
from trialtap.objects import Trial
from webhook import injection, metrics
from webhook.cluster import JSON, Cluster
from webhook.command import Entrypoint
from webhook.events import Events
from webhook.ownership import Memory, Ownership, suspects, trial_of
from webhook.review import Malformed, Reason, Refusal, Request, Verdict
from webhook.settings import Settings
from webhook.surroundings import Surroundings
from webhook.templates import Templates, template_of

Lookup = Callable[[JSON, str, str], Awaitable[Entrypoint]]
"""(pod, namespace, image) -> what the image runs; raises LookupError with the reason."""

_MAX_PARSED = 512


@dataclass(slots=True)
class Pods:
    """The handler of pods with what it remembers from one request to the next."""

    events: Events
    """Tells a Trial why its pod was refused."""
    lookup: Lookup | None = None
    """Asks a registry what an image runs; None: look-ups are off."""
    memory: Memory = field(default_factory=Memory)
    templates: Templates = field(default_factory=Templates)
    _parsed: dict[str, tuple[JSON, Trial]] = field(default_factory=dict)

    async def mutate(self, request: Request, cluster: Cluster, settings: Settings) -> Verdict:
        """Answer one AdmissionReview of a pod.

        Raises:
            Malformed: the object is no Pod.
            NotSynced: the Trials have not been listed yet.
        """
        if request.operation != "CREATE" or request.kind != "Pod" or request.group or request.subresource:
            return Verdict(decision="not a pod's creation")
        pod = request.object
        if not isinstance(pod.get("metadata"), dict) or not isinstance(pod.get("spec"), dict):
            raise Malformed(400, "request.object: a Pod has metadata and spec")
        found = await trial_of(pod, request.namespace, cluster, self.memory)
        if found.unreadable:
            return self._unreadable(request, found, cluster)
        if found.trial is None:
            return Verdict(decision="no trial's pod")
        try:
            verdict = await self._admit(request, found.trial, found, cluster, settings)
        except Refusal as refusal:
            verdict = Verdict(refusal=refusal, decision=refusal.reason)
        if verdict.refusal is not None:
            self._tell(request, found.trial, verdict.refusal)
        return verdict

    async def _admit(
        self, request: Request, raw: JSON, found: Ownership, cluster: Cluster, settings: Settings
    ) -> Verdict:
        trial = self._typed(raw)
        around = self._surroundings(request, trial, found, cluster, settings)
        template = template_of(request.object)
        if (kept := self.templates.recall(template, trial, around)) is not None:
            return kept
        image = injection.image_to_look_up(request.object, trial)
        if image is not None:
            # Never kept: what a tag stands for may change.
            entrypoint, fault = await self._entrypoint(request, image)
            around = replace(around, entrypoint=entrypoint, entrypoint_fault=fault)
            return injection.admit(request.object, trial, around)
        verdict = injection.admit(request.object, trial, around)
        self.templates.keep(template, trial, around, verdict)
        return verdict

    def _tell(self, request: Request, trial: JSON, refusal: Refusal) -> None:
        """Put a refusal on the Trial; not on a dry run, which must leave nothing behind."""
        if not request.dry_run:
            self.events.warn(trial, refusal.reason, refusal.message)

    def _unreadable(self, request: Request, found: Ownership, cluster: Cluster) -> Verdict:
        """The answer where owners cannot be read: never a silent skip.

        Refused where names say that the pod may be a running trial's, which would go unobserved.
        """
        metrics.OWNER_UNREADABLE.inc()
        why = "; ".join(found.unreadable)
        if trials := suspects(request.object, request.namespace, cluster):
            refusal = Refusal(
                Reason.OWNER_UNREADABLE,
                f'pod "{request.label}": may belong to Trial "{trials[0]["metadata"]["name"]}", '
                f"but its owners cannot be read: {why}",
            )
            self._tell(request, trials[0], refusal)
            return Verdict(refusal=refusal, decision=refusal.reason)
        return Verdict(
            warnings=(f"trialtap: cannot tell whether this pod is a trial's, left as it is: {why}",),
            decision=f"owner unreadable: {why}",
        )

    def _typed(self, raw: JSON) -> Trial:
        """The Trial as a model, kept for as long as the cache hands out the same object."""
        uid = raw["metadata"]["uid"]
        held = self._parsed.get(uid)
        if held is not None and held[0] is raw:
            return held[1]
        try:
            trial = Trial.model_validate(raw)
        except ValidationError as error:
            first = error.errors()[0]
            path = ".".join(str(part) for part in first["loc"])
            raise Refusal(
                Reason.TRIAL_UNREADABLE,
                f'Trial "{raw["metadata"]["name"]}": {path}: {first["msg"]}; correct that field of the Trial',
            ) from None
        while len(self._parsed) >= _MAX_PARSED:
            del self._parsed[next(iter(self._parsed))]
        self._parsed[uid] = (raw, trial)
        return trial

    def _surroundings(
        self, request: Request, trial: Trial, found: Ownership, cluster: Cluster, settings: Settings
    ) -> Surroundings:
        namespace = request.namespace
        held = cluster.namespace(namespace)
        experiment = (trial.metadata.labels or {}).get(names.EXPERIMENT_LABEL)
        made = found.made_by_trial
        return Surroundings(
            settings,
            namespace,
            (held["metadata"].get("labels") if held else None) or {},
            made is not None
            and made.kind == "Job"
            and made.group == "batch"
            and made.uid in controllers(request.object),
            tuple(cluster.limit_ranges(namespace)),
            cluster.katib_config(),
            cluster.suggestion(namespace, experiment) if experiment else None,
        )

    async def _entrypoint(self, request: Request, image: str) -> tuple[Entrypoint | None, str]:
        if self.lookup is None:
            return None, "look-ups of entrypoints are turned off"
        try:
            return await self.lookup(request.object, request.namespace, image), ""
        except LookupError as error:
            return None, str(error)


def controllers(pod: JSON) -> list[str]:
    """UIDs of the pod's controllers (one at most, by Kubernetes' validation)."""
    owners = pod["metadata"].get("ownerReferences") or ()
    return [owner["uid"] for owner in owners if owner.get("controller") is True and "uid" in owner]
