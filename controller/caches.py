"""What the controller keeps of the cluster: Trials, their workloads and pods, each fed by one watch."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from trialtap import names
from trialtap.kinds import Kind
from trialtap.kube import API, Follower, Status, Unreachable, path_of

JSON = dict[str, Any]

_POD_METADATA: Final = ("name", "namespace", "uid", "labels", "creationTimestamp", "deletionTimestamp")


class Key(NamedTuple):
    """A Trial."""

    namespace: str
    name: str


Enqueue = Callable[[Key], None]


class Cache:
    """Objects by UID, found by the Trial that they belong to. `put` and `delete` tell of that Trial."""

    def __init__(
        self,
        enqueue: Enqueue,
        key: Callable[[JSON], Key | None],
        slim: Callable[[JSON], JSON] = lambda item: item,
    ) -> None:
        self._enqueue = enqueue
        self._key = key
        self._slim = slim
        self._items: dict[str, tuple[Key, JSON]] = {}
        self._by_key: dict[Key, dict[str, JSON]] = {}

    def of(self, key: Key) -> tuple[JSON, ...]:
        """What belongs to a Trial."""
        return tuple(self._by_key.get(key, {}).values())

    def __iter__(self) -> Iterator[Key]:
        """Every Trial that something belongs to."""
        return iter(list(self._by_key))

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: JSON) -> None:
        """See `trialtap.kube.Sink`."""
        uid, key = item["metadata"]["uid"], self._key(item)
        self._forget(uid)
        if key is None:
            return
        item["metadata"].pop("managedFields", None)
        kept = self._slim(item)
        self._items[uid] = (key, kept)
        self._by_key.setdefault(key, {})[uid] = kept
        self._enqueue(key)

    def delete(self, uid: str) -> None:
        """See `trialtap.kube.Sink`."""
        key = self._forget(uid)
        if key is not None:
            self._enqueue(key)

    def retain(self, uids: set[str]) -> None:
        """See `trialtap.kube.Sink`."""
        for uid in self._items.keys() - uids:
            self.delete(uid)

    def _forget(self, uid: str) -> Key | None:
        held = self._items.pop(uid, None)
        if held is None:
            return None
        of_key = self._by_key[held[0]]
        del of_key[uid]
        if not of_key:
            del self._by_key[held[0]]
        return held[0]


def key_of_trial(trial: JSON) -> Key:
    """A Trial's own key."""
    return Key(trial["metadata"]["namespace"], trial["metadata"]["name"])


def key_of_workload(workload: JSON) -> Key | None:
    """The Trial that owns a workload, by its ownerReferences; None: it is no trial's."""
    metadata = workload["metadata"]
    for reference in metadata.get("ownerReferences") or ():
        if reference.get("kind") == "Trial" and str(reference.get("apiVersion")).startswith(
            f"{names.GROUP}/"
        ):
            return Key(metadata["namespace"], reference["name"])
    return None


def key_of_pod(pod: JSON) -> Key | None:
    """The Trial that a pod's label names; only what failed and why is read from it, so a forged label lies about no result."""
    name = (pod["metadata"].get("labels") or {}).get(names.TRIAL_LABEL)
    return Key(pod["metadata"]["namespace"], name) if name else None


def slim_pod(pod: JSON) -> JSON:
    """The parts of a pod that tell how it fares."""
    return {
        "metadata": {key: pod["metadata"][key] for key in _POD_METADATA if key in pod["metadata"]},
        "spec": {"nodeName": (pod.get("spec") or {}).get("nodeName")},
        "status": pod.get("status") or {},
    }


