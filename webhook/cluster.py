"""What the webhook asks of a cluster, and the same answered from a list of objects."""

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, NamedTuple, Protocol

from trialtap import names

JSON = dict[str, Any]

CALL_SECONDS: Final = 5.0
"""The longest that one API call may take where the request sets no nearer deadline."""
FINISHED: Final = frozenset({"Succeeded", "Failed", "Killed", "MetricsUnavailable", "EarlyStopped"})
"""Trial conditions after which a trial starts no more pods."""

CLUSTER_SCOPED: Final = frozenset({"Namespace", "Node", "PersistentVolume", "CustomResourceDefinition"})
"""Kinds that an `ObjectsCluster` puts into no namespace; of all others one without gets the default."""

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_DEADLINE: ContextVar[float | None] = ContextVar("deadline", default=None)


class Reference(NamedTuple):
    """Names one object as an ownerReference does; the UID is "" where any object of that name will do."""

    api_version: str
    kind: str
    name: str
    uid: str = ""

    @property
    def group(self) -> str:
        """API group; "" for the core group."""
        return group_of(self.api_version)

    def __str__(self) -> str:
        """`Job batch/v1 "name"`, as messages quote it."""
        return f'{self.kind} {self.api_version} "{self.name}"'


class NotFound(Exception):  # noqa: N818 - an answer of the API server, not an error of ours
    """The object, or its kind, does not exist."""


class Unreadable(Exception):  # noqa: N818 - an answer of the API server, not an error of ours
    """The API server did not say whether the object exists: 403, 5xx, no answer in time. The message says which."""


class NotSynced(Exception):  # noqa: N818 - a state, not an error of ours
    """A cache has never been filled yet, so nothing can be decided; the API server is to apply its failurePolicy."""


