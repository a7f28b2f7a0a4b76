"""A pod is created: find its trial, gather what surrounds it, decide. Allowed untouched when it is no trial's."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

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
        surroundings = await self._surroundings(request, trial, found, cluster, settings)
        return injection.admit(request.object, trial, surroundings)

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

    async def _surroundings(
        self, request: Request, trial: Trial, found: Ownership, cluster: Cluster, settings: Settings
    ) -> Surroundings:
        pod, namespace = request.object, request.namespace
        entrypoint, fault = await self._entrypoint(pod, namespace, trial)
        suggestion = None
        if injection.needs_suggestion(trial, pod):
            experiment = (trial.metadata.labels or {}).get(names.EXPERIMENT_LABEL, "")
            suggestion = cluster.suggestion(namespace, experiment)
        labels = ((cluster.namespace(namespace) or {}).get("metadata") or {}).get("labels")
        made = found.made_by_trial
        return Surroundings(
            settings=settings,
            namespace=namespace,
            namespace_labels=labels or {},
            own_job=made is not None
            and (made.group, made.kind) == ("batch", "Job")
            and made.uid in controllers(pod),
            limit_ranges=tuple(cluster.limit_ranges(namespace)),
            katib_config=cluster.katib_config(),
            suggestion=suggestion,
            entrypoint=entrypoint,
            entrypoint_fault=fault,
        )

    async def _entrypoint(self, pod: JSON, namespace: str, trial: Trial) -> tuple[Entrypoint | None, str]:
        image = injection.image_to_look_up(pod, trial)
        if image is None:
            return None, ""
        if self.lookup is None:
            return None, "look-ups of entrypoints are turned off"
        try:
            return await self.lookup(pod, namespace, image), ""
        except LookupError as error:
            return None, str(error)


def controllers(pod: JSON) -> list[str]:
    """UIDs of the pod's controllers (one at most, by Kubernetes' validation)."""
    owners = pod["metadata"].get("ownerReferences") or ()
    return [owner["uid"] for owner in owners if owner.get("controller") is True and "uid" in owner]
