"""One writer at a time: holding a Lease of the chart's, by the election of `kubernetes.aio`.

A holder that was paused may still believe in its Lease for a moment; that is why each write also names
the version of the object that it was decided on.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any, Final

import aiohttp
from kubernetes.aio.leaderelection import electionconfig, leaderelection
from kubernetes.aio.leaderelection.resourcelock.leaselock import LeaseLock

from trialtap.kube import API, Status, Unreachable, path_of

_DURATION: Final = 30
_RENEW_DEADLINE: Final = 20
_RETRY: Final = 5
_MISSING: Final = 60
"""How long a Lease stays missing before it is made again: one that `helm uninstall` took away must not come
back by a replica that is still ending, or the next install finds it there."""
_RELEASE_SECONDS: Final = 2.0


class Lease:
    """Whether this process is the one that writes."""

    def __init__(self, api: API, namespace: str, name: str, identity: str) -> None:
        self._lock = _Lock(api, namespace, name, identity)
        self._term: asyncio.Task[None] | None = None
        self.held = False

    async def run(self, changed: Callable[[], None], log: Callable[[str], None]) -> None:
        """Stand for election for ever; `changed` is called when the Lease was won."""
        # It logs a traceback for each lost race; who holds the Lease is said here.
        logging.getLogger("kubernetes.aio.leaderelection").setLevel(logging.CRITICAL)

        async def lead() -> None:
            self._term, self.held = asyncio.current_task(), True
            log(f"holds the Lease {self._lock.name}")
            changed()
            await asyncio.Event().wait()

        config = electionconfig.Config(
            self._lock,
            lease_duration=_DURATION,
            renew_deadline=_RENEW_DEADLINE,
            retry_period=_RETRY,
            onstarted_leading=lead,
            onstopped_leading=_nothing,
        )
        while True:
            try:
                await leaderelection.LeaderElection(config).run()
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                log(f"Lease {self._lock.name}: {type(error).__name__}: {error}; trying again")
            except asyncio.CancelledError:
                if self.held:
                    # Told to stop: the next holder need not wait until this term has run out.
                    await self._lock.release()
                raise
            finally:
                # A connection that breaks ends the election, but not what it started.
                was_held, self.held = self.held, False
                if self._term is not None:
                    self._term.cancel()
            if was_held:
                log(f"lost the Lease {self._lock.name}")
            await asyncio.sleep(_RETRY)


async def _nothing() -> None:
    """The term's end is seen by the election's return."""


class _Lock(LeaseLock):
    """A Lease that is made, when somebody deleted it, by server-side apply: RBAC can hold that to a name."""

    def __init__(self, api: API, namespace: str, name: str, identity: str) -> None:
        super().__init__(name, namespace, identity, api.client)
        self._api = api
        self._missing_since = self._missed_at = -float(_MISSING)

    async def create(self, name: str, namespace: str, election_record: Any) -> bool:
        """Make the Lease as ours; False while it is not missing for long, when another was faster, or it is forbidden."""
        now = time.monotonic()
        if now - self._missed_at > _RETRY * 4:
            self._missing_since = now
        self._missed_at = now
        if now - self._missing_since < _MISSING:
            return False
        spec = {
            "holderIdentity": election_record.holder_identity,
            "leaseDurationSeconds": int(election_record.lease_duration),
            "acquireTime": self.time_str_to_iso(election_record.acquire_time),
            "renewTime": self.time_str_to_iso(election_record.renew_time),
        }
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "namespace": namespace},
            "spec": spec,
        }
        path = path_of("coordination.k8s.io/v1", "leases", namespace, name)
        try:
            # The manager is this replica: another one's apply conflicts instead of taking the Lease over.
            await self._api.request(
                "PATCH",
                path,
                query={"fieldManager": self.identity},
                body=body,
                content_type="application/apply-patch+yaml",
            )
        except (Status, Unreachable):
            return False
        return True

    async def release(self) -> None:
        """Give the Lease up, if it is still ours; a failure is no more than a term that runs out."""
        operations = [
            {"op": "test", "path": "/spec/holderIdentity", "value": self.identity},
            {"op": "remove", "path": "/spec/holderIdentity"},
        ]
        with contextlib.suppress(Status, Unreachable):
            await self._api.request(
                "PATCH",
                path_of("coordination.k8s.io/v1", "leases", self.namespace, self.name),
                body=operations,
                content_type="application/json-patch+json",
                seconds=_RELEASE_SECONDS,
            )
