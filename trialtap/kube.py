"""The Kubernetes API in JSON: one request, a paged list, and a list that is kept up to date by a watch.

Connection, credentials and their renewal are kubernetes.aio's; objects stay plain JSON, since typed
models drop the fields that are newer than they are.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import quote, urlencode

import aiohttp
import orjson
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

from trialtap import __version__

JSON = dict[str, Any]

PAGE: Final = 500
"""Objects per page of a list, so that a large list never stands in memory whole."""
WATCH_SECONDS: Final = (120.0, 180.0)
"""A watch is ended by the server after this long and taken up where it was; a dead connection is noticed then."""
REQUEST_SECONDS: Final = 30.0
MAX_BACKOFF_SECONDS: Final = 10.0
ABSENT_SECONDS: Final = 5.0
"""How often a list is tried whose kind does not exist."""


class Status(Exception):  # noqa: N818 - an answer
    """The API server's answer when it is not a success (metav1.Status)."""

    def __init__(self, code: int, reason: str, message: str, details: JSON | None = None) -> None:
        super().__init__(f"{code} {reason}: {message}" if message else f"{code} {reason}")
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}
        self.retry_after: float | None = None


class Unreachable(Exception):  # noqa: N818 - a state of the network
    """No answer: refused, broken off, or not in time."""


class WatchEvent(NamedTuple):
    """One line of a watch."""

    type: str
    """ADDED, MODIFIED, DELETED, BOOKMARK"""
    object: JSON


class API:
    """A connection to one API server."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self.date = ""
        """The `Date` of the last answer: the server's clock, by which it judges certificates."""
        client.user_agent = f"trialtap/{__version__}"

    @classmethod
    async def connect(cls, kubeconfig: Path | None = None) -> "API":
        """The cluster of a kubeconfig, else the one that this pod runs in.

        Raises:
            ValueError: there is no usable configuration.
        """
        configuration = Configuration()
        try:
            if kubeconfig is None:
                load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            else:
                await load_kube_config(str(kubeconfig), client_configuration=configuration)  # type: ignore[no-untyped-call]
        except ConfigException as error:
            where = kubeconfig or "service account of this pod"
            raise ValueError(f"{where}: {error}; give --kubeconfig FILE outside a cluster") from None
        return cls(ApiClient(configuration))

    @property
    def client(self) -> ApiClient:
        """The connection itself, for what `kubernetes.aio` brings along, such as its Lease election."""
        return self._client

    async def close(self) -> None:
        """Drop every connection."""
        await self._client.close()  # type: ignore[no-untyped-call]

    async def request(  # noqa: PLR0913 - the parts of a request
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        seconds: float = REQUEST_SECONDS,
    ) -> JSON:
        """One request, as JSON.

        Args:
            method: GET, POST, PUT, PATCH or DELETE.
            path: from `path_of`, or any path whose segments are encoded.
            query: parameters.
            body: sent as JSON.
            content_type: of the body; a PATCH says here which kind of patch it is.
            seconds: the whole request's deadline.

        Raises:
            Status: any answer but a success.
            Unreachable: no answer in time.
        """
        try:
            async with asyncio.timeout(seconds):
                response = await self._open(
                    method, path, query=query, seconds=seconds, body=body, content_type=content_type
                )
                raw = await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _unreachable(error, seconds) from None
        self.date = response.headers.get("Date", "")
        _raise_for_status(response, raw)
        return _document(raw)

    async def text(
        self, path: str, query: Mapping[str, str] | None = None, seconds: float = REQUEST_SECONDS
    ) -> str:
        """What is no JSON, such as a container's log.

        Raises:
            Status: any answer but a success.
            Unreachable: no answer in time.
        """
        try:
            async with asyncio.timeout(seconds):
                response = await self._open("GET", path, query=query, seconds=seconds)
                raw = await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _unreachable(error, seconds) from None
        _raise_for_status(response, raw)
        return raw.decode(errors="replace")

    async def pages(self, path: str, query: Mapping[str, str] | None = None) -> AsyncIterator[JSON]:
        """A list, page by page, as it was at one moment.

        Raises:
            Status: any answer but a success; 410 when the list changed too much between pages.
            Unreachable: no answer in time.
        """
        token = ""
        while True:
            more = {"continue": token} if token else {}
            page = await self.request("GET", path, query={**(query or {}), "limit": str(PAGE), **more})
            yield page
            token = (page.get("metadata") or {}).get("continue") or ""
            if not token:
                return

    async def watch(
        self, path: str, resource_version: str, query: Mapping[str, str] | None = None
    ) -> AsyncIterator[WatchEvent]:
        """What changed after a resource version; ends when the server ends it.

        Raises:
            Status: any answer but a success; 410 when the version is too old.
            Unreachable: the connection broke.
        """
        seconds = random.uniform(*WATCH_SECONDS)  # noqa: S311 - spreads reconnections
        parameters = {
            **(query or {}),
            "watch": "true",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(int(seconds)),
        }
        try:
            response = await self._open("GET", path, query=parameters, seconds=seconds + 10)
            try:
                if response.status >= 300:
                    _raise_for_status(response, await response.read())
                while line := await response.content.readline():
                    event = _document(line)
                    if event.get("type") == "ERROR":
                        raise _status(event.get("object") or {})
                    yield WatchEvent(str(event.get("type")), event.get("object") or {})
            finally:
                response.close()
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise _unreachable(error, seconds) from None

    async def _open(  # noqa: PLR0913 - the parts of a request
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None,
        seconds: float,
        body: Any = None,
        content_type: str = "application/json",
    ) -> aiohttp.ClientResponse:
        headers = {
            "Accept": "application/json",
            "Content-Type": content_type,
            "User-Agent": self._client.user_agent,
        }
        await self._client.update_params_for_auth(headers, [], ["BearerToken"], path, method, None)
        url = self._client.configuration.host + path + (f"?{urlencode(query)}" if query else "")
        answer = await self._client.rest_client.request(  # type: ignore[no-untyped-call]
            method, url, headers=headers, body=body, _request_timeout=aiohttp.ClientTimeout(total=seconds)
        )
        response: aiohttp.ClientResponse = answer.response
        return response


