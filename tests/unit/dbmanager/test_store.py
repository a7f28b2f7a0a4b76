"""The store, the same on SQLite, PostgreSQL and MariaDB."""

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import create_engine, text

from dbmanager import store as store_module
from dbmanager.rows import (
    AmbiguousError,
    BehindError,
    NewRow,
    Origin,
    Outcome,
    RefusedError,
    Report,
    Row,
    Selection,
    TrialKey,
    database_time,
)
from dbmanager.store import STREAM_KEPT, Store, now_ms
from trialtap.points import parse_time


def rows(*values: str, name: str = "loss", second: int = 0) -> list[NewRow]:
    return [
        NewRow(*database_time(f"2026-01-01T00:00:{second + index:02d}.5Z"), name, value, index)
        for index, value in enumerate(values)
    ]


def put(
    store: Store,
    values: Sequence[NewRow | None],
    trial: str = "trial",
    namespace: str = "ns",
    stream: str | None = None,
    **origin: int | bool | str,
) -> Outcome:
    where = Origin(namespace, str(origin.pop("pod", "pod")), stream or f"{namespace}-{trial}", **origin)  # type: ignore[arg-type]
    return store.report(Report(trial, values, where, skipped=sum(value is None for value in values))).result(
        30
    )


def put_unknown(store: Store, values: Sequence[NewRow], trial: str = "trial") -> Outcome:
    return store.report(Report(trial, values)).result(30)


def read(store: Store, trial: str = "trial", namespace: str | None = None, **selection: object) -> list[Row]:
    chunks = store.rows(Selection(trial, namespace, **selection))  # type: ignore[arg-type]
    return list(itertools.chain.from_iterable(chunks))


def values(found: Sequence[Row]) -> list[str]:
    return [row.value for row in found]


# Streams.


def test_a_report_sent_again_stores_nothing_twice(store: Store) -> None:
    assert put(store, rows("1", "2", "3")) == Outcome(3, 3)
    assert put(store, rows("1", "2", "3")) == Outcome(0, 3)
    assert values(read(store)) == ["1", "2", "3"]


def test_a_report_that_overlaps_stores_what_is_new(store: Store) -> None:
    put(store, rows("1", "2", "3"))
    assert put(store, rows("3", "4", "5", second=2), first=2) == Outcome(2, 5)
    assert values(read(store)) == ["1", "2", "3", "4", "5"]


def test_an_old_report_does_not_move_the_stream_back(store: Store) -> None:
    put(store, rows("1", "2", "3"))
    assert put(store, rows("1")) == Outcome(0, 3)


def test_a_report_ahead_of_its_stream_stores_nothing_and_names_the_next_ordinal(store: Store) -> None:
    put(store, rows("1"))
    with pytest.raises(BehindError, match="stored up to ordinal 1, the report begins at 5") as error:
        put(store, rows("6"), first=5)
    assert error.value.next == 1
    assert values(read(store)) == ["1"]


def test_a_declared_gap_goes_on_from_there_and_counts_what_was_lost(store: Store) -> None:
    put(store, rows("1"))
    assert put(store, rows("6", second=5), first=5, gap=True) == Outcome(1, 6, lost=4)
    assert put(store, rows("6", second=5), first=5, gap=True) == Outcome(0, 6)
    assert values(read(store)) == ["1", "6"]


def test_a_gap_that_is_none_loses_nothing(store: Store) -> None:
    put(store, rows("1", "2"))
    assert put(store, rows("2", "3", second=1), first=1, gap=True) == Outcome(1, 3)


def test_rows_without_origin_are_appended_as_they_come(store: Store) -> None:
    assert put_unknown(store, rows("1")) == Outcome(1, 0)
    put_unknown(store, rows("1"))
    assert values(read(store)) == ["1", "1"]


