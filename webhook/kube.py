"""A cluster behind an API server: caches fed by watches, owners by live reads with a deadline."""

import asyncio
import contextvars
import zlib
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar, cast

import orjson

from trialtap import kube, names
from trialtap.kube import API, Follower, Status, Unreachable, path_of
from webhook import metrics
from webhook.cluster import (
    JSON,
    NotFound,
    TrialNames,
    Unreadable,
    finished,
    read_katib_config,
    seconds_left,
    valid_api_version,
    valid_name,
)

T = TypeVar("T")

DISCOVERY_SECONDS: Final = 600.0
"""How long a group's kinds are believed; one that has vanished is noticed at once."""
UNKNOWN_SECONDS: Final = 5.0
"""How long 'no such kind' is believed: a CRD can be installed at any time."""
SILENT_SECONDS: Final = 60.0
"""A watch that fails for longer than this makes the webhook unready."""
MAX_PARSED: Final = 512
"""Trials that stand parsed; the others are kept as compressed JSON."""
COMPRESSED_FROM: Final = 1024  # bytes; below, zlib gains nothing


class Resource(NamedTuple):
    """One kind as discovery has it."""

    api_version: str
    plural: str
    namespaced: bool


class Trials:
    """Every Trial, small: without status and managedFields, compressed, some of them parsed."""

    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}
        self._parsed: dict[str, JSON] = {}
        self._keys: dict[str, tuple[str, str]] = {}
        self.unfinished = TrialNames()

    def get(self, uid: str) -> JSON | None:
        """The Trial of this UID; the same object for as long as it does not change and is in use."""
        if (held := self._parsed.get(uid)) is not None:
            return held
        blob = self._blobs.get(uid)
        if blob is None:
            return None
        trial: JSON = orjson.loads(zlib.decompress(blob) if blob[:1] != b"{" else blob)
        while len(self._parsed) >= MAX_PARSED:
            del self._parsed[next(iter(self._parsed))]
        self._parsed[uid] = trial
        return trial

    def put(self, item: JSON) -> None:
        """See `trialtap.kube.Sink`."""
        metadata = item["metadata"]
        uid, key = metadata["uid"], (metadata["namespace"], metadata["name"])
        if finished(item):
            self.unfinished.discard(*key, uid)
        else:
            self.unfinished.add(*key, uid)
        self._keys[uid] = key
        raw = orjson.dumps(_slim(item, "spec"))
        blob = zlib.compress(raw, 1) if len(raw) >= COMPRESSED_FROM else raw
        if self._blobs.get(uid) != blob:
            self._blobs[uid] = blob
            self._parsed.pop(uid, None)
        metrics.TRIALS.set(len(self._blobs))

    def delete(self, uid: str) -> None:
        """See `trialtap.kube.Sink`."""
        if self._blobs.pop(uid, None) is not None:
            self.unfinished.discard(*self._keys.pop(uid), uid)
            self._parsed.pop(uid, None)
        metrics.TRIALS.set(len(self._blobs))

    def retain(self, uids: set[str]) -> None:
        """See `trialtap.kube.Sink`."""
        for uid in self._blobs.keys() - uids:
            self.delete(uid)


class Objects:
    """Objects by namespace and name, with those top-level fields that anybody reads."""

    def __init__(self, *fields: str) -> None:
        self._fields = fields
        self._keys: dict[str, tuple[str, str]] = {}
        self._held: dict[str, dict[str, JSON]] = {}

    def get(self, namespace: str, name: str) -> JSON | None:
        """One object."""
        return self._held.get(namespace, {}).get(name)

    def all(self, namespace: str) -> Iterable[JSON]:
        """Every object of a namespace."""
        return self._held.get(namespace, {}).values()

    def put(self, item: JSON) -> None:
        """See `trialtap.kube.Sink`."""
        metadata = item["metadata"]
        key = (metadata.get("namespace", ""), metadata["name"])
        self._keys[metadata["uid"]] = key
        self._held.setdefault(key[0], {})[key[1]] = _slim(item, *self._fields)

    def delete(self, uid: str) -> None:
        """See `trialtap.kube.Sink`."""
        if (key := self._keys.pop(uid, None)) is None:
            return
        held = self._held[key[0]]
        if held.get(key[1], {}).get("metadata", {}).get("uid") == uid:
            del held[key[1]]
            if not held:
                del self._held[key[0]]

    def retain(self, uids: set[str]) -> None:
        """See `trialtap.kube.Sink`."""
        for uid in self._keys.keys() - uids:
            self.delete(uid)


_METADATA: Final = ("name", "namespace", "uid", "labels", "annotations", "resourceVersion")


def _slim(item: JSON, *fields: str) -> JSON:
    """The object with those fields only; of the metadata what identifies and labels it."""
    metadata = {key: item["metadata"][key] for key in _METADATA if key in item["metadata"]}
    if annotations := metadata.get("annotations"):
        metadata["annotations"] = {
            key: value
            for key, value in annotations.items()
            if key != "kubectl.kubernetes.io/last-applied-configuration"
        }
    kept = {field: item[field] for field in fields if field in item}
    return {"apiVersion": item.get("apiVersion"), "kind": item.get("kind"), "metadata": metadata, **kept}


