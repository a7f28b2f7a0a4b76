"""The loop around the plan, on a cluster in memory: conflicts, outages, files, probes."""

import asyncio
import contextlib
import datetime as dt
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from certs import issue, pem, plan, serve
from certs.cluster import Look
from trialtap.kube import Status, Unreachable

SETTINGS = plan.Settings(("webhook",), lead=0.0)


class MemoryCluster:
    """A Secret and one configuration of two webhooks; faults on demand."""

    def __init__(self) -> None:
        self.secret: dict[str, bytes] | None = None
        self.bundles = {"a": b"", "b": b""}
        self.faults: list[Exception] = []
        self.writes: list[str] = []
        self.changed: Callable[[], None] = lambda: None

    async def look(self, memory: plan.Memory, *, leading: bool) -> Look:
        await asyncio.sleep(0)
        observed = plan.Observed(
            secret=None if self.secret is None else dict(self.secret),
            configurations={"configuration": dict(self.bundles)},
            identities=frozenset({"1"}),
            leading=leading,
            memory=memory,
        )
        return Look(observed, {}, dt.datetime.now(dt.UTC))

    async def perform(self, action: plan.Action, _look: Look) -> None:
        await asyncio.sleep(0)
        if self.faults:
            raise self.faults.pop(0)
        self.writes.append(type(action).__name__)
        match action:
            case plan.MakeSecret():
                self.secret = {}
            case plan.WriteSecret():
                self.secret = dict(action.data)
            case plan.Publish():
                self.bundles = dict.fromkeys(self.bundles, action.bundle)

    async def follow(self, changed: Callable[[], None], _log: Callable[[str], None]) -> None:
        self.changed = changed
        await asyncio.Event().wait()


class HeldLease:
    held = True

    async def run(self, changed: Callable[[], None], _log: Callable[[str], None]) -> None:
        changed()
        await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def running(cluster: MemoryCluster, out: Path) -> AsyncIterator[serve.Keeper]:
    keeper = serve.Keeper(cast(Any, cluster), cast(Any, HeldLease()), out, SETTINGS)
    task = asyncio.create_task(keeper.run())
    try:
        yield keeper
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)


async def test_from_nothing_to_a_trusted_certificate_in_files(tmp_path: Path) -> None:
    cluster = MemoryCluster()
    async with running(cluster, tmp_path) as keeper:
        assert not keeper.ready()
        await until(keeper.ready)
    # Published before it signs, and one write at a time.
    assert cluster.writes == ["MakeSecret", "WriteSecret", "Publish", "WriteSecret"]
    served = issue.read((tmp_path / "tls.crt").read_bytes())
    (trusted,) = pem.authorities(cluster.bundles["a"])
    assert pem.issued(served, plan.Pair(trusted.pem, b""))
    assert (tmp_path / "ca.crt").read_bytes() == cluster.bundles["a"] == cluster.bundles["b"]
    assert (tmp_path / "tls.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "fault",
    [
        Status(409, "Conflict", "the object has been modified"),
        Status(403, "Forbidden", "no"),
        Status(500, "InternalError", "etcd"),
        Unreachable("no answer within 5.0 s"),
        RuntimeError("a fault of our own"),
    ],
)
async def test_a_write_that_fails_is_decided_anew(tmp_path: Path, fault: Exception) -> None:
    cluster = MemoryCluster()
    cluster.faults = [fault]
    async with running(cluster, tmp_path) as keeper:
        await until(keeper.ready)
        failures = keeper.metrics.registry.get_sample_value("trialtap_certificates_failures_total")
    assert failures == (0 if isinstance(fault, Status) and fault.code == 409 else 1)


async def test_a_wiped_bundle_is_put_back_as_soon_as_it_is_told(tmp_path: Path) -> None:
    cluster = MemoryCluster()
    async with running(cluster, tmp_path) as keeper:
        await until(keeper.ready)
        before, cluster.bundles = cluster.bundles, {"a": b"", "b": b""}
        cluster.changed()
        await until(lambda: cluster.bundles == before)


async def test_probes_and_metrics_say_how_it_stands(tmp_path: Path) -> None:
    cluster = MemoryCluster()
    async with (
        running(cluster, tmp_path) as keeper,
        serve.health(keeper, "127.0.0.1", 0) as address,
        httpx.AsyncClient(base_url=f"http://{address}") as client,
    ):
        assert (await client.get("/healthz")).status_code == 200
        await until(keeper.ready)
        assert (await client.get("/readyz")).text == "ok\n"
        text = (await client.get("/metrics")).text
    assert 'trialtap_certificate_expiry_timestamp_seconds{certificate="serving"}' in text
    assert 'trialtap_certificates_writes_total{action="Publish"} 1.0' in text
    assert "trialtap_certificates_leading 1.0" in text


async def test_without_a_certificate_a_replica_is_not_ready(tmp_path: Path) -> None:
    cluster = MemoryCluster()
    keeper = serve.Keeper(cast(Any, cluster), cast(Any, HeldLease()), tmp_path, SETTINGS)
    async with (
        serve.health(keeper, "127.0.0.1", 0) as address,
        httpx.AsyncClient(base_url=f"http://{address}") as client,
    ):
        answer = await client.get("/readyz")
    assert answer.status_code == 503
    assert "no valid certificate yet" in answer.text