def test_a_row_without_time_takes_an_ordinal_and_stores_nothing(store: Store) -> None:
    batch = [*rows("1"), None, *rows("3", second=2)]
    assert put(store, batch) == Outcome(2, 3)
    assert put(store, batch[1:], first=1) == Outcome(0, 3)
    assert put(store, [None, *rows("5", second=4)], first=3) == Outcome(1, 5)
    assert values(read(store)) == ["1", "3", "5"]


def test_a_heartbeat_keeps_the_stream_alive_and_stores_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, rows("1"))
    before = store.streams("trial")[0]
    store._writer._clock = lambda: before.seen_at + 20_000
    assert put(store, [], first=1) == Outcome(0, 1)
    (after,) = store.streams("trial")
    assert (after.seen_at, after.next, after.ended_at) == (before.seen_at + 20_000, 1, None)


def test_the_end_of_a_stream_is_kept_and_later_rows_are_added(store: Store) -> None:
    put(store, rows("1"), end=True)
    ended = store.streams("trial")[0].ended_at
    assert ended is not None
    put(store, rows("2", second=1), first=1)
    put(store, [], first=2, end=True)
    (stream,) = store.streams("trial")
    assert (stream.ended_at, stream.next) == (ended, 2)


def test_a_stream_belongs_to_one_trial(store: Store) -> None:
    put(store, rows("1"), stream="s")
    for trial, namespace in (("other", "ns"), ("trial", "elsewhere")):
        with pytest.raises(RefusedError, match="s belongs to trial trial of namespace ns"):
            put(store, rows("1"), trial, namespace, stream="s")
    assert values(read(store)) == ["1"]


def test_reports_of_many_streams_at_once_are_all_there_once(store: Store) -> None:
    def collector(number: int) -> None:
        for first in range(0, 50, 5):
            batch = rows(*(str(first + index) for index in range(5)))
            for _ in range(2):
                put(store, batch, trial=f"trial-{number % 3}", stream=f"s{number}", first=first)

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(collector, range(20)))
    for trial in range(3):
        found = read(store, f"trial-{trial}", by_id=True)
        by_stream = {
            stream: [row.value for row in found if row.stream == stream]
            for stream in {r.stream for r in found}
        }
        assert sorted(by_stream) == sorted(f"s{number}" for number in range(20) if number % 3 == trial)
        assert all(one == [str(index) for index in range(50)] for one in by_stream.values())


# Deleting.


def test_a_late_flush_does_not_raise_the_dead(store: Store) -> None:
    put(store, rows("1", "2"))
    assert store.delete("trial") == 2
    assert put(store, rows("3", second=3), first=2) == Outcome(0, 3, tombstone=True)
    assert put(store, rows("9", second=9), first=8) == Outcome(0, 9, tombstone=True)
    assert read(store) == []
    assert store.trials() == []
    assert store.streams("trial") == []


def test_a_trial_of_the_same_name_begins_anew_after_a_delete(store: Store) -> None:
    put(store, rows("1"), stream="old")
    store.delete("trial", "ns")
    put(store, rows("2"), stream="new")
    assert values(read(store)) == ["2"]


def test_delete_by_namespace_takes_that_namespace_only(store: Store) -> None:
    put(store, rows("1"), namespace="a")
    put(store, rows("2"), namespace="b")
    assert store.delete("trial", "a") == 1
    assert values(read(store)) == ["2"]
    assert store.trials() == [TrialKey("b", "trial")]


def test_delete_without_namespace_that_fits_several_deletes_nothing(store: Store) -> None:
    put(store, rows("1"), namespace="a")
    put(store, rows("2"), namespace="b")
    with pytest.raises(AmbiguousError, match="namespaces a, b"):
        store.delete("trial")
    assert values(read(store, namespace="a") + read(store, namespace="b")) == ["1", "2"]


# Namespaces.


def test_a_read_without_namespace_is_answered_when_one_namespace_holds_the_trial(store: Store) -> None:
    put(store, rows("1"), namespace="a")
    put_unknown(store, rows("2", second=1))
    assert values(read(store)) == ["1", "2"]
    put(store, rows("3"), namespace="b")
    with pytest.raises(AmbiguousError) as error:
        read(store)
    assert error.value.namespaces == ("a", "b")
    assert values(read(store, namespace="a")) == ["1"]
    assert values(read(store, namespace="b")) == ["3"]
    assert store.namespaces("trial") == ["a", "b"]


