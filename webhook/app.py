"""The HTTP side: knows requests, statuses and deadlines, and nothing of pods."""

import asyncio
import re
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, TextIO, cast

import orjson
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse

from webhook import metrics, review
from webhook.cluster import JSON, Cluster, NotSynced, deadline
from webhook.overdue import Overdue
from webhook.review import Malformed, Refusal, Request, Verdict
from webhook.settings import Settings

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
"""The three of ASGI: what is asked, where its body comes from, where the answer goes."""
Handler = Callable[[Request, Cluster, Settings], Awaitable[Verdict]]
"""Answers one admission request; raises Refusal."""

MAX_BODY_BYTES: Final = 16 << 20
"""An object is 1.5 MiB at most (etcd); a review carries it twice, escaped in the worst case."""
DEFAULT_SECONDS: Final = 10.0
"""Kubernetes' default timeoutSeconds, where a request tells none."""
MARGIN_SECONDS: Final = 0.5
"""What is left of the API server's timeout for the way back."""

_TIMEOUT = re.compile(rb"(?:^|&)timeout=([^&]*)")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s)")
_UNITS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


class Failed(Exception):  # noqa: N818 - an answer
    """No verdict: an HTTP status, to which the API server applies the webhook's failurePolicy."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class App(FastAPI):
    """FastAPI with a short cut: admission paths are answered before routing and middleware.

    Those cost as much as deciding about a pod does, and an admission path needs none of them.
    """

    admissions: Mapping[str, "Admission"] = MappingProxyType({})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One ASGI connection."""
        if scope["type"] == "http" and (admission := self.admissions.get(scope["path"])):
            await admission.respond(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def create(
    routes: Mapping[str, Handler],
    cluster: Cluster,
    settings: Settings,
    faults: Callable[[], list[str]],
    log: TextIO = sys.stderr,
) -> App:
    """The application.

    Args:
        routes: a handler for each admission path.
        cluster: passed to every handler.
        settings: passed to every handler.
        faults: why no request can be answered at the moment; empty: ready.
        log: gets one line of JSON per admission.
    """
    app = App(title="trialtap webhook", openapi_url=None, docs_url=None, redoc_url=None)
    app.admissions = {
        path: Admission(path, handler, cluster, settings, log) for path, handler in routes.items()
    }

    @app.get("/healthz", response_class=PlainTextResponse)
    async def healthz() -> str:
        return "ok\n"

    @app.get("/readyz")
    async def readyz() -> PlainTextResponse:
        found = faults()
        return PlainTextResponse("\n".join(found or ["ok"]) + "\n", status_code=503 if found else 200)

    return app


class Admission:
    """One admission path."""

    def __init__(
        self, path: str, handler: Handler, cluster: Cluster, settings: Settings, log: TextIO
    ) -> None:
        self._path = path
        self._handler = handler
        self._cluster = cluster
        self._settings = settings
        self._log = log
        self._overdue = Overdue()
        self._seconds = metrics.SECONDS.labels(path)
        self._outcomes = {
            outcome: metrics.ADMISSIONS.labels(path, outcome)
            for outcome in ("allowed", "patched", "refused", "failed")
        }

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        try:
            status, kind, content = 200, b"application/json", await self._content(scope, receive)
        except (Failed, Malformed) as failure:
            self._outcomes["failed"].inc()
            self._write({"status": failure.status, "error": str(failure)})
            status, kind, content = failure.status, b"text/plain; charset=utf-8", f"{failure}\n".encode()
        headers = [(b"content-type", kind), (b"content-length", b"%d" % len(content))]
        if status in _BODY_UNREAD:
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    async def _content(self, scope: Scope, receive: Receive) -> bytes:
        """The answer's body.

        Raises:
            Failed: there is no verdict.
            Malformed: the body cannot be answered.
        """
        _check(scope)
        seconds = seconds_for(scope["query_string"])
        task = cast("asyncio.Task[object]", asyncio.current_task())
        request = None
        self._overdue.bound(task, seconds + MARGIN_SECONDS / 2)
        try:
            body = await _body(receive)
            begin = time.perf_counter()
            request = review.parse(body)
            verdict = await self._decide(request, seconds)
        except asyncio.CancelledError:
            if not self._overdue.free(task):
                raise
            if request is None:
                raise Failed(408, f"body: did not arrive within {seconds:g} s") from None
            raise Failed(504, f"{request.kind} {request.label!r}: no verdict within {seconds:g} s") from None
        finally:
            self._overdue.free(task)
        content = review.answer(request, verdict)
        self._account(request, verdict, time.perf_counter() - begin)
        return content

    async def _decide(self, request: Request, seconds: float) -> Verdict:
        try:
            with deadline(seconds):
                return await self._handler(request, self._cluster, self._settings)
        except Refusal as refusal:
            return Verdict(refusal=refusal, decision=refusal.reason)
        except NotSynced as state:
            raise Failed(503, f"not ready: {state}") from None
        except Malformed:
            raise
        except Exception as error:
            # A bug of ours: said in full in the log, in one line to the API server.
            self._write({"uid": request.uid, "error": "".join(traceback.format_exception(error))})
            raise Failed(
                500, f"{request.kind} {request.label!r}: internal error, see the webhook's log"
            ) from None

    def _account(self, request: Request, verdict: Verdict, seconds: float) -> None:
        if verdict.refusal is not None:
            outcome = "refused"
            metrics.REFUSALS.labels(verdict.refusal.reason).inc()
        else:
            outcome = "patched" if verdict.patch else "allowed"
        self._outcomes[outcome].inc()
        self._seconds.observe(seconds)
        self._write(
            {
                "uid": request.uid,
                "operation": request.operation,
                "kind": request.kind,
                "namespace": request.namespace,
                "name": request.label,
                "outcome": outcome,
                "decision": verdict.refusal.message if verdict.refusal else verdict.decision,
                "warnings": verdict.warnings,
                "dryRun": request.dry_run,
                "milliseconds": round(seconds * 1000, 2),
            }
        )

    def _write(self, fields: JSON) -> None:
        line = {"time": _clock(int(time.time())), "path": self._path} | fields
        self._log.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE).decode())
        self._log.flush()


