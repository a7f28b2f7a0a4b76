"""Retention, readiness and flags, without a server."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health

from dbmanager import metrics, operations
from dbmanager.__main__ import address, main, parser
from dbmanager.bus import Bus
from dbmanager.rows import UnavailableError
from trialtap.messages import DB_MANAGER


class Purges:
    """A store whose purge answers what it is given, one after the other."""

    def __init__(self, *answers: Any) -> None:
        self.answers: Iterator[Any] = iter(answers)
        self.asked: list[float | None] = []

    def purge(self, keep_days: float | None) -> tuple[int, int]:
        self.asked.append(keep_days)
        answer = next(self.answers, None)
        if answer is None:
            raise asyncio.CancelledError
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]


def test_retention_goes_on_after_the_database_was_away(caplog: pytest.LogCaptureFixture) -> None:
    store = Purges((5, 1), UnavailableError("the database did not answer"), (0, 0))
    counter = metrics.ROWS_DELETED.labels("retention")
    before = counter._value.get()
    with caplog.at_level("INFO"), pytest.raises(asyncio.CancelledError):
        asyncio.run(operations.retain(store, 30.0, interval=0))  # type: ignore[arg-type]
    assert store.asked == [30.0] * 4
    assert counter._value.get() == before + 5
    assert "retention: 5 rows deleted, 1 streams forgotten" in caplog.text
    assert "retention: the database did not answer" in caplog.text


class Pings:
    """A store that answers, or not."""

    failure: Exception | None = None

    def ping(self) -> None:
        if self.failure is not None:
            raise self.failure

    def waiting(self) -> int:
        return 7


def test_readiness_and_health_say_the_same() -> None:
    async def run() -> None:
        store, servicer = Pings(), health.aio.HealthServicer()
        watch = operations.Watch(store, servicer)  # type: ignore[arg-type]
        for failure, status in ((None, 1), (UnavailableError("gone"), 2), (None, 1)):
            store.failure = failure
            await watch.look()
            assert watch.failure == (str(failure) if failure else "")
            assert [servicer._server_status[name] for name in ("", DB_MANAGER)] == [status, status]
            assert metrics.UP._value.get() == (0 if failure else 1)
        assert metrics.WAITING._value.get() == 7

    asyncio.run(run())


def test_a_waiting_reader_is_woken_by_its_trials_only_and_leaves_nothing_behind() -> None:
    async def run() -> None:
        bus = Bus()
        with bus.subscribe(["a", "b"]) as both, bus.subscribe(["c"]) as other:
            bus.publish(["b"])
            assert await both.wait(5) is True
            assert await other.wait(0.01) is False
            await asyncio.to_thread(bus.publish, ["a", "c"])
            assert await both.wait(5) is True
            assert await other.wait(5) is True
            assert await both.wait(0.01) is False  # one wake for each publication
        bus.publish(["a"])
        assert not bus._waiting

    asyncio.run(run())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        (":6789", ("0.0.0.0", 6789)),  # noqa: S104 - as an argument
        ("[::1]:80", ("::1", 80)),
        ("localhost:65535", ("localhost", 65535)),
    ],
)
def test_an_address_is_host_and_port(text: str, expected: tuple[str, int]) -> None:
    assert address(text) == expected


def test_without_flags_it_is_where_katibs_programs_look_for_it() -> None:
    args = parser().parse_args([])
    assert (args.listen[1], args.auth, args.keep_days, args.listen_katib) == (6789, "none", None, None)


def test_without_a_database_it_says_how_to_name_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("TRIALTAP_DATABASE", "DB_NAME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SystemExit):
        main([])
    assert "--database: give a URL, for instance sqlite:////" in capsys.readouterr().err


def test_the_environment_names_the_database(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("TRIALTAP_DATABASE", f"sqlite:///{tmp_path}/no/such/folder/x.db")
    assert main([]) == 2
    assert (
        f"the folder {tmp_path}/no/such/folder of the SQLite file does not exist" in capsys.readouterr().err
    )
    monkeypatch.delenv("TRIALTAP_DATABASE")
    monkeypatch.setenv("DB_NAME", "oracle")
    assert main([]) == 2
    assert "DB_NAME: 'oracle' is neither mysql nor postgres" in capsys.readouterr().err
