"""A Lease that is gone is made again, but not before it is clear that nobody is taking all of ours away."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from trialtap import lease
from trialtap.kube import API

RECORD = SimpleNamespace(
    holder_identity="me",
    lease_duration=30,
    acquire_time="2026-01-01 00:00:00+00:00",
    renew_time="2026-01-01 00:00:00+00:00",
)


class Recorder:
    """An API server that notes what is asked of it."""

    client = None

    def __init__(self) -> None:
        self.made = 0

    async def request(self, *_: Any, **__: Any) -> dict[str, Any]:
        self.made += 1
        return {}


async def test_a_missing_lease_is_made_again_after_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(lease.time, "monotonic", lambda: now)
    api = Recorder()
    lock = lease._Lock(cast(API, api), "ns", "l", "me")
    monkeypatch.setattr(lock, "time_str_to_iso", str, raising=False)
    answers = []
    for _ in range(14):
        answers.append(await lock.create("l", "ns", RECORD))
        now += 5
    assert answers == [False] * 12 + [True] * 2
    assert api.made == 2


async def test_a_lease_that_was_there_meanwhile_starts_the_count_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr(lease.time, "monotonic", lambda: now)
    api = Recorder()
    lock = lease._Lock(cast(API, api), "ns", "l", "me")
    for _ in range(10):
        assert not await lock.create("l", "ns", RECORD)
        now += 5
    now += 300
    assert not await lock.create("l", "ns", RECORD)
    assert api.made == 0
