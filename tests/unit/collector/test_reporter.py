"""The outbox against a server that refuses, loses answers and forgets: every good row once, in order."""

from hypothesis import given
from hypothesis import strategies as st

from collector.checkpoint import Position, Stream
from collector.outbox import MOST_BYTES, MOST_ROWS, Acknowledged, Barrier, Outbox, Request, Rewind
from collector.reporter import Refused
from trialtap.points import MetricPoint


def stream(name: str = "s") -> Stream:
    return Stream(name, name, Position(0, 0, 0, {}))


def rows(first: int, count: int) -> list[MetricPoint]:
    return [MetricPoint("m", str(i), i) for i in range(first, first + count)]


def at(ordinal: int) -> Position:
    return Position(0, ordinal, ordinal, {})


class Server:
    """Takes rows as the DB manager does; `bad` values are refused, with the batch that holds them."""

    def __init__(self, bad: set[str] | None = None, origins: bool = True) -> None:
        self.bad = bad or set()
        self.origins = origins
        self.stored: list[str] = []
        self.rows: list[tuple[str, str]] = []
        self.next: dict[str, int] = {}
        self.ended: set[str] = set()
        self.gaps = 0

    def take(self, request: Request) -> int:
        assert request.rows or request.end
        assert len(request.rows) <= MOST_ROWS
        if any(row.value in self.bad for row in request.rows):
            raise Refused("bad", "a row is bad")
        expected = self.next.get(request.stream.id, 0)
        if not self.origins:
            self.stored += [row.value for row in request.rows]
            return 0
        if request.first > expected:
            if not request.gap:
                raise Refused("rewind", "rows are missing", expected)
            self.gaps += request.first - expected
            expected = request.first
        new = [row.value for row in request.rows[expected - request.first :]]
        self.stored += new
        self.rows += [(request.stream.id, value) for value in new]
        self.next[request.stream.id] = max(expected, request.first + len(request.rows))
        if request.end:
            self.ended.add(request.stream.id)
        return self.next[request.stream.id]


def work(
    outbox: Outbox, server: Server, rounds: int = 10_000, lose: "list[bool] | None" = None
) -> list[object]:
    """Send until nothing is left or only refusals come."""
    events: list[object] = []
    waits = 0
    losses = iter(lose or [])
    for _ in range(rounds):
        request = outbox.next()
        if request is None or waits > 60:
            break
        if isinstance(request, Barrier):
            events.append(request)
            continue
        try:
            next_ = server.take(request)
            if next(losses, False):
                raise Refused("again", "the answer was lost")
        except Refused as refused:
            more, wait = outbox.refused(request, refused.kind, refused.next)
            waits += wait
            events += more
            continue
        waits = 0
        events += outbox.accepted(request, next_)
    return events


def test_batches_are_joined_up_to_the_limit_and_acknowledged_with_their_places() -> None:
    outbox, one = Outbox(), stream()
    for first in range(0, 20_000, 500):
        outbox.add(one, first, rows(first, 500), at(first + 500), False)
    assert not outbox.room()
    request = outbox.next()
    assert isinstance(request, Request)
    assert len(request.rows) == MOST_ROWS
    assert outbox.next() == request, "the same until it is answered"
    events = outbox.accepted(request, MOST_ROWS)
    assert events[-1] == Acknowledged(one, at(MOST_ROWS))
    assert outbox.room()


def test_requests_are_bounded_in_bytes() -> None:
    outbox, one = Outbox(), stream()
    outbox.add(one, 0, [MetricPoint("m", "x" * 10_000, i) for i in range(400)], at(400), False)
    sizes = []
    while isinstance(request := outbox.next(), Request):
        sizes.append(sum(len(row.value) for row in request.rows))
        outbox.accepted(request, request.first + len(request.rows))
    assert len(sizes) >= 4
    assert max(sizes) <= MOST_BYTES


def test_a_row_larger_than_a_request_goes_alone() -> None:
    outbox, one = Outbox(), stream()
    outbox.add(one, 0, [MetricPoint("m", "x" * 2 * MOST_BYTES, 0), *rows(1, 2)], at(3), False)
    request = outbox.next()
    assert isinstance(request, Request)
    assert len(request.rows) == 1


def test_a_bad_row_is_skipped_once_another_is_accepted_and_the_rest_is_stored() -> None:
    outbox, one, server = Outbox(), stream(), Server(bad={"37"})
    outbox.add(one, 0, rows(0, 100), at(100), False)
    events = work(outbox, server)
    assert server.stored == [str(i) for i in range(100) if i != 37]
    assert (outbox.skipped, server.gaps) == (1, 1)
    assert events[-1] == Acknowledged(one, at(100))


