"""The two services that the collector calls, over gRPC; grpc and protobuf are imported at the first call.

Attempts are single: what to do after a failure is the reporter's affair, told by `Refused.kind`.
"""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from collector.reporter import DEADLINE, Origin, Refused
from trialtap import names
from trialtap.points import MetricPoint, format_time

if TYPE_CHECKING:
    import grpc

_AGAIN: Final = {
    "UNAVAILABLE",
    "DEADLINE_EXCEEDED",
    "ABORTED",
    "CANCELLED",
    "UNAUTHENTICATED",
    "PERMISSION_DENIED",
    "UNIMPLEMENTED",
}
"""Status codes that say nothing about the rows: the same request may be answered another time."""
_NOWHERE: Final = "trialtap/which-server"
"""A metric name that nobody has, to ask a DB manager who it is and get no rows."""


class Client:
    """Calls to the DB manager and to the EarlyStopping service on behalf of one trial's pod."""

    def __init__(  # noqa: PLR0913, PLR0917 - what names a pod's rows
        self, address: str, early_stop_address: str, trial: str, namespace: str, pod: str, attempt: int
    ) -> None:
        self._address = address
        self._early_stop_address = early_stop_address
        self._trial = trial
        self._namespace = namespace
        self._pod = pod
        self._attempt = attempt
        self._channels: dict[str, Any] = {}

    def ours(self, timeout: float = DEADLINE) -> bool:
        """Ask the DB manager whether it is trialtap's; Katib's own knows nothing of streams.

        Raises:
            Refused: it cannot be asked.
        """
        from trialtap import messages  # noqa: PLC0415

        request = messages.GetObservationLogRequest(
            trial_name=self._trial, metric_name=_NOWHERE, namespace=self._namespace
        )
        return bool(self._call(self._address, messages.GET, request, timeout).server)

    def report(self, rows: Sequence[MetricPoint], origin: Origin | None, timeout: float = DEADLINE) -> int:
        """Report rows; without origin as Katib's own collectors do.

        Returns:
            The ordinal that the server expects next; 0 from a server that is not trialtap's.

        Raises:
            Refused: they were not stored, or it is not known whether they were.
        """
        from trialtap import messages  # noqa: PLC0415

        request = messages.ReportObservationLogRequest(trial_name=self._trial)
        logs = request.observation_log.metric_logs
        for name, value, time, step in rows:
            log = logs.add()
            log.time_stamp = format_time(time)
            log.metric.name = name
            log.metric.value = value
            if step is not None:
                log.step = step
        if origin is not None:
            stream, first, end, gap = origin
            request.origin.CopyFrom(
                messages.Origin(
                    namespace=self._namespace,
                    pod=self._pod,
                    stream=stream,
                    first=first,
                    end=end,
                    gap=gap,
                    attempt=self._attempt,
                )
            )
        return int(self._call(self._address, messages.REPORT, request, timeout).next)

    def stop_trial(self, timeout: float = DEADLINE) -> None:
        """Have the trial marked as stopped early.

        Raises:
            Refused: it was not, or it is not known whether it was.
        """
        from trialtap import messages  # noqa: PLC0415

        request = messages.SetTrialStatusRequest(trial_name=self._trial)
        metadata = ((messages.NAMESPACE_METADATA, self._namespace),) if self._namespace else ()
        self._call(self._early_stop_address, messages.SET_TRIAL_STATUS, request, timeout, metadata)

    def close(self) -> None:
        """Close connections, and end grpc's threads with them; the next call opens new ones."""
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()

    def _call(
        self,
        address: str,
        method: Any,
        request: Any,
        timeout: float,
        metadata: Sequence[tuple[str, str]] = (),
    ) -> Any:
        import grpc  # noqa: PLC0415

        call = self._channel(address).unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.reply.FromString,
        )
        try:
            return call(request, timeout=timeout, metadata=(*metadata, *_token()))
        except grpc.RpcError as error:
            raise _refusal(error, address) from None

    def _channel(self, address: str) -> "grpc.Channel":
        channel = self._channels.get(address)
        if channel is None:
            import grpc  # noqa: PLC0415

            options = [
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.min_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 2000),
                ("grpc.enable_http_proxy", 0),  # the database is in the cluster, a proxy leads out of it
                ("grpc.max_receive_message_length", 4 << 20),
            ]
            ca = os.environ.get(names.DB_CA_ENV, "")
            if ca:
                credentials = grpc.ssl_channel_credentials(root_certificates=ca.encode())
                channel = grpc.secure_channel(address, credentials, options)
            else:
                channel = grpc.insecure_channel(address, options)
            self._channels[address] = channel
        return channel


def _token() -> tuple[tuple[str, str], ...]:
    """Give the service-account token as metadata, where one is mounted; the kubelet renews the file."""
    try:
        with open(names.TOKEN_FILE, encoding="ascii") as file:  # noqa: PTH123
            return (("authorization", f"Bearer {file.read().strip()}"),)
    except (OSError, ValueError):
        return ()


def _refusal(error: Any, address: str) -> Refused:
    from trialtap.messages import NEXT_METADATA  # noqa: PLC0415

    code = error.code().name
    message = f"{address} answered {code}: {error.details()}"
    if code == "FAILED_PRECONDITION":
        for key, value in error.trailing_metadata() or ():
            if key == NEXT_METADATA and str(value).isdigit():
                return Refused("rewind", message, int(value))
    return Refused("again" if code in _AGAIN else "bad", message)