def test_rows_without_namespace_are_those_of_the_only_namespace(store: Store) -> None:
    put_unknown(store, rows("1"))
    assert values(read(store, namespace="anywhere")) == ["1"]
    put(store, rows("2", second=1), namespace="")
    put(store, rows("3", second=2), namespace="a")
    assert values(read(store, namespace="a")) == ["1", "2", "3"]
    assert values(read(store, namespace="b")) == []
    assert len(store.streams("trial", "a")) == 2
    assert store.delete("trial", "a") == 3
    assert store.streams("trial") == []


def test_a_writer_without_ordinals_whose_namespace_is_known_holds_its_trial(store: Store) -> None:
    for value in ("1", "2"):
        store.report(Report("trial", rows(value), namespace="a")).result(30)
    store.report(Report("trial", rows("3"), namespace="b")).result(30)
    assert store.namespaces("trial") == ["a", "b"]
    assert values(read(store, namespace="a")) == ["1", "2"]
    assert all(stream.ended_at is not None for stream in store.streams("trial"))
    assert store.delete("trial", "a") == 2
    assert store.namespaces("trial") == ["b"]
    store.report(Report("trial", rows("4"), namespace="a")).result(30)  # no late flush: it has no stream
    assert values(read(store, namespace="a")) == ["4"]


def test_trials_are_listed_by_namespace_and_name(store: Store) -> None:
    put(store, rows("1"), "b", "ns2")
    put(store, rows("1"), "a", "ns2")
    put(store, rows("1"), "a", "ns1")
    put_unknown(store, rows("1"), "A")
    put_unknown(store, rows("1"), "a")
    assert store.trials() == [
        TrialKey(None, "A"),
        TrialKey("ns1", "a"),
        TrialKey("ns2", "a"),
        TrialKey("ns2", "b"),
    ]
    assert store.trials("ns2") == [TrialKey("ns2", "a"), TrialKey("ns2", "b")]


# Reading.


def test_rows_come_in_the_order_of_time_nanoseconds_and_arrival(store: Store) -> None:
    moments = [
        ("2026-01-01T00:00:00.000001002Z", "c"),
        ("2026-01-01T00:00:00.000001001Z", "b"),
        ("2026-01-01T00:00:00.000001Z", "a"),
        ("0001-01-01T00:00:00Z", "first"),
        ("9999-12-31T23:59:59.999999999Z", "last"),
        ("2026-01-01T00:00:00.000001002Z", "d"),
    ]
    put(store, [NewRow(*database_time(at), "m", value) for at, value in moments])
    found = read(store)
    assert values(found) == ["first", "a", "b", "c", "d", "last"]
    assert [row.rfc3339 for row in found] == [
        "0001-01-01T00:00:00Z",
        "2026-01-01T00:00:00.000001Z",
        "2026-01-01T00:00:00.000001001Z",
        "2026-01-01T00:00:00.000001002Z",
        "2026-01-01T00:00:00.000001002Z",
        "9999-12-31T23:59:59.999999999Z",
    ]
    assert values(read(store, by_id=True)) == [value for _, value in moments]
    assert found[1].nanoseconds == parse_time(moments[2][0])


def test_times_of_katibs_rows_without_nanoseconds_sort_among_ours(store: Store) -> None:
    put(store, [NewRow(*database_time("2026-01-01T00:00:00.000001001Z"), "m", "ours")])
    with create_engine(store.database.readers.url).begin() as connection:
        connection.execute(
            text(
                "INSERT INTO observation_logs (trial_name, time, metric_name, value) "
                "VALUES ('trial', '2026-01-01 00:00:00.000001', 'm', 'katib')"
            )
        )
    assert values(read(store)) == ["katib", "ours"]