@lru_cache(maxsize=1)
def _clock(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(second))


_BODY_UNREAD: Final = frozenset({405, 408, 413, 415})
"""Statuses that are sent before the body has been read: the connection is of no more use."""


def _check(scope: Scope) -> None:
    """Refuse what the request's head already tells is wrong.

    Raises:
        Failed: the method, the type or the size.
    """
    if scope["method"] != "POST":
        raise Failed(405, f"{scope['method']} is not answered here, send POST")
    kind = length = b""
    for name, value in scope["headers"]:  # ASGI: names are lower case
        if name == b"content-type":
            kind = value
        elif name == b"content-length":
            length = value
    if kind != b"application/json" and kind.partition(b";")[0].strip().lower() != b"application/json":
        said = kind.decode("latin-1") or "none"
        raise Failed(415, f"Content-Type: {said!r} is not read here, send application/json")
    if length.isdigit() and int(length) > MAX_BODY_BYTES:
        raise Failed(413, f"body: more than {MAX_BODY_BYTES} bytes")


async def _body(receive: Receive) -> bytes:
    """The request's body, bounded in size.

    Raises:
        Failed: it is too large or was broken off.
    """
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Failed(400, "body: broken off")
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise Failed(413, f"body: more than {MAX_BODY_BYTES} bytes")
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


@lru_cache(maxsize=64)
def seconds_for(query: bytes) -> float:
    """Seconds for a verdict, of a query string in which the API server tells its own timeout, less the way back.

    The timeout is a Go duration, `timeout=10s`; without one it is Kubernetes' default.
    """
    found = _TIMEOUT.search(query)
    parts = _DURATION.findall(found[1].decode("latin-1")) if found else ()
    told = sum(float(number) * _UNITS[unit] for number, unit in parts) or DEFAULT_SECONDS
    return max(0.1, told - MARGIN_SECONDS)