class Cluster(Protocol):
    """What is read of a cluster. Plain methods answer from caches; `async` ones may call the API server.

    Objects are the API server's JSON and are shared: whoever gets one must not change it.
    """

    @property
    def synced(self) -> bool:
        """Whether every cache has been filled once."""

    def faults(self) -> list[str]:
        """What keeps the caches from being filled or up to date; empty: nothing."""

    def trial(self, uid: str) -> JSON | None:
        """The Trial of this UID, from the cache."""

    def trials_named(self, namespace: str, name: str) -> Sequence[JSON]:
        """The namespace's unfinished Trials whose names begin `name`, longest first."""

    def namespace(self, name: str) -> JSON | None:
        """The Namespace, from the cache."""

    def limit_ranges(self, namespace: str) -> Sequence[JSON]:
        """The namespace's LimitRanges, from the cache."""

    def katib_config(self) -> JSON | None:
        """The parsed `katib-config.yaml` of ConfigMap katib-config, from the cache; None where there is none.

        A document that cannot be read counts as none and is logged when it is seen.
        """

    def suggestion(self, namespace: str, name: str) -> JSON | None:
        """The Suggestion of the experiment of this name, from the cache."""

    async def scope(self, api_version: str, kind: str) -> bool:
        """Whether objects of this kind live in namespaces.

        Raises:
            NotFound: no such kind.
            Unreadable: discovery failed.
        """

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> JSON:
        """One object, read live.

        Raises:
            NotFound: no such kind or no such object.
            Unreadable: the API server did not say, or not in time.
        """

    async def create(self, api_version: str, kind: str, namespace: str, body: JSON) -> JSON:
        """Create one object (an Event, a SubjectAccessReview) and return it as stored.

        Raises:
            NotFound: no such kind or no such namespace.
            Unreadable: it was not created, or nobody said so in time.
        """


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Bound every API call made inside, together, to this many seconds from now."""
    token = _DEADLINE.set(asyncio.get_running_loop().time() + seconds)
    try:
        yield
    finally:
        _DEADLINE.reset(token)


def seconds_left(most: float = CALL_SECONDS) -> float:
    """How long an API call may still take: at most `most`, at least 0."""
    until = _DEADLINE.get()
    return most if until is None else max(0.0, min(most, until - asyncio.get_running_loop().time()))


def group_of(api_version: str) -> str:
    """`batch/v1` -> `batch`, `v1` -> ``."""
    return api_version.rpartition("/")[0]


def valid_api_version(text: str) -> bool:
    """Whether this can be an apiVersion: a DNS label, or a DNS subdomain, `/` and a DNS label (RFC 1123)."""
    group, slash, version = text.rpartition("/")
    return bool(_LABEL.fullmatch(version)) and (not slash or bool(_SUBDOMAIN.fullmatch(group)))


def valid_name(text: str) -> bool:
    """Whether an object can have this name: Kubernetes' rule for what becomes a segment of a URL's path."""
    return text not in {"", ".", ".."} and not any(c in "/%" or not c.isprintable() for c in text)


def finished(trial: Mapping[str, Any]) -> bool:
    """Whether a Trial has ended: the last of its conditions that are True is a final one."""
    conditions = (trial.get("status") or {}).get("conditions") or ()
    return any(
        isinstance(c, dict) and c.get("type") in FINISHED and c.get("status") == "True" for c in conditions
    )


class TrialNames:
    """The UIDs of unfinished Trials by namespace and name, to ask which of them begin a given name."""

    def __init__(self) -> None:
        self._uids: dict[tuple[str, str], str] = {}

    def add(self, namespace: str, name: str, uid: str) -> None:
        """Count this Trial as unfinished."""
        self._uids[(namespace, name)] = uid

    def discard(self, namespace: str, name: str, uid: str) -> None:
        """Count this Trial no more."""
        if self._uids.get((namespace, name)) == uid:
            del self._uids[(namespace, name)]

    def beginning(self, namespace: str, name: str) -> list[str]:
        """UIDs of those in the namespace whose names begin `name`, the longest name first."""
        found = (self._uids.get((namespace, name[:length])) for length in range(len(name), 0, -1))
        return [uid for uid in found if uid is not None]


class ObjectsCluster:
    """A cluster that is a list of objects: for the command line, `--objects` and the tests."""

    synced = True

    def __init__(self, objects: Iterable[JSON], namespace: str = "default") -> None:
        self._default_namespace = namespace
        self._objects: dict[tuple[str, str, str, str], JSON] = {}
        self._scopes: dict[tuple[str, str], bool] = {}
        self._trials: dict[str, JSON] = {}
        self.created: list[JSON] = []
        """What `create` was given."""
        for item in flatten(objects):
            self.add(item)

    def add(self, item: JSON) -> None:
        """Put one object into the cluster, or in the place of the one that had its name."""
        metadata = item.get("metadata") or {}
        group, kind = group_of(str(item.get("apiVersion"))), str(item.get("kind"))
        if not metadata.get("namespace") and kind not in CLUSTER_SCOPED:
            metadata = metadata | {"namespace": self._default_namespace}
            item = item | {"metadata": metadata}
        namespace, name = str(metadata.get("namespace") or ""), str(metadata.get("name") or "")
        self._objects[(group, kind, namespace, name)] = item
        self._scopes[(group, kind)] = bool(namespace)
        if (group, kind) == (names.GROUP, "Trial"):
            self._trials[str(metadata.get("uid") or "")] = item

    def faults(self) -> list[str]:
        """See `Cluster`."""
        return []

    def trial(self, uid: str) -> JSON | None:
        """See `Cluster`."""
        return self._trials.get(uid)

    def trials_named(self, namespace: str, name: str) -> Sequence[JSON]:
        """See `Cluster`."""
        held = TrialNames()
        for uid, trial in self._trials.items():
            if not finished(trial):
                held.add(trial["metadata"]["namespace"], trial["metadata"].get("name", ""), uid)
        return [self._trials[uid] for uid in held.beginning(namespace, name)]

    def namespace(self, name: str) -> JSON | None:
        """See `Cluster`."""
        return self._objects.get(("", "Namespace", "", name))

    def limit_ranges(self, namespace: str) -> Sequence[JSON]:
        """See `Cluster`."""
        return [o for (g, k, n, _), o in self._objects.items() if (g, k, n) == ("", "LimitRange", namespace)]

    def katib_config(self) -> JSON | None:
        """See `Cluster`."""
        for (group, kind, _, name), item in self._objects.items():
            if (group, kind, name) == ("", "ConfigMap", names.KATIB_CONFIG):
                return read_katib_config(item)
        return None

    def suggestion(self, namespace: str, name: str) -> JSON | None:
        """See `Cluster`."""
        return self._objects.get((names.GROUP, "Suggestion", namespace, name))

    async def scope(self, api_version: str, kind: str) -> bool:
        """See `Cluster`."""
        try:
            return self._scopes[(group_of(api_version), kind)]
        except KeyError:
            raise NotFound(f"no kind {kind} in {api_version}") from None

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> JSON:
        """See `Cluster`."""
        group = group_of(api_version)
        held = self._objects.get((group, kind, namespace, name)) or self._objects.get((group, kind, "", name))
        if held is None:
            raise NotFound(f'no {kind} "{name}" in namespace "{namespace}"')
        return held

    async def create(self, api_version: str, kind: str, namespace: str, body: JSON) -> JSON:  # noqa: ARG002
        """See `Cluster`; kept in `created`."""
        self.created.append(body | {"apiVersion": api_version, "kind": kind})
        return body


def flatten(objects: Iterable[JSON]) -> Iterator[JSON]:
    """Objects one by one, those inside a `List` (or `JobList`, …) too."""
    for item in objects:
        if str(item.get("kind", "")).endswith("List") and isinstance(item.get("items"), list):
            yield from flatten(item["items"])
        else:
            yield item


def read_katib_config(config_map: JSON) -> JSON | None:
    """The KatibConfig inside ConfigMap katib-config; None when it is not there or is no mapping."""
    import yaml  # noqa: PLC0415 - the command line's other paths do without

    try:
        document = yaml.safe_load((config_map.get("data") or {}).get(names.KATIB_CONFIG_KEY) or "")
    except yaml.YAMLError:
        return None
    return document if isinstance(document, dict) else None