def path_of(api_version: str, plural: str, namespace: str = "", name: str = "", subresource: str = "") -> str:
    """The path of a collection or an object, every segment percent-encoded."""
    prefix = (
        f"/apis/{_segments(api_version)}" if "/" in api_version else f"/api/{quote(api_version, safe='')}"
    )
    parts = (["namespaces", namespace] if namespace else []) + [plural]
    parts += [part for part in (name, subresource) if part]
    return prefix + "".join(f"/{quote(part, safe='')}" for part in parts)


def _segments(text: str) -> str:
    return "/".join(quote(part, safe="") for part in text.split("/"))


def _document(raw: bytes) -> JSON:
    try:
        document = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise Unreachable(f"the answer is no JSON: {error}") from None
    if not isinstance(document, dict):
        raise Unreachable("the answer is no JSON object")
    return document


def _status(document: JSON) -> Status:
    return Status(
        int(document.get("code") or 500),
        str(document.get("reason") or "Unknown"),
        str(document.get("message") or ""),
        document.get("details"),
    )


def _raise_for_status(response: aiohttp.ClientResponse, raw: bytes) -> None:
    if response.status < 300:
        return
    try:
        status = _status({"code": response.status, **_document(raw)})
    except Unreachable:
        status = Status(response.status, response.reason or "Unknown", raw[:200].decode(errors="replace"))
    after = response.headers.get("Retry-After", "")
    status.retry_after = float(after) if after.isdigit() else None
    raise status


def _unreachable(error: Exception, seconds: float) -> Unreachable:
    if isinstance(error, TimeoutError):
        return Unreachable(f"no answer within {seconds:.1f} s")
    return Unreachable(str(error) or type(error).__name__)


class Sink(Protocol):
    """What is kept up to date. Objects are known by their UIDs."""

    def put(self, item: JSON) -> None:
        """This object is there, in this state."""

    def delete(self, uid: str) -> None:
        """This object is there no more."""

    def retain(self, uids: set[str]) -> None:
        """Only these objects are there."""


class Follower:
    """Keeps a sink equal to a list: one list, then one watch, whatever breaks in between."""

    def __init__(
        self,
        api: API,
        path: str,
        sink: Sink,
        query: Mapping[str, str] | None = None,
        log: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._api = api
        self._path = path
        self._sink = sink
        self._query = query
        self._log = log
        self.synced = asyncio.Event()
        """Set once the sink has held the whole list (or the kind was seen not to exist)."""
        self.error = ""
        """Why the last attempt failed; "" while the watch stands."""
        self.failing_since: float | None = None
        """Time of the loop's clock since which no attempt succeeded."""

    async def run(self) -> None:
        """Follow, for ever."""
        version, delay = "", 0.0
        while True:
            try:
                if not version:
                    version = await self._list()
                    self._well()
                async for event in self._api.watch(self._path, version, self._query):
                    self._well()
                    delay = 0.0
                    version = self._take(event) or version
                self._well()
            except Status as status:
                version = ""
                if status.code == 410:  # history is gone: list anew
                    await asyncio.sleep(0.1)
                    continue
                if status.code == 404:
                    self._sink.retain(set())
                    self.synced.set()
                    await asyncio.sleep(ABSENT_SECONDS)
                    continue
                delay = self._failed(str(status), delay)
                await asyncio.sleep(delay)
            except Unreachable as fault:
                delay = self._failed(str(fault), delay)
                await asyncio.sleep(delay)
            except Exception as error:
                version = ""
                delay = self._failed(f"{type(error).__name__}: {error}", delay)
                await asyncio.sleep(delay)

    async def _list(self) -> str:
        seen: set[str] = set()
        version = ""
        async for page in self._api.pages(self._path, self._query):
            kind = str(page.get("kind") or "").removesuffix("List")
            for item in page.get("items") or ():
                seen.add(item["metadata"]["uid"])
                self._sink.put({"apiVersion": page.get("apiVersion"), "kind": kind, **item})
            version = page["metadata"]["resourceVersion"]
        self._sink.retain(seen)
        self.synced.set()
        return version

    def _take(self, event: WatchEvent) -> str:
        """Pass one event on; returns its resource version."""
        metadata = event.object.get("metadata") or {}
        if event.type in {"ADDED", "MODIFIED"}:
            self._sink.put(event.object)
        elif event.type == "DELETED":
            self._sink.delete(str(metadata.get("uid")))
        return str(metadata.get("resourceVersion") or "")

    def _well(self) -> None:
        if self.error:
            self._log(f"{self._path}: read again")
        self.error, self.failing_since = "", None

    def _failed(self, why: str, delay: float) -> float:
        """Note a failure; returns the seconds to wait, twice the last, jittered."""
        if self.error != why:
            self._log(f"{self._path}: {why}; trying again")
        self.error = why
        if self.failing_since is None:
            self.failing_since = asyncio.get_running_loop().time()
        return min(MAX_BACKOFF_SECONDS, max(0.1, delay * 2)) * random.uniform(0.8, 1.2)  # noqa: S311


async def run_all(followers: Iterable[Follower]) -> None:
    """Run followers together until cancelled; one that breaks ends all and is raised."""
    async with asyncio.TaskGroup() as group:
        for follower in followers:
            group.create_task(follower.run())


async def stop(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait until it has ended."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
