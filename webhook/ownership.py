"""Whose pod is it: the walk over ownerReferences from a pod to the Trial it belongs to.

The rules, from how Kubernetes treats owners (garbage collection, API conventions):

- An ownerReference is text that its writer chose. It counts only when the object of that name has that UID.
- The chain counts only when it ends at a Trial whose `runSpec` has the group and kind of the link below it and
  whose name that link bears; the version is free, since operators write owners in versions of their own.
- Labels and annotations never decide.
- An owner that cannot be read is not the same as an owner that is not there.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, cast

from trialtap import names
from webhook.cluster import (
    JSON,
    Cluster,
    NotFound,
    NotSynced,
    Reference,
    Unreadable,
    valid_api_version,
    valid_name,
)

MAX_LEVELS: Final = 10
MAX_GETS: Final = 20
NOT_OURS_SECONDS: Final = 5.0
"""How long 'belongs to no trial' is believed: ownership can be given later (adoption)."""
MAX_KNOWN: Final = 20_000
CORE_OWNERS: Final = frozenset({"ReplicationController", "Pod"})
"""Kinds of the core group that own pods or what makes them; others (Node, ConfigMap) are not followed."""


class Ownership(NamedTuple):
    """What the walk found."""

    trial: JSON | None
    """The Trial; None when the pod belongs to none."""
    chain: tuple[Reference, ...] = ()
    """The links from the pod's owner up to the Trial; empty when found in the cache of owners."""
    made_by_trial: Reference | None = None
    """The object that the Trial made (its runSpec): the link below the Trial."""
    unreadable: tuple[str, ...] = ()
    """Why some owners could not be read; only without a trial."""


class _Known(NamedTuple):
    """What the walk remembers of one owner."""

    trial_uid: str
    """"" when it leads to no trial."""
    until: float
    workload: Reference | None


@dataclass(slots=True)
class Memory:
    """Owners whose trial is known: for as long as the Trial lives, 'none' for 5 s."""

    clock: Callable[[], float] = time.monotonic
    _known: dict[tuple[str, Reference], _Known] = field(default_factory=dict)

    def recall(self, namespace: str, owner: Reference, cluster: Cluster) -> Ownership | None:
        """What is known of this owner; None when nothing is."""
        known = self._known.get((namespace, owner))
        if known is None:
            return None
        if known.trial_uid:
            trial = cluster.trial(known.trial_uid)
            if trial is not None:
                return Ownership(trial, made_by_trial=known.workload)
        elif known.until > self.clock():
            return Ownership(None)
        del self._known[(namespace, owner)]
        return None

    def keep(self, namespace: str, owners: Iterable[Reference], found: Ownership) -> None:
        """Remember what these owners lead to."""
        uid = str(found.trial["metadata"]["uid"]) if found.trial else ""
        known = _Known(uid, self.clock() + NOT_OURS_SECONDS, found.made_by_trial)
        for owner in owners:
            self._known[(namespace, owner)] = known
        while len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]


def owners_of(obj: Mapping[str, Any]) -> list[Reference]:
    """The object's well-formed ownerReferences, the controller first."""
    metadata = obj.get("metadata")
    entries = metadata.get("ownerReferences") if isinstance(metadata, dict) else None
    found: list[Reference] = []
    for entry in entries if isinstance(entries, list) else ():
        if not isinstance(entry, dict):
            continue
        get = entry.get
        fields = (get("apiVersion"), get("kind"), get("name"), get("uid"))
        if all(isinstance(text, str) and text for text in fields):
            owner = Reference(*cast("tuple[str, str, str, str]", fields))
            found.insert(0 if get("controller") is True else len(found), owner)
    return found


async def trial_of(
    pod: Mapping[str, Any], namespace: str, cluster: Cluster, memory: Memory | None = None
) -> Ownership:
    """Find the Trial that a pod belongs to, directly or through any chain of owners.

    Args:
        pod: the Pod as in the admission request; `metadata.ownerReferences` decides.
        namespace: the request's namespace, which is the pod's and that of all its namespaced owners.
        cluster: where Trials and owners are read.
        memory: what earlier walks found; without it every walk reads live.

    Raises:
        NotSynced: the Trials have not been listed yet.
    """
    if not cluster.synced:
        raise NotSynced("Trials have not been listed yet")
    memory = memory or Memory()
    owners = owners_of(pod)
    for owner in owners:
        # The usual case, before anything is set up: an owner that an earlier pod had.
        known = memory.recall(namespace, owner, cluster)
        if known is not None and known.trial is not None:
            return known
    return await _Walk(namespace, cluster, memory).run(pod, owners)


