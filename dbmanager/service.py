"""gRPC: Katib's DBManager with our fields, health and reflection on the same port."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

from dbmanager import katibview, metrics
from dbmanager.auth import Anyone, Authenticator, ForbiddenError, UnauthenticatedError, allowed
from dbmanager.limits import check, check_name
from dbmanager.rows import (
    AmbiguousError,
    BehindError,
    NewRow,
    Origin,
    RefusedError,
    Report,
    Row,
    Selection,
    StoreError,
    UnavailableError,
    database_time,
)
from dbmanager.store import Store, now_ms
from trialtap import __version__
from trialtap.messages import DB_MANAGER, DELETE, FILE, GET, NEXT_METADATA, REPORT, Method
from trialtap.points import parse_time

log = logging.getLogger(__name__)

MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""Largest request; gRPC itself answers RESOURCE_EXHAUSTED past it."""
WAITING_BYTES: Final = 256 * 1024 * 1024
"""Requests that are being stored may hold so much together; more is told to come again."""
LARGE_BYTES: Final = 256 * 1024
"""A request past this is decoded in a thread, so that it does not hold up the others."""
THINNED_METADATA: Final = "trialtap-thinned"
"""Trailing metadata of a thinned answer: `KEPT/TOTAL` rows."""

_CODES: Final[tuple[tuple[type[StoreError], grpc.StatusCode], ...]] = (
    (RefusedError, grpc.StatusCode.INVALID_ARGUMENT),
    (BehindError, grpc.StatusCode.FAILED_PRECONDITION),
    (AmbiguousError, grpc.StatusCode.FAILED_PRECONDITION),
    (UnauthenticatedError, grpc.StatusCode.UNAUTHENTICATED),
    (ForbiddenError, grpc.StatusCode.PERMISSION_DENIED),
    (UnavailableError, grpc.StatusCode.UNAVAILABLE),
)


_new_row: Final = tuple.__new__
"""A NamedTuple's own constructor costs three times as much, once a row."""


class BusyError(StoreError):
    """Too much is being stored at once."""


class Service:
    """The three methods. `authenticator` says which namespace a caller may touch."""

    def __init__(self, store: Store, authenticator: Authenticator) -> None:
        self._store = store
        self._authenticator = authenticator
        self._waiting = 0

    async def report(self, data: bytes, context: Any) -> Any:
        """ReportObservationLog: answered once the rows are durable."""
        own = await self._caller(context)
        if self._waiting + len(data) > WAITING_BYTES and self._waiting:
            raise BusyError(f"{self._waiting} bytes of reports wait for the database; send it again later")
        self._waiting += len(data)
        try:
            if len(data) > LARGE_BYTES:
                report, without_time = await asyncio.to_thread(self._report, data, own)
            else:
                report, without_time = self._report(data, own)
            outcome = await asyncio.wrap_future(self._store.report(report))
        finally:
            self._waiting -= len(data)
        metrics.ROWS_STORED.inc(outcome.stored)
        if without_time:
            metrics.ROWS_WITHOUT_TIME.inc(without_time)
        if outcome.tombstone:
            metrics.ROWS_TOO_LATE.inc(len(report.rows))
        elif report.origin is not None:
            metrics.ROWS_REPEATED.inc(len(report.rows) - outcome.stored)
        if outcome.lost:
            metrics.ROWS_LOST.inc(outcome.lost)
            log.warning(
                "trial %s: its collector lost %d rows before ordinal %d of stream %s",
                report.trial_name,
                outcome.lost,
                report.origin.first if report.origin else 0,
                report.origin.stream if report.origin else "",
            )
        return REPORT.reply(next=outcome.next) if outcome.next else REPORT.reply()

    async def get(self, data: bytes, context: Any) -> Any:
        """GetObservationLog: see dbmanager.katibview for who sees what."""
        own = await self._caller(context)
        request = _decode(GET, data)
        check_name("trial_name", request.trial_name)
        selection = Selection(
            trial_name=request.trial_name,
            namespace=allowed(own, request.namespace, "namespace") or None,
            metrics=(request.metric_name,) if request.metric_name else (),
            start=_time("start_time", request.start_time),
            end=_time("end_time", request.end_time),
        )
        thinner = await asyncio.to_thread(self._read, selection)
        rows = thinner.rows()
        if thinner.dropped:
            metrics.ANSWERS_THINNED.inc()
            context.set_trailing_metadata(((THINNED_METADATA, f"{len(rows)}/{thinner.fed}"),))
        return await asyncio.to_thread(_reply, rows)

    async def delete(self, data: bytes, context: Any) -> Any:
        """DeleteObservationLog. Ambiguous: nothing is deleted, and the answer is OK.

        A peer's finalizer waits for OK: an error would keep its Trial for ever.
        """
        own = await self._caller(context)
        request = _decode(DELETE, data)
        check_name("trial_name", request.trial_name)
        namespace = allowed(own, request.namespace, "namespace") or None
        try:
            deleted = await asyncio.to_thread(self._store.delete, request.trial_name, namespace)
        except AmbiguousError as error:
            metrics.DELETES_AMBIGUOUS.inc()
            log.warning("nothing was deleted: %s", error)
        else:
            metrics.ROWS_DELETED.labels("request").inc(deleted)
            log.info("trial %s: %d rows deleted", request.trial_name, deleted)
        return DELETE.reply()

    async def _caller(self, context: Any) -> str | None:
        if isinstance(self._authenticator, Anyone):
            return None
        metadata = {key.lower(): value for key, value in context.invocation_metadata() or ()}
        return await self._authenticator.namespace(metadata.get("authorization"))

    def _report(self, data: bytes, own: str | None) -> tuple[Report, int]:
        request = _decode(REPORT, data)
        rows, without_time = _rows(request.observation_log.metric_logs)
        origin = None
        if request.HasField("origin"):
            said = request.origin
            namespace = allowed(own, said.namespace, "origin.namespace")
            origin = Origin(namespace, said.pod, said.stream, said.first, said.end, said.attempt, said.gap)
        report = Report(request.trial_name, rows, origin, own if origin is None else None, without_time)
        check(report, self._store.database.codecs)
        return report, without_time

    def _read(self, selection: Selection) -> katibview.Thinner:
        thinner = katibview.Thinner()
        rows: Iterator[Row] = (row for chunk in self._store.rows(selection) for row in chunk)
        if selection.metrics:
            streams = self._store.streams(selection.trial_name, selection.namespace)
            if katibview.is_open(streams, now_ms()):
                return thinner
            rows = katibview.of_metric(rows, katibview.superseded(streams))
        else:
            rows = katibview.of_all(rows)
        for row in rows:
            thinner.add(row)
        return thinner


