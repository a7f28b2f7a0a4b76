"""The HTTP side: knows requests, statuses and deadlines, and nothing of pods."""

import asyncio
import re
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TextIO

import orjson
from fastapi import FastAPI
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HTTPRequest
from starlette.responses import PlainTextResponse, Response

from webhook import metrics, review
from webhook.cluster import Cluster, NotSynced, deadline
from webhook.review import Malformed, Refusal, Request, Verdict
from webhook.settings import Settings

Handler = Callable[[Request, Cluster, Settings], Awaitable[Verdict]]
"""Answers one admission request; raises Refusal."""

MAX_BODY_BYTES: Final = 16 << 20
"""An object is 1.5 MiB at most (etcd); a review carries it twice, escaped in the worst case."""
BODY_SECONDS: Final = 10.0
"""How long a request's body may take to arrive."""
DEFAULT_SECONDS: Final = 10.0
"""Kubernetes' default timeoutSeconds, where a request tells none."""
MARGIN_SECONDS: Final = 0.5
"""What is left of the API server's timeout for the way back."""

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s)")
_UNITS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


class Failed(Exception):  # noqa: N818 - an answer
    """No verdict: an HTTP status, to which the API server applies the webhook's failurePolicy."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def create(
    routes: Mapping[str, Handler],
    cluster: Cluster,
    settings: Settings,
    faults: Callable[[], list[str]],
    log: TextIO = sys.stderr,
) -> FastAPI:
    """The application.

    Args:
        routes: a handler for each admission path.
        cluster: passed to every handler.
        settings: passed to every handler.
        faults: why no request can be answered at the moment; empty: ready.
        log: gets one line of JSON per admission.
    """
    app = FastAPI(title="trialtap webhook", openapi_url=None, docs_url=None, redoc_url=None)
    for path, handler in routes.items():
        admission = Admission(path, handler, cluster, settings, log)
        app.router.add_route(path, admission.respond, methods=["POST"])

    async def healthz(_: HTTPRequest) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_: HTTPRequest) -> Response:
        found = faults()
        return PlainTextResponse("\n".join(found or ["ok"]) + "\n", status_code=503 if found else 200)

    app.router.add_route("/healthz", healthz, methods=["GET"])
    app.router.add_route("/readyz", readyz, methods=["GET"])
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
        self._seconds = metrics.SECONDS.labels(path)
        self._outcomes = {
            outcome: metrics.ADMISSIONS.labels(path, outcome)
            for outcome in ("allowed", "patched", "refused", "failed")
        }

    async def respond(self, http: HTTPRequest) -> Response:
        """Answer one HTTP request."""
        try:
            body = await _body(http)
            begin = time.perf_counter()
            request = review.parse(body)
            verdict = await self._decide(request, seconds_for(http.query_params.get("timeout")))
            content = review.answer(request, verdict)
        except (Failed, Malformed) as failure:
            self._outcomes["failed"].inc()
            self._write(status=failure.status, error=str(failure))
            return PlainTextResponse(f"{failure}\n", status_code=failure.status)
        self._account(request, verdict, time.perf_counter() - begin)
        return Response(content, media_type="application/json")

    async def _decide(self, request: Request, seconds: float) -> Verdict:
        try:
            with deadline(seconds):
                async with asyncio.timeout(seconds + MARGIN_SECONDS / 2):
                    return await self._handler(request, self._cluster, self._settings)
        except Refusal as refusal:
            return Verdict(refusal=refusal, decision=refusal.reason)
        except NotSynced as state:
            raise Failed(503, f"not ready: {state}") from None
        except TimeoutError:
            raise Failed(504, f"{request.kind} {request.label!r}: no verdict within {seconds:g} s") from None
        except Malformed:
            raise
        except Exception as error:
            # A bug of ours: said in full in the log, in one line to the API server.
            self._write(uid=request.uid, error="".join(traceback.format_exception(error)))
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
            uid=request.uid,
            operation=request.operation,
            kind=request.kind,
            namespace=request.namespace,
            name=request.label,
            outcome=outcome,
            decision=verdict.refusal.message if verdict.refusal else verdict.decision,
            warnings=verdict.warnings,
            dryRun=request.dry_run,
            milliseconds=round(seconds * 1000, 2),
        )

    def _write(self, **fields: object) -> None:
        line = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "path": self._path, **fields}
        self._log.write(orjson.dumps(line).decode() + "\n")
        self._log.flush()


async def _body(http: HTTPRequest) -> bytes:
    """The request's body, bounded in size and time.

    Raises:
        Failed: it is of another type, too large, late, or was broken off.
    """
    kind = http.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Failed(415, f"Content-Type: {kind or 'none'!r} is not read here, send application/json")
    declared = http.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > MAX_BODY_BYTES:
        raise Failed(413, f"body: more than {MAX_BODY_BYTES} bytes")
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in http.stream():
                size += len(chunk)
                if size > MAX_BODY_BYTES:
                    raise Failed(413, f"body: more than {MAX_BODY_BYTES} bytes")
                chunks.append(chunk)
    except TimeoutError:
        raise Failed(408, f"body: did not arrive within {BODY_SECONDS:g} s") from None
    except ClientDisconnect:
        raise Failed(400, "body: broken off") from None
    return b"".join(chunks)


def seconds_for(timeout: str | None) -> float:
    """Seconds for a verdict when the API server told this `?timeout=` (a Go duration, `10s`), less the way back."""
    parts = _DURATION.findall(timeout or "")
    told = sum(float(number) * _UNITS[unit] for number, unit in parts) or DEFAULT_SECONDS
    return max(0.1, told - MARGIN_SECONDS)
