"""The REST API and the page: HTTP in, what `rest_read` and `rest_live` say out."""

import threading
from collections.abc import Iterator
from itertools import chain
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, FastAPI, Header, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from dbmanager import rest_models as models
from dbmanager import rest_page, rest_read
from dbmanager.auth import Anyone, Authenticator, UnauthenticatedError
from dbmanager.records import csv_head, csv_lines, ndjson
from dbmanager.rest_columns import BYTES, ColumnCache, read_holdings
from dbmanager.rest_live import Tail, events
from dbmanager.rest_scope import ApiError, Scope
from dbmanager.rows import AmbiguousError, RefusedError, Selection, TrialKey, UnavailableError
from dbmanager.store import Store
from trialtap import __version__
from trialtap.points import parse_time

PREFIX: Final = "/api/v1"
_FAULTS: Final[dict[int | str, dict[str, Any]]] = {
    code: {"model": models.Fault, "description": text}
    for code, text in {
        400: "The body is no JSON",
        401: "The token is missing or proves nothing",
        403: "The token may not read that namespace",
        404: "There is no such trial",
        409: "Several namespaces hold that trial: name one",
        422: "A parameter is wrong",
        503: "The database does not answer",
    }.items()
}

router: Final = APIRouter(prefix=PREFIX)
_bearer: Final = HTTPBearer(auto_error=False, description="A service account's token of audience `trialtap`")


def _store(request: Request) -> Store:
    store: Store = request.app.state.store
    return store


async def _scope(
    request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> Scope:
    authenticator: Authenticator = request.app.state.authenticator
    namespace = await authenticator.namespace(request.headers.get("authorization"))
    return Scope(None if namespace is None else frozenset({namespace}))


def _nanoseconds(request: Request) -> dict[str, int | None]:
    """`start` and `end` of the query."""
    found: dict[str, int | None] = {}
    for name in ("start", "end"):
        text = request.query_params.get(name)
        try:
            found[name] = parse_time(text) if text else None
        except ValueError as error:
            raise ApiError(422, f"{name}: {error}") from error
    return found


StoreOf = Annotated[Store, Depends(_store)]
ScopeOf = Annotated[Scope, Depends(_scope)]
Namespace = Annotated[
    str | None,
    Query(max_length=255, pattern=r"^[^\x00]*$", description="Needed where two namespaces hold that name"),
]
TrialName = Annotated[str, Path(min_length=1, max_length=255, pattern=r"^[^\x00]*$")]
Metrics = Annotated[list[models.Name] | None, Query(description="Only these metrics; may repeat")]
Step = Annotated[int | None, Query(ge=-models.INT64, lt=models.INT64)]
Time = Annotated[
    str | None,
    Query(
        description="RFC 3339, inclusive; without a zone it is UTC", json_schema_extra={"format": "date-time"}
    ),
]


@router.get("/trials", responses=_FAULTS)
def list_trials(  # noqa: PLR0913, PLR0917 - one parameter each
    store: StoreOf,
    scope: ScopeOf,
    namespace: Namespace = None,
    prefix: Annotated[
        str, Query(max_length=255, description="An experiment's trials begin with its name")
    ] = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[str | None, Query(description="`next` of the page before")] = None,
) -> models.Trials:
    """The trials that have points or whose collectors are there, by namespace and name."""
    return rest_read.list_trials(store, scope, namespace, prefix, limit, cursor)


@router.get(
    "/trials/{trial:path}/metrics",
    responses=_FAULTS
    | {
        200: {
            "model": models.Points,
            "description": "A page as JSON, or all points as NDJSON or CSV",
            "content": {"application/x-ndjson": {}, "text/csv": {}},
        }
    },
    response_model=None,
)
def read_metrics(  # noqa: PLR0913, PLR0917 - one parameter each
    store: StoreOf,
    scope: ScopeOf,
    trial: TrialName,
    times: Annotated[dict[str, int | None], Depends(_nanoseconds)],
    namespace: Namespace = None,
    metric: Metrics = None,
    start: Time = None,  # noqa: ARG001 - described here, read by _nanoseconds
    end: Time = None,  # noqa: ARG001
    first_step: Annotated[Step, Query(alias="firstStep")] = None,
    last_step: Annotated[Step, Query(alias="lastStep")] = None,
    attempt: Annotated[int | None, Query(ge=0, lt=models.INT64)] = None,
    pod: Annotated[str | None, Query(max_length=255)] = None,
    order: Annotated[
        Literal["time", "stored"],
        Query(description="`stored`: as they came; NDJSON and CSV then number the rows"),
    ] = "time",
    after: Annotated[
        int | None, Query(ge=0, lt=models.INT64, description="Only rows of a greater id")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=10_000, description="Points on a page; only of JSON")] = 1000,
    cursor: Annotated[str | None, Query(description="`next` of the page before")] = None,
    format: Annotated[  # noqa: A002 - the parameter's name
        Literal["json", "ndjson", "csv"] | None, Query(description="Else what Accept says, else json")
    ] = None,
    accept: Annotated[str, Header(include_in_schema=False)] = "",
) -> Response:
    """A trial's points by time: paged as JSON, or all of them as a stream of NDJSON or CSV."""
    key = scope.resolve(store, trial, namespace)
    reader = rest_read.PointReader(
        store,
        Selection(
            key.name,
            key.namespace,
            metrics=tuple(metric or ()),
            first_step=first_step,
            last_step=last_step,
            by_id=order == "stored",
            after=after,
            start=times["start"],
            end=times["end"],
        ),
        attempt,
        pod,
        cursor,
    )
    kind = format or _accepted(accept)
    if kind == "json" and order == "stored":
        raise ApiError(422, "order: pages are by time; ask for format=ndjson or csv, or page on by `after`")
    if kind == "json":
        return Response(reader.page(limit).model_dump_json(), media_type="application/json")
    write, media = (
        (csv_lines, "text/csv; charset=utf-8") if kind == "csv" else (ndjson, "application/x-ndjson")
    )
    chunks = reader.chunks()
    first = next(chunks, None)  # errors come before the first byte, while they can still be told
    body: Iterator[bytes] = (write(chunk) for chunk in chain([first] if first else [], chunks))
    if kind == "csv":
        body = chain([csv_head()], body)
    name = "".join(c if c.isascii() and (c.isalnum() or c in "-._") else "_" for c in key.name)
    return StreamingResponse(
        body, media_type=media, headers={"Content-Disposition": f'attachment; filename="{name}.{kind}"'}
    )


