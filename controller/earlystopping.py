"""Katib's EarlyStopping service: a collector says that its trial is to be stopped; answered once that is stored.

Katib's own looks in its own namespace only and checks no result. Here the namespace comes with the call
(metadata `trialtap-namespace`, or the token's); without one, the only unfinished trial of that name is meant.
"""

import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import grpc

from controller import metrics
from controller.caches import Cache, Key
from controller.conditions import Condition, conditions, ended, has, rfc3339, with_condition
from trialtap import messages, names
from trialtap.kube import API, Status, Unreachable, path_of

JSON = dict[str, Any]

_STOPPED: Final = Condition("EarlyStopped", "True", "TrialEarlyStopped", "Trial is early stopped")
_TRIES: Final = 5


class Refused(Exception):  # noqa: N818 - an answer
    """A call that cannot be served, with its gRPC status."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Caller(Protocol):
    """Says whose token a call carries."""

    async def namespace(self, token: str) -> str:
        """The namespace of the service account that the token is of.

        Raises:
            Refused: the token is not valid.
        """


class TokenReviews:
    """Asks the API server about tokens of one audience."""

    def __init__(self, api: API, audience: str) -> None:
        self._api = api
        self._audience = audience

    async def namespace(self, token: str) -> str:
        """See `Caller`."""
        body = {"spec": {"token": token, "audiences": [self._audience]}}
        path = path_of("authentication.k8s.io/v1", "tokenreviews")
        try:
            status = (await self._api.request("POST", path, body=body)).get("status") or {}
        except (Status, Unreachable) as error:
            raise Refused(grpc.StatusCode.UNAVAILABLE, f"the token could not be checked: {error}") from None
        user = str((status.get("user") or {}).get("username") or "")
        parts = user.split(":")
        if not status.get("authenticated") or parts[:2] != ["system", "serviceaccount"] or len(parts) != 4:
            raise Refused(
                grpc.StatusCode.UNAUTHENTICATED,
                f"the token is none of a service account for audience {self._audience!r}",
            )
        return parts[2]


class EarlyStopping:
    """SetTrialStatus."""

    def __init__(self, api: API, trials: Cache, caller: Caller | None = None) -> None:
        self._api = api
        self._trials = trials
        self._caller = caller

    async def set_trial_status(self, name: str, metadata: Mapping[str, str]) -> None:
        """Mark a Trial as stopped early; returns once that is stored. Doing it again is fine.

        Raises:
            Refused: there is no such trial, or several, or it has ended already.
        """
        key = self._find(name, await self._namespace(metadata))
        for _ in range(_TRIES):
            trial = next(iter(self._trials.of(key)), None)
            if trial is None:
                raise Refused(grpc.StatusCode.NOT_FOUND, f"no Trial {key.namespace}/{key.name}")
            if has(trial, "EarlyStopped"):
                return
            if ended(trial):
                state = conditions(trial)[-1]["type"]
                raise Refused(
                    grpc.StatusCode.FAILED_PRECONDITION,
                    f"Trial {key.namespace}/{key.name} has ended: {state}",
                )
            if await self._store(key, trial):
                metrics.EARLY_STOPPED.inc()
                return
        raise Refused(
            grpc.StatusCode.ABORTED, f"Trial {key.namespace}/{key.name} changes all the time; try again"
        )

    async def _namespace(self, metadata: Mapping[str, str]) -> str:
        token = metadata.get("authorization", "").removeprefix("Bearer ")
        named = metadata.get(messages.NAMESPACE_METADATA, "")
        if self._caller is None:
            return named
        if not token:
            raise Refused(grpc.StatusCode.UNAUTHENTICATED, "authorization: a service-account token is needed")
        own = await self._caller.namespace(token)
        if named not in {"", own}:
            raise Refused(
                grpc.StatusCode.PERMISSION_DENIED, f"a token of namespace {own!r} stops no trial of {named!r}"
            )
        return own

    def _find(self, name: str, namespace: str) -> Key:
        if not name:
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "trial_name: missing")
        if namespace:
            return Key(namespace, name)
        named = [key for key in self._trials if key.name == name]
        running = [key for key in named if not any(map(ended, self._trials.of(key)))]
        if not named:
            raise Refused(grpc.StatusCode.NOT_FOUND, f"no Trial {name!r} in any namespace")
        if len(running or named) > 1:
            places = ", ".join(sorted(key.namespace for key in running or named))
            raise Refused(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"Trial {name!r} is in several namespaces ({places}): send metadata {messages.NAMESPACE_METADATA}",
            )
        return (running or named)[0]

    async def _store(self, key: Key, trial: JSON) -> bool:
        """Write the condition; False when the Trial changed meanwhile."""
        now = dt.datetime.now(dt.UTC)
        status = {
            "conditions": with_condition(conditions(trial), _STOPPED, now),
            "lastReconcileTime": rfc3339(now),
        }
        body = {"metadata": {"resourceVersion": trial["metadata"]["resourceVersion"]}, "status": status}
        path = path_of(names.API_VERSION, "trials", key.namespace, key.name, "status")
        try:
            stored = await self._api.request(
                "PATCH", path, body=body, content_type="application/merge-patch+json"
            )
        except Status as answer:
            if answer.code == 409:
                self._trials.put(await self._read(key))
                return False
            if answer.code == 404:
                raise Refused(grpc.StatusCode.NOT_FOUND, f"no Trial {key.namespace}/{key.name}") from None
            raise Refused(
                grpc.StatusCode.UNAVAILABLE, f"Trial {key.namespace}/{key.name}: {answer}"
            ) from None
        except Unreachable as fault:
            raise Refused(grpc.StatusCode.UNAVAILABLE, f"Trial {key.namespace}/{key.name}: {fault}") from None
        self._trials.put(stored)
        return True

    async def _read(self, key: Key) -> JSON:
        try:
            return await self._api.request(
                "GET", path_of(names.API_VERSION, "trials", key.namespace, key.name)
            )
        except (Status, Unreachable) as error:
            raise Refused(grpc.StatusCode.UNAVAILABLE, f"Trial {key.namespace}/{key.name}: {error}") from None


def server(service: EarlyStopping, log: Callable[[str], None]) -> grpc.aio.Server:
    """A gRPC server of the service; bind and start it."""

    async def handle(request: Any, context: Any) -> Any:
        metadata = {key: str(value) for key, value in context.invocation_metadata() or ()}
        try:
            await service.set_trial_status(request.trial_name, metadata)
        except Refused as refused:
            log(f"SetTrialStatus {request.trial_name!r}: {refused}")
            await context.abort(refused.code, str(refused))
        return messages.SetTrialStatusReply()

    method = messages.SET_TRIAL_STATUS
    handler = grpc.unary_unary_rpc_method_handler(
        handle,
        request_deserializer=method.request.FromString,
        response_serializer=method.reply.SerializeToString,
    )
    made = grpc.aio.server()
    made.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(method.service, {method.name: handler}),)
    )
    return made
