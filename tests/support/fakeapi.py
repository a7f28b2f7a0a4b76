"""An API server that is a dictionary: lists in pages, watches, discovery, and every fault on demand."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import orjson
import yaml
from aiohttp import web

JSON = dict[str, Any]
KINDS = {
    "/api/v1": [
        ("Namespace", "namespaces", False),
        ("LimitRange", "limitranges", True),
        ("ConfigMap", "configmaps", True),
        ("Event", "events", True),
    ],
    "/apis/kubeflow.org/v1beta1": [("Trial", "trials", True), ("Suggestion", "suggestions", True)],
    "/apis/batch/v1": [("Job", "jobs", True), ("Job", "jobs/status", True)],
}


class FakeAPI:
    """Serves `objects` by path. `fault` may answer a request in the place of the truth."""

    def __init__(self) -> None:
        self.kinds = {path: list(kinds) for path, kinds in KINDS.items()}
        self.objects: dict[str, dict[str, JSON]] = {}
        """path of a collection -> name -> object"""
        self.requests: list[str] = []
        """METHOD PATH of every request but watches, `WATCH PATH` of those."""
        self.created: list[JSON] = []
        self.fault: Callable[[web.Request], web.StreamResponse | str | None] = lambda _request: None
        self.version = 100
        self._watchers: dict[str, list[asyncio.Queue[bytes | None]]] = {}
        self.url = ""

    @asynccontextmanager
    async def serve(self) -> AsyncIterator["FakeAPI"]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        self.url = f"http://127.0.0.1:{port}"
        try:
            yield self
        finally:
            self.break_watches()
            await runner.cleanup()

    def kubeconfig(self, folder: Path) -> Path:
        path = folder / "kubeconfig"
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
            "users": [{"name": "fake", "user": {"token": "t"}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
        }
        path.write_text(yaml.safe_dump(document))
        return path

    def put(self, collection: str, item: JSON, *, silent: bool = False) -> None:
        """Put an object into a collection (the namespaced path) and tell the watchers of it."""
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        held = self.objects.setdefault(collection, {})
        kind = "MODIFIED" if item["metadata"]["name"] in held else "ADDED"
        held[item["metadata"]["name"]] = item
        if not silent:
            self._tell(collection, kind, item)

    def delete(self, collection: str, name: str, *, silent: bool = False) -> None:
        self.version += 1
        item = self.objects[collection].pop(name)
        item["metadata"]["resourceVersion"] = str(self.version)
        if not silent:
            self._tell(collection, "DELETED", item)

    def say(self, path: str, event: JSON) -> None:
        """Send one event to the watchers of a path."""
        for queue in self._watchers.get(path, []):
            queue.put_nowait(orjson.dumps(event) + b"\n")

    def break_watches(self) -> None:
        for queues in self._watchers.values():
            for queue in queues:
                queue.put_nowait(None)

    def watching(self, path: str) -> int:
        return len(self._watchers.get(path, []))

    def _tell(self, collection: str, kind: str, item: JSON) -> None:
        for path in {collection, _everywhere(collection)}:
            self.say(path, {"type": kind, "object": item})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.raw_path.partition("?")[0]
        watch = request.query.get("watch") == "true"
        self.requests.append(f"{'WATCH' if watch else request.method} {path}")
        fault = self.fault(request)
        if fault == "hang":
            await asyncio.sleep(3600)
        if isinstance(fault, web.StreamResponse):
            return fault
        if watch:
            return await self._watch(request, path)
        if request.method == "POST":
            self.created.append(await request.json())
            return web.json_response(self.created[-1], status=201)
        return self._read(request, path)

    def _read(self, request: web.Request, path: str) -> web.Response:
        if path in self.kinds:
            resources = [{"kind": k, "name": p, "namespaced": n} for k, p, n in self.kinds[path]]
            return web.json_response({"kind": "APIResourceList", "resources": resources})
        collection, _, name = path.rpartition("/")
        name = unquote(name)
        if (served := self._kind(collection)) is not None:
            held = self.objects.get(collection, {})
            if name in held:
                return web.json_response(held[name])
            return status(404, f'{served} "{name}" not found', {"name": name, "kind": served})
        if (served := self._kind(path)) is not None:
            return self._list(request, path, served)
        return status(404, "the server could not find the requested resource")

    def _kind(self, path: str) -> str | None:
        """Kind of a collection's path, in a namespace or across all."""
        root, _, plural = path.rpartition("/")
        root = root.partition("/namespaces/")[0]
        return next((k for k, p, _ in self.kinds.get(root, []) if p == plural), None)

    def _list(self, request: web.Request, path: str, kind: str) -> web.Response:
        root, _, plural = path.rpartition("/")
        inside = [
            item
            for collection, held in self.objects.items()
            if collection == path
            or (collection.startswith(f"{root}/namespaces/") and collection.endswith(f"/{plural}"))
            for item in held.values()
        ]
        begin, limit = int(request.query.get("continue", "0")), int(request.query.get("limit", "500"))
        page, end = inside[begin : begin + limit], begin + limit
        more = {"continue": str(end)} if end < len(inside) else {}
        body = {
            "kind": f"{kind}List",
            "apiVersion": root.removeprefix("/apis/").removeprefix("/api/").partition("/namespaces")[0],
            "metadata": {"resourceVersion": str(self.version), **more},
            "items": page,
        }
        return web.Response(body=orjson.dumps(body), content_type="application/json")

    async def _watch(self, request: web.Request, path: str) -> web.StreamResponse:
        if self._kind(path) is None:
            return status(404, "the server could not find the requested resource")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._watchers.setdefault(path, []).append(queue)
        try:
            await response.prepare(request)
            while (line := await queue.get()) is not None:
                await response.write(line)
        except ConnectionError:
            pass  # the watcher has gone
        finally:
            self._watchers[path].remove(queue)
        return response


def status(code: int, message: str, details: JSON | None = None, **headers: str) -> web.Response:
    body = {
        "kind": "Status",
        "status": "Failure",
        "code": code,
        "reason": {403: "Forbidden", 404: "NotFound", 410: "Expired"}.get(code, "InternalError"),
        "message": message,
        "details": details,
    }
    return web.json_response(body, status=code, headers=headers)


def _everywhere(collection: str) -> str:
    """`/apis/batch/v1/namespaces/hpo/jobs` -> `/apis/batch/v1/jobs`."""
    root, found, rest = collection.partition("/namespaces/")
    return f"{root}/{rest.partition('/')[2]}" if found and "/" in rest else collection