def _accepted(accept: str) -> str:
    if "application/x-ndjson" in accept:
        return "ndjson"
    return "csv" if "text/csv" in accept else "json"


@router.get("/trials/{trial:path}/summary", responses=_FAULTS)
def summarize(
    store: StoreOf, scope: ScopeOf, trial: TrialName, namespace: Namespace = None
) -> models.Summary:
    """Count, min, max and latest of each metric; attempts apart."""
    return rest_read.summarize(store, scope.resolve(store, trial, namespace))


@router.delete("/trials/{trial:path}", responses=_FAULTS)
def delete(store: StoreOf, scope: ScopeOf, trial: TrialName, namespace: Namespace = None) -> models.Deleted:
    """Delete a trial's points for good; what its collectors still send is not stored."""
    key = scope.resolve(store, trial, namespace)
    return models.Deleted(rows=store.delete(key.name, key.namespace))


@router.post("/curves", responses=_FAULTS | {200: {"model": models.Curves}}, response_model=None)
def draw(request: Request, store: StoreOf, scope: ScopeOf, asked: models.CurvesRequest) -> Response:
    """Curves of one metric of many trials, thinned to what a screen shows: peaks stay."""
    body = rest_read.draw(store, request.app.state.columns, scope, asked)
    return Response(body, media_type="application/json")


