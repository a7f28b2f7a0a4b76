"""The DB manager, asked for a trial's observation and told to forget a trial. Ours or Katib's own."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import grpc

from controller.plan import Rows
from trialtap import messages
from trialtap.names import UNAVAILABLE
from trialtap.observation import Summary, summarize
from trialtap.points import MetricPoint, parse_time

_SECONDS: Final = 10.0
_MOST_BYTES: Final = 64 << 20


class Database:
    """One channel to a DB manager."""

    def __init__(self, address: str, ca: bytes | None = None) -> None:
        options = [("grpc.max_receive_message_length", _MOST_BYTES)]
        self._channel = (
            grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(ca), options)
            if ca
            else grpc.aio.insecure_channel(address, options)
        )

    async def close(self) -> None:
        """Drop the channel."""
        await self._channel.close()

    async def rows(self, namespace: str, trial: str, strategies: Mapping[str, str]) -> Rows:
        """Read a trial's observation.

        Args:
            namespace: the Trial's.
            trial: its name.
            strategies: metric -> strategy, the objective first.

        Raises:
            grpc.aio.AioRpcError: the DB manager did not answer.
        """
        names = list(strategies)
        read = await asyncio.gather(*(self._points(namespace, trial, name) for name in names))
        found = {
            name: summarize(points).get(name, Summary()) for name, points in zip(names, read, strict=True)
        }
        metrics = tuple(
            {"name": name, "min": found[name].min, "max": found[name].max, "latest": found[name].latest}
            for name in names
        )
        held_back = not any(summary.count for summary in found.values())
        if held_back:
            # With a metric's name nothing is answered while a stream is open; without one, what is there is.
            live = summarize(await self._points(namespace, trial, ""))
            metrics = tuple(
                {"name": name, "min": live[name].min, "max": live[name].max, "latest": live[name].latest}
                for name in names
                if name in live
            )
            held_back = bool(live)
        objective = next((m["latest"] for m in metrics if m["name"] == names[0]), "") if names else ""
        if objective == UNAVAILABLE and not any(summary.count for summary in found.values()):
            objective = ""
        return Rows(metrics, objective, held_back)

    async def forget(self, namespace: str, trial: str) -> None:
        """Delete a trial's rows.

        Raises:
            grpc.aio.AioRpcError: the DB manager did not answer.
        """
        await self._call(messages.DELETE, trial_name=trial, namespace=namespace)

    async def _points(self, namespace: str, trial: str, metric: str) -> list[MetricPoint]:
        reply = await self._call(messages.GET, trial_name=trial, metric_name=metric, namespace=namespace)
        return [
            MetricPoint(row.metric.name, row.metric.value, parse_time(row.time_stamp))
            for row in reply.observation_log.metric_logs
        ]

    async def _call(self, method: messages.Method, **fields: str) -> Any:
        call = self._channel.unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.reply.FromString,
        )
        return await call(method.request(**fields), timeout=_SECONDS, wait_for_ready=False)