def test_a_run_of_bad_rows_is_skipped() -> None:
    outbox, one, server = Outbox(), stream(), Server(bad={str(i) for i in range(40, 60)})
    outbox.add(one, 0, rows(0, 100), at(100), False)
    work(outbox, server)
    assert server.stored == [str(i) for i in range(100) if not 40 <= i < 60]


def test_no_row_is_skipped_while_none_is_accepted() -> None:
    outbox, one = Outbox(), stream()
    outbox.add(one, 0, rows(0, 100), at(100), False)
    dead = Server(bad={str(i) for i in range(100)})
    work(outbox, dead)
    assert outbox.skipped == 0
    alive = Server()
    work(outbox, alive)
    assert alive.stored == [str(i) for i in range(100)]


def test_a_last_bad_row_waits_for_company() -> None:
    outbox, one, server = Outbox(), stream(), Server(bad={"0"})
    outbox.add(one, 0, rows(0, 1), at(1), False)
    work(outbox, server)
    assert (server.stored, outbox.skipped, len(outbox)) == ([], 0, 1)
    outbox.add(one, 1, rows(1, 1), at(2), False)
    work(outbox, server)
    assert (server.stored, outbox.skipped, len(outbox)) == (["1"], 1, 0)


def test_a_server_that_forgot_has_the_stream_read_again() -> None:
    outbox, one, server = Outbox(), stream(), Server()
    outbox.add(one, 50, rows(50, 10), at(60), False)
    assert work(outbox, server) == [Rewind(one, 0)]
    assert not outbox
    outbox.add(one, 20, rows(20, 40), at(60), True)
    work(outbox, server)
    assert server.stored == [str(i) for i in range(20, 60)]
    assert server.gaps == 20


def test_ends_come_behind_rows_and_late_rows_are_added() -> None:
    outbox, one, two, server = Outbox(), stream("1"), stream("2"), Server()
    outbox.add(one, 0, rows(0, 3), at(3), False)
    one.read = at(3)
    outbox.end(one)
    outbox.end(two)
    outbox.barrier()
    outbox.add(one, 3, rows(3, 1), at(4), False)
    events = work(outbox, server)
    assert server.ended == {"1", "2"}
    assert server.stored == ["0", "1", "2", "3"]
    assert [type(event) for event in events] == [Acknowledged, Barrier, Acknowledged]


def test_katibs_server_is_told_no_ends_and_gets_no_empty_request() -> None:
    outbox, one, server = Outbox(), stream(), Server(origins=False)
    outbox.origins = False
    outbox.end(one)
    outbox.add(one, 0, rows(0, 5), at(5), False)
    outbox.end(one)
    outbox.barrier()
    events = work(outbox, server)
    assert server.stored == ["0", "1", "2", "3", "4"]
    assert isinstance(events[-1], Barrier)


def test_reading_on_without_rows_is_acknowledged_with_what_waits() -> None:
    outbox, one = Outbox(), stream()
    assert outbox.add(one, 0, [], at(0), False) == [Acknowledged(one, at(0))]
    outbox.add(one, 0, rows(0, 1), at(1), False)
    later = Position(0, 99, 1, {})
    assert outbox.add(one, 1, [], later, False) == []
    assert work(outbox, Server()) == [Acknowledged(one, later)]


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 30)), max_size=30),
    st.lists(st.booleans(), max_size=50),
    st.sets(st.integers(0, 200).map(str), max_size=5),
)
def test_every_good_row_is_stored_once_in_order_whatever_answers_are_lost(
    batches: list[tuple[int, int]], lose: list[bool], bad: set[str]
) -> None:
    streams = (stream("0"), stream("1"))
    outbox, server = Outbox(), Server(bad)
    first = [0, 0]
    added: list[list[MetricPoint]] = [[], []]
    for which, count in batches:
        some = [MetricPoint(str(which), str(first[which] + i), i) for i in range(count)]
        added[which] += some
        outbox.add(streams[which], first[which], some, at(first[which] + count), False)
        first[which] += count
    for one, ordinal in zip(streams, first, strict=True):  # the last of each is good
        outbox.add(one, ordinal, [MetricPoint("z", "good", 0)], at(ordinal + 1), False)
    work(outbox, server, lose=lose)
    assert not outbox, "a row of each stream is good, so every bad one can be given up"
    expected = [[row.value for row in some if row.value not in bad] + ["good"] for some in added]
    stored = [[value for which, value in server.rows if which == one.id] for one in streams]
    assert stored == expected
    assert [server.next[one.id] for one in streams] == [ordinal + 1 for ordinal in first]