@router.get(
    "/events",
    responses=_FAULTS | {200: {"description": "Server-sent events", "content": {"text/event-stream": {}}}},
    response_class=StreamingResponse,
)
async def live(  # noqa: PLR0913, PLR0917 - one parameter each
    request: Request,
    store: StoreOf,
    scope: ScopeOf,
    trial: Annotated[
        list[models.Name], Query(max_length=500, description="NAME, or NAMESPACE/NAME; may repeat")
    ],
    metric: Metrics = None,
    after: Annotated[int | None, Query(ge=0, lt=models.INT64, description="`cursor` of curves")] = None,
    last_event_id: Annotated[int | None, Header(ge=0, lt=models.INT64)] = None,
) -> StreamingResponse:
    """New points of some trials as they are stored; goes on after `Last-Event-ID` or `after`, else from now."""
    keys = await run_in_threadpool(_chosen, store, scope, trial)
    tail = Tail(
        store,
        keys,
        metric or (),
        last_event_id if last_event_id is not None else after,
        strict=scope.namespaces is not None,
    )
    return StreamingResponse(
        events(store, tail, [key.name for key in keys], request.app.state.stopping),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


def _chosen(store: Store, scope: Scope, trials: list[str]) -> list[TrialKey]:
    """Trials that are still to come are fine: the page may be open before the first point."""
    wanted = [
        (name, namespace or None) if slash else (trial, None)
        for trial in trials
        for namespace, slash, name in [trial.partition("/")]
    ]
    with store.reading() as connection:
        holdings = read_holdings(connection, [name for name, _ in wanted])
    keys = []
    for name, namespace in wanted:
        scope.check(namespace)
        key = TrialKey(namespace, name) if namespace else scope.only(name, holdings.namespaces.get(name, ()))
        if key is None:
            raise ApiError(404, f"trial: there is no {name}; GET api/v1/trials lists what is there")
        keys.append(key)
    return keys


_HTTP_FAULTS: Final = {
    400: "body: is no JSON; openapi.json describes what is expected",
    404: "path: there is no {path}; openapi.json describes the API",
    405: "method: {method} is not for {path}; openapi.json describes the API",
}
"""What the framework itself refuses."""


def _fault(status: int, detail: str) -> JSONResponse:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return JSONResponse({"detail": detail}, status, headers)


def _validation(error: RequestValidationError) -> str:
    """Every fault on one line: parameter, what is wrong with it."""
    return "; ".join(
        f"{'.'.join(str(part) for part in fault['loc'][1:]) or fault['loc'][0]}: {fault['msg']}"
        for fault in error.errors()
    )


def application(
    store: Store, authenticator: Authenticator | None = None, *, column_bytes: int = BYTES
) -> FastAPI:
    """The application that `python -m dbmanager` serves on `--http`.

    Args:
        store: what is read; its owner closes it.
        authenticator: tells the only namespace that a caller may read and delete in; None = everybody
            everything.
        column_bytes: memory for numbers that the page may ask for again.

    Set `state.stopping` before the server is told to stop: live streams then end by themselves.
    """
    app = FastAPI(
        title="trialtap DB manager",
        version=__version__,
        description="Metrics of training trials. Every 4xx and 5xx is `{detail}`.",
        docs_url=None,  # they load their scripts from another host
        redoc_url=None,
    )
    app.state.store = store
    app.state.authenticator = authenticator or Anyone()
    app.state.columns = ColumnCache(
        store, column_bytes, strict=not isinstance(app.state.authenticator, Anyone)
    )
    app.state.stopping = threading.Event()
    # Server-sent events pass through uncompressed: the middleware leaves text/event-stream alone.
    app.add_middleware(GZipMiddleware, minimum_size=2048, compresslevel=1)
    app.include_router(router)
    rest_page.add(app)
    _add_error_answers(app)
    if isinstance(app.state.authenticator, Anyone):
        _describe_without_tokens(app)
    return app


def _describe_without_tokens(app: FastAPI) -> None:
    """Where nobody asks for a token, the description asks for none either."""
    described = app.openapi()
    described.get("components", {}).pop("securitySchemes", None)
    for operations in described["paths"].values():
        for operation in operations.values():
            operation.pop("security", None)


def _add_error_answers(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def api(_: Request, error: ApiError) -> Response:
        return _fault(error.status, error.detail)

    @app.exception_handler(UnauthenticatedError)
    async def unauthenticated(_: Request, error: UnauthenticatedError) -> Response:
        return _fault(401, str(error))

    @app.exception_handler(AmbiguousError)
    async def ambiguous(_: Request, error: AmbiguousError) -> Response:
        return _fault(409, f"namespace: {error}")

    @app.exception_handler(RefusedError)
    async def refused(_: Request, error: RefusedError) -> Response:
        return _fault(422, str(error))

    @app.exception_handler(UnavailableError)
    async def unavailable(_: Request, error: UnavailableError) -> Response:
        return _fault(503, str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        return _fault(422, _validation(error))

    async def http(request: Request, error: Exception) -> Response:
        status = getattr(error, "status_code", 500)
        answer = _fault(status, _HTTP_FAULTS[status].format(method=request.method, path=request.url.path))
        answer.headers.update(getattr(error, "headers", None) or {})
        return answer

    for code in _HTTP_FAULTS:
        app.add_exception_handler(code, http)