SELECTIONS = {
    "a metric": ({"metrics": ["acc"]}, ["a0", "a1"]),
    "two metrics": ({"metrics": ["acc", "loss"]}, ["l0", "a0", "l1", "a1"]),
    "a metric that is not there": ({"metrics": ["ACC"]}, []),
    "from a time, inclusive": (
        {"start": parse_time("2026-01-01T00:00:01.000000002Z")},
        ["a0", "l1", "a1", "z"],
    ),
    "from just after it": ({"start": parse_time("2026-01-01T00:00:01.000000003Z")}, ["l1", "a1", "z"]),
    "up to a time, inclusive": ({"end": parse_time("2026-01-01T00:00:01.000000002Z")}, ["l0", "a0"]),
    "up to just before it": ({"end": parse_time("2026-01-01T00:00:01.000000001Z")}, ["l0"]),
    "between": (
        {"start": parse_time("2026-01-01T00:00:01Z"), "end": parse_time("2026-01-01T00:00:02Z")},
        ["a0", "l1"],
    ),
    "steps": ({"first_step": 1, "last_step": 1}, ["l1", "a1"]),
    "from a step": ({"first_step": 1}, ["l1", "a1"]),
    "a limit": ({"limit": 2}, ["l0", "a0"]),
    "a stream": ({"streams": ["ns-trial"]}, ["l0", "a0", "l1", "a1", "z"]),
    "another stream": ({"streams": ["other"]}, []),
}


@pytest.mark.parametrize(("selection", "expected"), SELECTIONS.values(), ids=SELECTIONS.keys())
def test_a_selection_gives_what_fits_all_of_it(
    store: Store, selection: dict[str, object], expected: list[str]
) -> None:
    put(
        store,
        [
            NewRow(*database_time("2026-01-01T00:00:00Z"), "loss", "l0", 0),
            NewRow(*database_time("2026-01-01T00:00:01.000000002Z"), "acc", "a0", 0),
            NewRow(*database_time("2026-01-01T00:00:02Z"), "loss", "l1", 1),
            NewRow(*database_time("2026-01-01T00:00:03Z"), "acc", "a1", 1),
            NewRow(*database_time("2026-01-01T00:00:04Z"), "z", "z"),
        ],
    )
    assert values(read(store, **selection)) == expected


def test_rows_after_an_id_are_the_news(store: Store) -> None:
    put(store, rows("1", "2"))
    seen = read(store, by_id=True)
    put(store, rows("3", second=5), first=2)
    assert values(read(store, after=seen[-1].id, by_id=True)) == ["3"]


def test_a_long_trial_is_read_in_chunks(store: Store) -> None:
    batch = [NewRow(*database_time("2026-01-01T00:00:00Z"), "m", str(index)) for index in range(5001)]
    put(store, batch)
    chunks = list(store.rows(Selection("trial")))
    assert [len(chunk) for chunk in chunks] == [2000, 2000, 1001]
    assert values(list(itertools.chain.from_iterable(chunks))) == [row.value for row in batch]


def test_rows_of_one_microsecond_are_ordered_over_the_edge_of_a_chunk(store: Store) -> None:
    def row(microsecond: int, ns: int) -> NewRow:
        return NewRow(f"2026-01-01 00:00:00.{microsecond:06d}", ns, "m", f"{microsecond}.{ns}")

    batch = (
        [row(0, 0)] * 1990 + [row(1, 999 - ns) for ns in range(20)] + [row(2, ns % 2) for ns in range(3000)]
    )
    put(store, batch)
    expected = sorted(batch, key=lambda row: (row.time, row.ns))
    assert values(read(store)) == [row.value for row in expected]


def test_a_reader_that_leaves_early_leaves_the_store_usable(store: Store) -> None:
    put(store, [NewRow(*database_time("2026-01-01T00:00:00Z"), "m", str(index)) for index in range(5001)])
    for _ in range(40):  # more often than there are connections
        reader = store.rows(Selection("trial"))
        assert len(next(iter(reader))) == 2000
        reader.close()  # type: ignore[attr-defined]
    assert len(read(store)) == 5001