def _decode(method: Method, data: bytes) -> Any:
    try:
        return method.request.FromString(data)
    except DecodeError as error:
        raise RefusedError(
            "request", f"is no {method.request.DESCRIPTOR.full_name} ({error or 'the bytes do not parse'})"
        ) from error


def _rows(logs: Sequence[Any]) -> tuple[list[NewRow | None], int]:
    """The rows of a report, None where the time is empty: its ordinal counts, as a row it is skipped."""
    rows: list[NewRow | None] = []
    without_time = 0
    for log_ in logs:
        text = log_.time_stamp
        if not text:
            rows.append(None)
            without_time += 1
            continue
        try:
            moment, ns = database_time(text)
        except ValueError as error:
            raise RefusedError(f"observation_log.metric_logs[{len(rows)}].time_stamp", str(error)) from error
        metric = log_.metric
        step = log_.step if log_.HasField("step") else None
        rows.append(_new_row(NewRow, (moment, ns, metric.name, metric.value, step)))
    return rows, without_time


def _time(field: str, text: str) -> int | None:
    try:
        return parse_time(text) if text else None
    except ValueError as error:
        raise RefusedError(field, str(error)) from error


def _reply(rows: Sequence[Row]) -> Any:
    reply = GET.reply(server=f"trialtap/{__version__}")
    add = reply.observation_log.metric_logs.add
    for row in rows:
        entry = add(time_stamp=row.rfc3339)
        entry.metric.name = row.name
        entry.metric.value = row.value
        if row.step is not None:
            entry.step = row.step
    reply.observation_log.SetInParent()
    return reply


def _answering(method: Method, function: Callable[[bytes, Any], Awaitable[Any]]) -> Any:
    """A handler that turns errors into statuses and measures; bytes in, so that garbage is ours to answer."""

    async def handle(data: bytes, context: Any) -> bytes:
        start = time.monotonic()
        code = grpc.StatusCode.OK
        try:
            return (await function(data, context)).SerializeToString()  # type: ignore[no-any-return]
        except StoreError as error:
            code = next(
                (code for kind, code in _CODES if isinstance(error, kind)), grpc.StatusCode.RESOURCE_EXHAUSTED
            )
            trailing = ((NEXT_METADATA, str(error.next)),) if isinstance(error, BehindError) else ()
            await context.abort(code, str(error), trailing)
        except asyncio.CancelledError:
            code = grpc.StatusCode.CANCELLED
            raise
        except Exception as error:
            if isinstance(error, grpc.aio.AbortError):
                raise
            code = grpc.StatusCode.INTERNAL
            log.exception("%s failed", method.name)
            await context.abort(code, f"internal error: {type(error).__name__}; see the DB manager's log")
        finally:
            metrics.REQUESTS.labels(method.name, code.name).observe(time.monotonic() - start)
        raise AssertionError  # abort raises

    return grpc.unary_unary_rpc_method_handler(handle)


def descriptor_pool() -> DescriptorPool:
    """What reflection answers from: ours, where `api.v1.beta1` has the added fields, not protobuf's default."""
    pool = DescriptorPool()
    for file in (FILE, health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
        pool.AddSerializedFile(file.serialized_pb)
    return pool


def server(store: Store, authenticator: Authenticator, health_servicer: health.aio.HealthServicer) -> Any:
    """A grpc.aio server with everything registered; its ports are the caller's to add.

    SO_REUSEPORT is off: a second DB manager on the same port fails to start instead of taking half the calls.
    """
    service = Service(store, authenticator)
    made = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", MESSAGE_BYTES),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
        ]
    )
    methods = ((REPORT, service.report), (GET, service.get), (DELETE, service.delete))
    handlers = {method.name: _answering(method, function) for method, function in methods}
    made.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(DB_MANAGER, handlers),))
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, made)
    names = (DB_MANAGER, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(
        reflection.aio.ReflectionServicer(names, pool=descriptor_pool()), made
    )
    return made
