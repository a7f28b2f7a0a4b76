"""Events on a Trial: few, in time, and never in the way."""

import pytest

from tests.support.objects import JSON, Counted, trial
from webhook import events
from webhook.cluster import Unreadable
from webhook.events import Events, event


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_one_event_per_trial_and_reason_in_ten_minutes() -> None:
    clock, cluster = Clock(), Counted()
    told = Events(cluster, clock)
    for name, reason in [("t1", "A"), ("t1", "A"), ("t1", "B"), ("t2", "A")]:
        told.warn(trial(name), reason, "because")
    await told.drain()
    said = [(e["involvedObject"]["name"], e["reason"]) for e in cluster.created]
    assert sorted(said) == [("t1", "A"), ("t1", "B"), ("t2", "A")]
    clock.now += 599
    told.warn(trial("t1"), "A", "because")
    await told.drain()
    assert len(cluster.created) == 3
    clock.now += 2
    told.warn(trial("t1"), "A", "because")
    await told.drain()
    assert len(cluster.created) == 4


async def test_an_event_that_could_not_be_sent_is_tried_again_by_the_next_refusal() -> None:
    class Failing(Counted):
        failing = True

        async def create(self, api_version: str, kind: str, namespace: str, body: JSON) -> JSON:
            if self.failing:
                raise Unreadable("403")
            return await super().create(api_version, kind, namespace, body)

    cluster = Failing()
    told = Events(cluster)
    told.warn(trial(), "A", "m")
    await told.drain()
    cluster.failing = False
    told.warn(trial(), "A", "m")
    await told.drain()
    assert len(cluster.created) == 1


async def test_a_flood_is_dropped_not_queued_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_PENDING", 5)
    monkeypatch.setattr(events, "MAX_REMEMBERED", 3)
    cluster = Counted()
    told = Events(cluster)
    for n in range(50):
        told.warn(trial(f"t{n}"), "A", "m")
    assert len(told._last) == 3
    await told.drain()
    assert len(cluster.created) == 5


def test_an_event_fits_what_the_api_server_takes() -> None:
    made = event(trial("t" * 253), "Reason", "x" * 5000)
    assert len(made["message"]) == 1024
    assert len(made["metadata"]["name"]) <= 253
    assert made["metadata"]["namespace"] == made["involvedObject"]["namespace"] == "hpo"