@dataclass(slots=True)
class _Walk:
    """One walk, level by level: every path is as long as its level, so the shortest chain wins."""

    namespace: str
    cluster: Cluster
    memory: Memory
    gets: int = 0
    parents: dict[Reference, Reference | None] = field(default_factory=dict)
    """Each owner met so far, with the link below it (None: the pod). Cuts loops."""
    read: list[Reference] = field(default_factory=list)
    """The owners that were read in this walk; of the others, no news."""
    faults: list[str] = field(default_factory=list)

    async def run(self, pod: Mapping[str, Any], owners: list[Reference]) -> Ownership:
        level = self._meet(owners, None)
        for _ in range(MAX_LEVELS):
            if not level:
                break
            step = await self._step(level, pod)
            if isinstance(step, Ownership):
                self.memory.keep(self.namespace, self._path(step.chain), step)
                return step
            level = step
        else:
            if level:
                self.faults.append(f"{level[0]} stands more than {MAX_LEVELS} owners above the pod")
        if self.faults:
            return Ownership(None, unreadable=tuple(self.faults))
        none = Ownership(None)
        self.memory.keep(self.namespace, self.read, none)
        return none

    def _meet(self, owners: Iterable[Reference], below: Reference | None) -> list[Reference]:
        """Those of the owners that were not met before, marked as met."""
        new = [owner for owner in owners if owner not in self.parents and may_exist(owner)]
        self.parents.update((owner, below) for owner in new)
        return new

    async def _step(self, level: list[Reference], pod: Mapping[str, Any]) -> Ownership | list[Reference]:
        """Read one level: the Trial, or the level above."""
        unknown: list[Reference] = []
        for owner in level:
            known = self.memory.recall(self.namespace, owner, self.cluster)
            if known and known.trial is not None:
                return known._replace(chain=self._chain(owner))
            if known is None or self.parents[owner] is not None:
                # 'None' is believed of the pod's own owners only: further up, its age would add to theirs.
                unknown.append(owner)
        if self.gets + len(unknown) > MAX_GETS:
            self.faults.append(f"the pod has more than {MAX_GETS} owners to read")
            unknown = unknown[: MAX_GETS - self.gets]
        found = await asyncio.gather(*map(self._read, unknown))
        self.read += unknown
        above: list[Reference] = []
        for owner, obj in zip(unknown, found, strict=True):
            if obj is None:
                continue
            if is_trial(owner):
                below = self.parents[owner]
                link = below or Reference("v1", "Pod", str((pod.get("metadata") or {}).get("name") or ""))
                if made_by(obj, link):
                    return Ownership(obj, self._chain(owner), link)
            else:
                above += self._meet(owners_of(obj), owner)
        return above

    async def _read(self, owner: Reference) -> JSON | None:
        """The owner, if it is there under its UID; None when it leads nowhere. What cannot be read is a fault."""
        if is_trial(owner):
            cached = self.cluster.trial(owner.uid)
            if cached is not None:
                return cached if _matches(cached, owner, self.namespace) else None
        try:
            if not await self.cluster.scope(owner.api_version, owner.kind):
                return None  # what lives in no namespace cannot be owned by what lives in one
            self.gets += 1
            obj = await self.cluster.get(owner.api_version, owner.kind, self.namespace, owner.name)
        except NotFound:
            return None
        except Unreadable as fault:
            self.faults.append(str(fault))
            return None
        return obj if _matches(obj, owner, self.namespace) else None

    def _chain(self, top: Reference) -> tuple[Reference, ...]:
        return tuple(reversed(list(self._down(top))))

    def _down(self, top: Reference) -> Iterator[Reference]:
        link: Reference | None = top
        while link is not None:
            yield link
            link = self.parents[link]

    def _path(self, chain: tuple[Reference, ...]) -> tuple[Reference, ...]:
        """The links that may be remembered: not the Trial itself, whose `made_by` depends on the link below."""
        return tuple(link for link in chain if not is_trial(link))


def is_trial(owner: Reference) -> bool:
    """Whether the reference is to a Trial."""
    return owner.kind == "Trial" and owner.group == names.GROUP


def may_exist(owner: Reference) -> bool:
    """Whether such an owner can be there at all: Kubernetes' own rules for groups, versions and path segments.

    The name becomes part of a URL, and any user can write it.
    """
    if not valid_api_version(owner.api_version):
        return False
    if not owner.group and owner.kind not in CORE_OWNERS:
        return False
    return valid_name(owner.name)


def made_by(trial: JSON, link: Reference) -> bool:
    """Whether a Trial makes objects of this link's group and kind, by this name (Katib names them as the Trial)."""
    spec = trial.get("spec")
    run = spec.get("runSpec") if isinstance(spec, dict) else None
    if not isinstance(run, dict):
        return False
    group = str(run.get("apiVersion") or "").rpartition("/")[0]
    return (group, run.get("kind")) == (link.group, link.kind) and trial["metadata"]["name"] == link.name


def _matches(obj: Mapping[str, Any], owner: Reference, namespace: str) -> bool:
    """Whether the object is the one meant: its UID, and its name and namespace for a Trial found by UID."""
    metadata = obj.get("metadata") or {}
    return (metadata.get("uid"), metadata.get("name"), metadata.get("namespace")) == (
        owner.uid,
        owner.name,
        namespace,
    )


def suspects(pod: Mapping[str, Any], namespace: str, cluster: Cluster) -> list[JSON]:
    """Unfinished Trials whose pod this may be, judged by names alone.

    Used only where owners cannot be read: a Trial's name begins the names of what it makes.
    """
    metadata = pod.get("metadata") or {}
    candidates = [metadata.get("name"), metadata.get("generateName"), *(o.name for o in owners_of(pod))]
    return [t for name in candidates if isinstance(name, str) for t in cluster.trials_named(namespace, name)]
