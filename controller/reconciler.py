"""Looks at one Trial and does what the plan says: the only place that writes."""

import asyncio
import copy
import dataclasses
import datetime as dt
import secrets
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final, assert_never

from controller import metrics, mutators
from controller.actions import (
    Action,
    Annotate,
    Create,
    DeleteRows,
    DeleteWorkload,
    Emit,
    PatchStatus,
    ReadLog,
    ReadRows,
    Wait,
)
from controller.caches import Cache, Key, Workloads
from controller.conditions import rfc3339
from controller.database import Database
from controller.plan import Observed, plan
from trialtap import names
from trialtap.kinds import Kind
from trialtap.kube import API, Status, Unreachable, path_of
from trialtap.objects import Objective

JSON = dict[str, Any]

COMPONENT: Final = "trialtap-controller"
_MERGE: Final = "application/merge-patch+json"
_LOG_LINES: Final = 10
_LOG_BYTES: Final = 2048
_MESSAGE_CHARACTERS: Final = 1024
"""The API server refuses Events with longer messages."""


class Trouble(Exception):  # noqa: N818 - an answer of the cluster
    """A workload could not be made; the Trial says why, and it is tried again."""


class Reconciler:
    """One look at a Trial at a time; see `reconcile`."""

    def __init__(  # noqa: PLR0913, PLR0917 - what it reads and writes
        self,
        api: API,
        trials: Cache,
        pods: Cache,
        workloads: Workloads,
        database: Database,
        hooks: dict[str, mutators.Mutator],
        log: Callable[[str], None],
    ) -> None:
        self._api = api
        self._trials = trials
        self._pods = pods
        self._workloads = workloads
        self._database = database
        self._hooks = hooks
        self._log = log
        self._trouble: dict[Key, str] = {}
        self._since: dict[Key, float] = {}
        self._numbering: defaultdict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)

    async def reconcile(self, key: Key) -> float | None:
        """Take the next step of a Trial; returns the seconds after which to look again, if nothing changes.

        Raises:
            Trouble: the workload could not be made.
            Status, Unreachable, grpc.aio.AioRpcError: a read or write failed; nothing is lost by trying again.
        """
        trial = next(iter(self._trials.of(key)), None)
        if trial is None:
            self._forget(key)
            return None
        with metrics.SECONDS.time():
            seen = self._observe(key, trial)
            if not seen.wants_index:
                return await self._step(key, seen)
            # Two trials of one experiment must not get the same number.
            async with self._numbering[key.namespace, seen.experiment]:
                return await self._step(key, dataclasses.replace(seen, next_index=self._next_index(seen)))

    def _forget(self, key: Key) -> None:
        self._trouble.pop(key, None)
        self._since.pop(key, None)

    def _observe(self, key: Key, trial: JSON) -> Observed:
        kind = self._workloads.kind_of(trial["spec"].get("runSpec") or {})
        return Observed(
            trial=trial,
            now=dt.datetime.now(dt.UTC),
            workload=self._workloads.of(kind, key) if kind else None,
            pods=self._pods.of(key),
            kind_fault=self._workloads.fault(kind) if kind else _not_listed(trial),
            trouble=self._trouble.get(key, ""),
            waited=time.monotonic() - self._since[key] if key in self._since else 0.0,
        )

    def _next_index(self, seen: Observed) -> int:
        """One more than the highest number that a trial of the experiment has."""
        held = 0
        for key in self._trials:
            if key.namespace != seen.metadata["namespace"]:
                continue
            for trial in self._trials.of(key):
                metadata = trial["metadata"]
                if (metadata.get("labels") or {}).get(names.EXPERIMENT_LABEL) == seen.experiment:
                    text = (metadata.get("annotations") or {}).get(names.INDEX_ANNOTATION, "")
                    held = max(held, int(text) if text.isascii() and text.isdigit() else 0)
        return held + 1

    async def _step(self, key: Key, seen: Observed) -> float | None:
        while True:
            actions = plan(seen)
            match actions:
                case (ReadRows(),):
                    self._since.setdefault(key, time.monotonic())
                    seen = dataclasses.replace(seen, rows=await self._rows(key, seen))
                case (ReadLog() as read,):
                    seen = dataclasses.replace(seen, log=await self._read_log(key, read))
                case _:
                    return await self._perform(key, seen, actions)

    async def _perform(self, key: Key, seen: Observed, actions: tuple[Action, ...]) -> float | None:
        wait: float | None = None
        for action in actions:
            if isinstance(action, Wait):
                wait = action.seconds
                if action.settling:
                    self._since.setdefault(key, time.monotonic())
                continue
            try:
                await self._do(key, seen, action)
            except Status as status:
                if status.code != 409:
                    raise
                return 0.2  # decided on an old version: look again
            metrics.ACTIONS.labels(type(action).__name__).inc()
        return wait

    async def _do(self, key: Key, seen: Observed, action: Action) -> None:
        match action:
            case Annotate():
                await self._patch(key, _metadata_patch(seen, action))
            case PatchStatus():
                if any((seen.trial.get("status") or {}).get(k) != v for k, v in action.status.items()):
                    status = {**action.status, "lastReconcileTime": rfc3339(seen.now)}
                    await self._patch(key, {"metadata": _version(seen), "status": status}, "status")
            case Create():
                await self._create(key, seen, action.body)
            case DeleteWorkload():
                await self._delete(key, seen, action.uid)
            case DeleteRows():
                await self._database.forget(key.namespace, key.name)
            case Emit():
                await self._emit(seen.trial, action)
            case ReadRows() | ReadLog() | Wait():
                raise AssertionError(f"{action} is handled before")
            case _:
                assert_never(action)

    async def _patch(self, key: Key, body: JSON, subresource: str = "") -> None:
        path = path_of(names.API_VERSION, "trials", key.namespace, key.name, subresource)
        try:
            self._trials.put(await self._api.request("PATCH", path, body=body, content_type=_MERGE))
        except Status as status:
            if status.code != 404:  # deleted meanwhile: the watch says so
                raise

    async def _create(self, key: Key, seen: Observed, body: JSON) -> None:
        kind = self._workloads.kind_of(body)
        if kind is None:
            raise Trouble(_not_listed(seen.trial))
        try:
            body = mutators.apply(self._hooks, copy.deepcopy(body), copy.deepcopy(seen.trial))
            made = await self._api.request("POST", self._path(kind, key, name=False), body=body)
        except mutators.MutatorError as error:
            raise self._troubled(key, str(error)) from None
        except Status as status:
            made = await self._not_created(key, kind, seen, status)
        self._trouble.pop(key, None)
        self._workloads.put(kind, made)

    async def _not_created(self, key: Key, kind: Kind, seen: Observed, status: Status) -> JSON:
        """Give the workload that is there already when it is the trial's; else say why there is none.

        Raises:
            Trouble: there is none.
        """
        if status.code == 404:
            raise self._troubled(
                key,
                f"{kind} is not installed in this cluster, or namespace {key.namespace} is gone: {status}",
            )
        if status.code == 409 and status.reason == "AlreadyExists":
            there = await self._api.request("GET", self._path(kind, key))
            owners = there["metadata"].get("ownerReferences") or ()
            if any(owner.get("uid") == seen.metadata["uid"] for owner in owners):
                return there
            raise self._troubled(
                key,
                f"{kind} {key.namespace}/{key.name} exists and is not this trial's: delete it, or name the trial otherwise",
            )
        raise self._troubled(
            key, f"{kind} {key.namespace}/{key.name} could not be made: {status.message or status}"
        )

    def _troubled(self, key: Key, why: str) -> Trouble:
        """Remember why, for the Trial to say it."""
        self._trouble[key] = why
        return Trouble(why)

    def _path(self, kind: Kind, key: Key, *, name: bool = True) -> str:
        plural = self._workloads.resource(kind)
        return path_of(kind.api_version, plural, key.namespace, key.name if name else "")

    async def _delete(self, key: Key, seen: Observed, uid: str) -> None:
        """Delete the workload, its dependents first; one that is gone or was made anew is none of ours."""
        kind = self._workloads.kind_of(seen.workload or {})
        if kind is None:
            return
        body = {"propagationPolicy": "Foreground", "preconditions": {"uid": uid}}
        try:
            there = await self._api.request("DELETE", self._path(kind, key), body=body)
        except Status as status:
            if status.code not in {404, 409}:
                raise
            return
        if there.get("kind") == kind.kind:
            self._workloads.put(kind, there)

    async def _rows(self, key: Key, seen: Observed) -> Any:
        objective = Objective.model_validate(seen.spec.get("objective") or {})
        return await self._database.rows(key.namespace, key.name, objective.strategies)

    async def _read_log(self, key: Key, read: ReadLog) -> str:
        path = path_of("v1", "pods", key.namespace, read.pod, "log")
        query = {"container": read.container, "tailLines": str(_LOG_LINES), "limitBytes": str(1 << 20)}
        try:
            return (await self._api.text(path, query)).strip()[-_LOG_BYTES:]
        except (Status, Unreachable):
            return ""  # the pod is gone, or its node: the failure is told without

    async def _emit(self, trial: JSON, emit: Emit) -> None:
        metadata = trial["metadata"]
        now = dt.datetime.now(dt.UTC)
        body = {
            "metadata": {
                "name": f"{metadata['name'][:230]}.{secrets.token_hex(8)}",
                "namespace": metadata["namespace"],
            },
            "involvedObject": {
                "apiVersion": names.API_VERSION,
                "kind": "Trial",
                **{k: metadata[k] for k in ("namespace", "name", "uid", "resourceVersion") if k in metadata},
            },
            "type": emit.type,
            "reason": emit.reason,
            "message": emit.message[:_MESSAGE_CHARACTERS],
            "source": {"component": COMPONENT},
            "firstTimestamp": rfc3339(now),
            "lastTimestamp": rfc3339(now),
            "count": 1,
        }
        try:
            await self._api.request("POST", path_of("v1", "events", metadata["namespace"]), body=body)
        except (Status, Unreachable) as error:
            self._log(f"Event {emit.reason} of {metadata['namespace']}/{metadata['name']}: {error}")


def _version(seen: Observed) -> JSON:
    return {"resourceVersion": seen.metadata["resourceVersion"]}


def _metadata_patch(seen: Observed, action: Annotate) -> JSON:
    metadata = _version(seen)
    if action.annotations:
        metadata["annotations"] = action.annotations
    held = list(seen.metadata.get("finalizers") or ())
    if action.finalizer is True and names.FINALIZER not in held:
        metadata["finalizers"] = [*held, names.FINALIZER]
    elif action.finalizer is False:
        metadata["finalizers"] = [finalizer for finalizer in held if finalizer != names.FINALIZER]
    return {"metadata": metadata}


def _not_listed(trial: JSON) -> str:
    run = trial["spec"].get("runSpec") or {}
    return (
        f"{run.get('kind')} ({run.get('apiVersion')}) is not among the controller's trialResources: add it to the chart's "
        "value of that name"
    )