class Workloads:
    """Watches of every configured kind, added and dropped while it runs."""

    def __init__(self, api: API, enqueue: Enqueue, log: Callable[[str], None]) -> None:
        self._api = api
        self._log = log
        self._enqueue = enqueue
        self._watched: dict[Kind, _Watched] = {}

    def watch(self, kinds: set[Kind]) -> None:
        """Watch these kinds and no others."""
        for kind in self._watched.keys() - kinds:
            self._watched.pop(kind).task.cancel()
            self._log(f"{kind}: no longer watched")
        for kind in kinds - self._watched.keys():
            sink = Cache(self._enqueue, key_of_workload)
            watched = _Watched(kind, sink)
            watched.task = asyncio.create_task(self._run(watched))
            self._watched[kind] = watched

    def kind_of(self, workload: JSON) -> Kind | None:
        """The configured kind that a runSpec is of: the same group and kind, whatever version; None: none is."""
        group = str(workload.get("apiVersion") or "").rpartition("/")[0]
        for kind in self._watched:
            if (kind.group, kind.kind) == (group, workload.get("kind")):
                return kind
        return None

    def fault(self, kind: Kind) -> str:
        """Why nothing of a kind is seen; "" when it is."""
        watched = self._watched[kind]
        if watched.fault:
            return watched.fault
        error = watched.follower.error if watched.follower else ""
        if error:
            return f"{kind} cannot be watched: {error}"
        return (
            "" if watched.follower and watched.follower.synced.is_set() else f"{kind} has not been listed yet"
        )

    def resource(self, kind: Kind) -> str:
        """The plural of a kind, as far as it is known."""
        return self._watched[kind].resource

    def of(self, kind: Kind, key: Key) -> JSON | None:
        """The workload of this kind that a Trial owns."""
        return next(iter(self._watched[kind].sink.of(key)), None)

    def put(self, kind: Kind, workload: JSON) -> None:
        """Take what the API server answered to a write, before the watch tells of it."""
        if kind in self._watched:
            self._watched[kind].sink.put(workload)

    async def synced(self) -> None:
        """Wait until each kind has been listed, or is known not to be there."""
        for watched in list(self._watched.values()):
            await watched.settled.wait()

    async def close(self) -> None:
        """End every watch."""
        self.watch(set())

    async def _run(self, watched: "_Watched") -> None:
        while True:
            try:
                watched.resource = watched.kind.resource or await self._discover(watched.kind)
                break
            except (Status, Unreachable, LookupError) as error:
                watched.fault = f"{watched.kind}: {error}"
                watched.settled.set()
                await asyncio.sleep(5.0)
        watched.fault = ""
        path = path_of(watched.kind.api_version, watched.resource)
        watched.follower = Follower(self._api, path, watched.sink, log=self._log)
        settle = asyncio.create_task(self._settle(watched.follower, watched.settled))
        try:
            await watched.follower.run()
        finally:
            settle.cancel()

    async def _settle(self, follower: Follower, settled: asyncio.Event) -> None:
        """Listed once, or refused once: then the controller need not wait for it."""
        while not follower.synced.is_set() and not follower.error:  # noqa: ASYNC110 - a failure has no event
            await asyncio.sleep(0.1)
        settled.set()

    async def _discover(self, kind: Kind) -> str:
        root = f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.version}"
        try:
            listed = await self._api.request("GET", root)
        except Status as status:
            if status.code != 404:
                raise
            listed = {}
        for resource in listed.get("resources") or ():
            if resource["kind"] == kind.kind and "/" not in resource["name"]:
                return str(resource["name"])
        raise LookupError("this cluster has no such kind: install its CustomResourceDefinition")


class _Watched:
    """One kind and its watch."""

    def __init__(self, kind: Kind, sink: Cache) -> None:
        self.kind = kind
        self.sink = sink
        self.resource = kind.resource
        self.fault = ""
        self.follower: Follower | None = None
        self.settled = asyncio.Event()
        self.task: asyncio.Task[None]


def trials(api: API, enqueue: Enqueue, log: Callable[[str], None]) -> tuple[Cache, Follower]:
    """All Trials, by one list and one watch."""
    cache = Cache(enqueue, key_of_trial)
    return cache, Follower(api, path_of(names.API_VERSION, "trials"), cache, log=log)


def pods(api: API, enqueue: Enqueue, log: Callable[[str], None]) -> tuple[Cache, Follower]:
    """All pods that carry a trial's label."""
    cache = Cache(enqueue, key_of_pod, slim_pod)
    return cache, Follower(api, path_of("v1", "pods"), cache, {"labelSelector": names.TRIAL_LABEL}, log=log)