class KatibConfig:
    """The one ConfigMap katib-config, parsed when it changes."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self.document: JSON | None = None
        self._uid = ""
        self._log = log

    def put(self, item: JSON) -> None:
        """See `trialtap.kube.Sink`."""
        self._uid = item["metadata"]["uid"]
        self.document = read_katib_config(item)
        if self.document is None:
            self._log(
                f"ConfigMap {item['metadata']['namespace']}/{names.KATIB_CONFIG}: "
                f"{names.KATIB_CONFIG_KEY} is no YAML mapping; it counts as absent"
            )

    def delete(self, uid: str) -> None:
        """See `trialtap.kube.Sink`."""
        if uid == self._uid:
            self.document = None

    def retain(self, uids: set[str]) -> None:
        """See `trialtap.kube.Sink`."""
        if self._uid not in uids:
            self.document = None


class KubeCluster:
    """See `webhook.cluster.Cluster`. `run` must be running for the caches to fill."""

    def __init__(self, api: API, katib_namespace: str, log: Callable[[str], None] = lambda _: None) -> None:
        self._api = api
        self._trials = Trials()
        self._namespaces = Objects()
        self._limit_ranges = Objects("spec")
        self._suggestions = Objects("spec")
        self._katib_config = KatibConfig(log)
        self._followers = {
            "trials.kubeflow.org": Follower(api, path_of(names.API_VERSION, "trials"), self._trials, log=log),
            "namespaces": Follower(api, path_of("v1", "namespaces"), self._namespaces, log=log),
            "limitranges": Follower(api, path_of("v1", "limitranges"), self._limit_ranges, log=log),
            "suggestions.kubeflow.org": Follower(
                api, path_of(names.API_VERSION, "suggestions"), self._suggestions, log=log
            ),
            "configmaps": Follower(
                api,
                path_of("v1", "configmaps", katib_namespace),
                self._katib_config,
                {"fieldSelector": f"metadata.name={names.KATIB_CONFIG}"},
                log=log,
            ),
        }
        self._kinds: dict[str, tuple[float, dict[str, Resource]]] = {}
        self._running: dict[tuple[str, ...], asyncio.Task[Any]] = {}

    async def run(self) -> None:
        """Keep the caches up to date, for ever."""
        await kube.run_all(self._followers.values())

    async def wait_synced(self) -> None:
        """Wait until every cache has been filled once."""
        for follower in self._followers.values():
            await follower.synced.wait()

    @property
    def synced(self) -> bool:
        """See `Cluster`."""
        return all(follower.synced.is_set() for follower in self._followers.values())

    def faults(self) -> list[str]:
        """See `Cluster`; by resource."""
        now = asyncio.get_running_loop().time()
        return [
            f"{resource}: {follower.error or 'not listed yet'}"
            for resource, follower in self._followers.items()
            if not follower.synced.is_set() or now - (follower.failing_since or now) > SILENT_SECONDS
        ]

    def trial(self, uid: str) -> JSON | None:
        """See `Cluster`."""
        return self._trials.get(uid)

    def trials_named(self, namespace: str, name: str) -> Sequence[JSON]:
        """See `Cluster`."""
        found = (self._trials.get(uid) for uid in self._trials.unfinished.beginning(namespace, name))
        return [trial for trial in found if trial is not None]

    def namespace(self, name: str) -> JSON | None:
        """See `Cluster`."""
        return self._namespaces.get("", name)

    def limit_ranges(self, namespace: str) -> Sequence[JSON]:
        """See `Cluster`."""
        return list(self._limit_ranges.all(namespace))

    def katib_config(self) -> JSON | None:
        """See `Cluster`."""
        return self._katib_config.document

    def suggestion(self, namespace: str, name: str) -> JSON | None:
        """See `Cluster`."""
        return self._suggestions.get(namespace, name)

    async def scope(self, api_version: str, kind: str) -> bool:
        """See `Cluster`."""
        return (await self._resource(api_version, kind)).namespaced

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> JSON:
        """See `Cluster`. Equal reads that overlap are one call."""
        return await self._share(
            ("get", api_version, kind, namespace, name), lambda: self._get(api_version, kind, namespace, name)
        )

    async def create(self, api_version: str, kind: str, namespace: str, body: JSON) -> JSON:
        """See `Cluster`."""
        resource = await self._resource(api_version, kind)
        path = path_of(resource.api_version, resource.plural, namespace if resource.namespaced else "")
        return await self._call("create", resource, path, f"{kind} in {namespace!r}", body)

    async def _get(self, api_version: str, kind: str, namespace: str, name: str) -> JSON:
        if not valid_name(name):
            raise NotFound(f"{name!r} can be no object's name")
        for attempt in (1, 2):
            resource = await self._resource(api_version, kind)
            path = path_of(
                resource.api_version, resource.plural, namespace if resource.namespaced else "", name
            )
            try:
                return await self._call("get", resource, path, f'{kind} {api_version} "{name}"')
            except _NoSuchPath:
                # The kind itself is gone, or lives under another plural now.
                self._kinds.pop(api_version, None)
                if attempt == 2:
                    break
        raise NotFound(f"no kind {kind} in {api_version}")

    async def _call(
        self, verb: str, resource: Resource, path: str, what: str, body: JSON | None = None
    ) -> JSON:
        """One call with its deadline, its metric and its refusals in words."""
        while True:
            seconds = seconds_left()
            try:
                if seconds <= 0:
                    raise Unreachable("no time left")
                answer = await self._api.request("POST" if body else "GET", path, body=body, seconds=seconds)
            except Status as status:
                if status.code == 429 and (status.retry_after or 1) < seconds_left():
                    await asyncio.sleep(status.retry_after or 1)
                    continue
                outcome = "not_found" if status.code == 404 else "failed"
                metrics.API_CALLS.labels(verb, outcome).inc()
                raise _explain(status, verb, resource, what) from None
            except Unreachable as fault:
                metrics.API_CALLS.labels(verb, "failed").inc()
                raise Unreadable(f"{verb} {what}: {fault}") from None
            metrics.API_CALLS.labels(verb, "ok").inc()
            return answer

    async def _resource(self, api_version: str, kind: str) -> Resource:
        """The resource of a kind, from discovery alone: a plural is never guessed."""
        if not valid_api_version(api_version):
            raise NotFound(f"no kind {kind} in {api_version}")
        now = asyncio.get_running_loop().time()
        held = self._kinds.get(api_version)
        if held is not None and kind in held[1] and now - held[0] < DISCOVERY_SECONDS:
            return held[1][kind]
        if held is None or now - held[0] >= UNKNOWN_SECONDS:
            kinds = await self._share(("discover", api_version), lambda: self._discover(api_version))
            self._remember(api_version, kinds)
            if kind in kinds:
                return kinds[kind]
        raise NotFound(f"no kind {kind} in {api_version}")

    def _remember(self, api_version: str, kinds: dict[str, Resource]) -> None:
        # What is asked for here is text of users: bounded, the oldest out first.
        self._kinds.pop(api_version, None)
        self._kinds[api_version] = (asyncio.get_running_loop().time(), kinds)
        while len(self._kinds) > 1000:
            del self._kinds[next(iter(self._kinds))]

    async def _discover(self, api_version: str) -> dict[str, Resource]:
        """The kinds of a group; of its preferred version where the one asked for is not served (any more)."""
        try:
            listed = await self._discovery(_root(api_version))
        except NotFound:
            group = api_version.rpartition("/")[0]
            if not group:
                return {}
            try:
                preferred = (await self._discovery(f"/apis/{group}"))["preferredVersion"]["groupVersion"]
                listed = await self._discovery(_root(preferred))
            except (NotFound, KeyError, TypeError):
                return {}
            api_version = preferred
        return {
            r["kind"]: Resource(api_version, r["name"], bool(r.get("namespaced")))
            for r in listed.get("resources") or ()
            if "/" not in r["name"]  # a subresource
        }

    async def _discovery(self, path: str) -> JSON:
        resource = Resource("", path, namespaced=False)
        try:
            return await self._call("discovery", resource, path, path)
        except _NoSuchPath:
            raise NotFound(path) from None

    async def _share(self, key: tuple[str, ...], call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """One call for all who want its answer now. Each waits no longer than its own deadline."""
        task = self._running.get(key)
        if task is None:
            # A context of its own: the first asker's deadline must not be the others'.
            task = asyncio.get_running_loop().create_task(call(), context=contextvars.Context())
            self._running[key] = task
            task.add_done_callback(lambda done: self._shared(key, done))
        seconds = seconds_left()
        try:
            return cast("T", await asyncio.wait_for(asyncio.shield(task), seconds))
        except TimeoutError:
            raise Unreadable(f"{' '.join(key)}: no answer within {seconds:.1f} s") from None

    def _shared(self, key: tuple[str, ...], done: asyncio.Task[Any]) -> None:
        del self._running[key]
        if not done.cancelled():
            done.exception()  # seen, even when every asker has gone


class _NoSuchPath(NotFound):
    """404 that names no object: the path itself is not served."""


def _root(api_version: str) -> str:
    """Where discovery lists the kinds of a group version."""
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


def _explain(status: Status, verb: str, resource: Resource, what: str) -> Exception:
    """A failed call as what it means to whoever asked."""
    if status.code == 404:
        return NotFound(what) if status.details.get("name") else _NoSuchPath(what)
    if status.code == 403 and verb != "discovery":
        group = resource.api_version.rpartition("/")[0]
        rule = f"{resource.plural}.{group}" if group else resource.plural
        return Unreadable(
            f'{what}: the webhook may not {verb} {rule}; add "{rule}" to trialResources in the chart\'s values'
        )
    return Unreadable(f"{verb} {what}: {status}")