def test_the_summary_counts_numbers_and_remembers_the_latest(store: Store) -> None:
    put(store, [*rows("0.5", "nan", "-1", "1e3", "inf", "unavailable"), *rows("Genotype(x)", name="arch")])
    arch, loss = store.summary("trial")
    assert (loss.name, loss.count, loss.min, loss.max, loss.latest) == ("loss", 6, "-1", "1e3", "unavailable")
    assert (loss.first_time, loss.last_time) == ("2026-01-01T00:00:00.5Z", "2026-01-01T00:00:05.5Z")
    assert (loss.first_step, loss.last_step) == (0, 5)
    assert (arch.count, arch.min, arch.max, arch.latest) == (1, None, None, "Genotype(x)")


# What is kept, byte by byte.

TEXTS = {
    "four bytes of UTF-8": "😀𝛼",
    "combining and right to left": "e\u0301 שלום",
    "a tab, a newline, a carriage return": "a\tb\nc\rd",
    "a backslash and what COPY escapes": "\\N \\. \\",
    "quotes and percent signs": "'\"`%s%%(x)s;--",
    "a blank at the end": "x ",
    "255 characters of four bytes": "𝛼" * 255,
    "control characters": "\x01\x1a\x7f",
}


@pytest.mark.parametrize("kept", TEXTS.values(), ids=TEXTS.keys())
def test_text_comes_back_as_it_went_in(store: Store, kept: str) -> None:
    row = NewRow(*database_time("2026-01-01T00:00:00Z"), kept, kept, -(2**63))
    store.report(Report(kept, [row], Origin(kept, kept, "s"))).result(30)
    (found,) = read(store, kept, kept, metrics=[kept])
    assert (found.name, found.value, found.namespace, found.step) == (kept, kept, kept, -(2**63))
    assert store.streams(kept)[0].pod == kept
    assert store.delete(kept) == 1


def test_the_longest_value_is_kept_whole(store: Store) -> None:
    longest = "é" * 32_767 + "x"
    put(store, rows(longest))
    assert values(read(store)) == [longest]


def test_names_are_compared_byte_by_byte(store: Store) -> None:
    names = ["loss", "Loss", "loss ", "löss", "LOSS", "losß", "lo\u0308ss"]
    for index, name in enumerate(names):
        put(store, rows(str(index), name=name), trial=name, stream=f"s{index}")
    assert [values(read(store, name, metrics=[name])) for name in names] == [
        [str(i)] for i in range(len(names))
    ]
    assert sorted(key.name for key in store.trials()) == sorted(names)
    assert store.delete("loss") == 1
    assert [len(read(store, name)) for name in names] == [0, 1, 1, 1, 1, 1, 1]


# Purging.


def test_streams_without_rows_are_forgotten_30_days_after_they_were_heard_of(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, rows("1"), "deleted")
    put(store, rows("1"), "kept")
    store.delete("deleted")
    assert store.purge() == (0, 0)
    now = now_ms()
    monkeypatch.setattr(store_module, "now_ms", lambda: now + STREAM_KEPT + 1000)
    assert store.purge() == (0, 1)
    assert store.trials() == [TrialKey("ns", "kept")]


def test_retention_deletes_trials_nobody_wrote_to_for_that_long(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, rows("1", "2"), "old")
    put_unknown(store, rows("1"), "old-katib")
    put_unknown(store, [NewRow(*database_time("0001-01-01T00:00:00Z"), "loss", "unavailable")], "unavailable")
    day = 86_400_000
    now = now_ms() + 400 * day
    monkeypatch.setattr(store_module, "now_ms", lambda: now)
    store._writer._clock = lambda: now
    put(store, rows("1"), "new")  # its times are old, its report is not
    assert store.purge(30) == (3, 1)
    assert [key.name for key in store.trials()] == ["unavailable", "new"]
