"""PrometheusMetric: both text formats, selectors, and targets that come late, hang, or answer garbage."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import prometheus_client
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics import exposition as openmetrics

from collector import http
from collector.exposition import Selector, read, samples
from collector.prometheus import Scraper
from trialtap.argv import CollectorArgs
from trialtap.points import MetricPoint, format_time

OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"


@contextmanager
def target(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """Listen on a free port and hand each connection, once its request was read, to `serve`."""
    listener = socket.create_server(("127.0.0.1", 0))

    def loop() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(1 << 16)
                try:
                    serve(connection)
                except OSError:
                    continue

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(5)


def answering(*texts: str, head: bytes = OK) -> Callable[[socket.socket], None]:
    """Answer with the texts in turn, the last one for ever."""
    left = list(texts)

    def serve(connection: socket.socket) -> None:
        text = left.pop(0) if len(left) > 1 else left[0]
        connection.sendall(head + b"\r\n" + text.encode())

    return serve


def scraper(port: int, *names: str, **kwargs: Any) -> Scraper:
    return Scraper(CollectorArgs(trial="t", metrics=names, port=port, path="/metrics", poll=0.1, **kwargs))


def collect(
    source: Scraper, count: int, cursor: Any = None, patience: float = 10
) -> tuple[list[MetricPoint], Any]:
    """Run until `count` points were written, and give them and the last cursor."""
    points: list[MetricPoint] = []
    stopped = threading.Event()
    last = [cursor]

    def write(some: Any, cursor: Any = None) -> None:
        points.extend(some)
        last[0] = dict(cursor)
        if len(points) >= count:
            stopped.set()

    timer = threading.Timer(patience, stopped.set)
    timer.start()
    source.run(write, stopped, cursor)
    timer.cancel()
    return points, last[0]


LINES = [
    ("loss 0.5", ("loss", {}, "0.5", None)),
    ("loss{} 0.5", ("loss", {}, "0.5", None)),
    ('loss{split="val"} 1', ("loss", {"split": "val"}, "1", None)),
    ('loss{ split = "val" , fold="0", } +1e-3', ("loss", {"split": "val", "fold": "0"}, "+1e-3", None)),
    (r'a{p="C:\\x\"}\n"} 1', ("a", {"p": 'C:\\x"}\n'}, "1", None)),
    ("loss NaN", ("loss", {}, "nan", None)),
    ("loss +Inf", ("loss", {}, "inf", None)),
    ("loss -Inf", ("loss", {}, "-inf", None)),
    ("loss 1 1700000000123", ("loss", {}, "1", "2023-11-14T22:13:20.123Z")),
    ("ns:loss_total 3", ("ns:loss_total", {}, "3", None)),
    ('{"val/loss", split="a"} 2', ("val/loss", {"split": "a"}, "2", None)),
    ('loss{"a b"="c"} 2', ("loss", {"a b": "c"}, "2", None)),
    ("# HELP loss the loss", None),
    ("# TYPE loss gauge", None),
    ("", None),
    ("loss", None),
    ("loss x", None),
    ("loss0.5", None),
    ("loss{ 1", None),
    ('loss{a="b} 1', None),
    ('loss{a~"b"} 1', None),
    ("<html><body>0.5</body></html>", None),
    ("{} 1", None),
    ("1 2", None),
]


@pytest.mark.parametrize(("line", "expect"), LINES, ids=[line or "blank" for line, _ in LINES])
def test_a_line_of_the_exposition(
    line: str, expect: tuple[str, dict[str, str], str, str | None] | None
) -> None:
    sample = read(line, openmetrics=False)
    if expect is None:
        assert sample is None
    else:
        assert sample is not None
        got = (sample.name, sample.labels, sample.value, sample.time and format_time(sample.time))
        assert got == expect


@pytest.mark.parametrize(
    ("line", "expect"),
    [
        ("loss 1 1700000000.25", "2023-11-14T22:13:20.25Z"),
        ("loss 1 1700000000", "2023-11-14T22:13:20Z"),
        ('loss_total 1 1.7e9 # {trace="a"} 0.5 12', "2023-11-14T22:13:20Z"),
        ('loss_total 1 # {trace="a"} 0.5', None),
        ("loss 1 -5", None),
        ("loss 1 9e99", None),
    ],
)
def test_times_and_exemplars_of_openmetrics(line: str, expect: str | None) -> None:
    sample = read(line, openmetrics=True)
    assert sample is not None
    assert sample.value == "1"
    assert (sample.time and format_time(sample.time)) == expect


@pytest.mark.parametrize(
    ("wanted", "series", "hit"),
    [
        ("loss", 'loss{split="val"}', True),
        ("loss", "loss_total", False),
        ('loss{split="val"}', 'loss{split="val",fold="1"}', True),
        ('loss{split="val"}', 'loss{split="train"}', False),
        ('loss{split="val"}', "loss", False),
        ('loss{split!="val"}', "loss", True),
        ('loss{split=""}', "loss", True),
        ('loss{split=~"va.*"}', 'loss{split="val"}', True),
        ('loss{split=~"va"}', 'loss{split="val"}', False),
        ('loss{split!~"va.*"}', 'loss{split="val"}', False),
        ('loss{split="val", fold="1"}', 'loss{fold="1",split="val"}', True),
        ('{"val/loss",fold="1"}', '{"val/loss", fold="1"}', True),
        ("val/loss", '{"val/loss"}', True),
    ],
)
def test_label_selectors(wanted: str, series: str, hit: bool) -> None:
    sample = read(f"{series} 1", openmetrics=False)
    assert sample is not None
    assert Selector.parse(wanted).matches(sample) is hit


@pytest.mark.parametrize("wanted", ["loss{split}", 'loss{split="a}', "loss{split=a}", 'loss{a=~"("}'])
def test_selectors_that_are_wrong_are_refused_with_the_metric_named(wanted: str) -> None:
    with pytest.raises(ValueError, match="metric 'loss"):
        scraper(1, wanted)


@pytest.mark.parametrize("make", [prometheus_client.generate_latest, openmetrics.generate_latest])
def test_what_the_usual_client_exposes_is_read_whole(make: Callable[[Any], bytes]) -> None:
    registry = prometheus_client.CollectorRegistry()
    gauge = prometheus_client.Gauge("loss", "the loss", ["split"], registry=registry)
    gauge.labels('a "quoted"\\ \n split').set(0.25)
    prometheus_client.Counter("batches", "seen", registry=registry).inc(3)
    prometheus_client.Histogram("seconds", "taken", registry=registry).observe(0.2)
    text = make(registry).decode()
    found = list(samples(text, make is openmetrics.generate_latest))
    expect = [sample for family in registry.collect() for sample in family.samples]
    assert [(s.name, s.labels) for s in found] == [(s.name, s.labels) for s in expect]
    assert [float(s.value) for s in found] == [s.value for s in expect]


def test_a_point_is_given_when_the_value_has_changed() -> None:
    texts = ["loss 0.5\n", "loss 0.5\n", "loss 0.4\nother 7\n", "loss NaN\n", "loss NaN\n", "loss 0.4\n"]
    with target(answering(*texts)) as port:
        points, _ = collect(scraper(port, "loss"), 4)
    assert [point.value for point in points] == ["0.5", "0.4", "nan", "0.4"]
    assert sorted(point.time for point in points) == [point.time for point in points]


def test_a_restart_repeats_no_point() -> None:
    with target(answering("loss 0.5\n", "loss 0.5\n", "loss 0.4\n")) as port:
        first, cursor = collect(scraper(port, "loss"), 1)
        second, _ = collect(scraper(port, "loss"), 1, cursor)
    assert [point.value for point in [*first, *second]] == ["0.5", "0.4"]


def test_several_series_of_one_metric_are_told_apart_and_warned_of() -> None:
    text = 'loss{s="a"} 1\nloss{s="b"} 2\nloss{s="c"} 3\n'
    with target(answering(text, text, text.replace("2", "5"))) as port:
        source = scraper(port, "loss", 'loss{s="b"}')
        points, _ = collect(source, 6)
    assert [(p.name, p.value) for p in points] == [
        ("loss", "1"), ("loss", "2"), ('loss{s="b"}', "2"), ("loss", "3"), ("loss", "5"), ('loss{s="b"}', "5"),
    ]  # fmt: skip
    (note,) = source.findings.notes
    assert "'loss{s=\"a\"}' or 'loss{s=\"b\"}'" in note


def test_the_targets_own_times_are_kept() -> None:
    with target(answering("loss 1 1700000000500\n")) as port:
        points, _ = collect(scraper(port, "loss"), 1)
    assert format_time(points[0].time) == "2023-11-14T22:13:20.5Z"


def test_a_target_that_comes_late_is_waited_for_and_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    source = scraper(port, "loss")
    assert source.scrape() == source.scrape() == []
    assert capfd.readouterr().err.count("waiting for http://127.0.0.1") == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"\x00\x01\x02 garbage\n" * 20,
        b"HTTP/1.1 500 Oops\r\n\r\nloss 1\n",
        OK + b"\r\n<html>loss 0.5</html>",
        OK + b"Content-Length: 100\r\n\r\nloss 1\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n7\r\nloss 1\n\r\nzz\r\n",
        OK + b"\r\n" + bytes(range(256)) * 9,
        b"",
    ],
    ids=["bytes", "status", "html", "cut", "cut chunk", "binary", "nothing"],
)
def test_a_target_that_answers_garbage_gives_nothing_and_then_recovers(
    answer: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    answers = [answer, answer, OK + b"\r\nloss 0.5\n"]

    def serve(connection: socket.socket) -> None:
        connection.sendall(answers.pop(0) if len(answers) > 1 else answers[0])

    with target(serve) as port:
        points, _ = collect(scraper(port, "loss"), 1)
    assert [point.value for point in points] == ["0.5"]
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 2  # the trouble once, and that it is over
    assert str(port) in lines[0]


def test_a_target_that_hangs_holds_up_neither_the_end_nor_memory() -> None:
    with target(lambda _: time.sleep(2)) as port:
        source = scraper(port, "loss")
        begin = time.monotonic()
        points, _ = collect(source, 1, patience=0.5)
        assert points == []
        assert time.monotonic() - begin < 5


def test_a_target_that_drips_is_given_up_in_time() -> None:
    def drip(connection: socket.socket) -> None:
        connection.sendall(OK + b"Content-Length: 1000\r\n\r\n")
        for _ in range(40):
            connection.sendall(b"#")
            time.sleep(0.05)

    with target(drip) as port, pytest.raises(http.Failed, match=r"within 0\.5 s"):
        http.get("127.0.0.1", port, "/", 0.5, lambda: True, "*/*")


def test_an_answer_without_end_is_cut() -> None:
    def flood(connection: socket.socket) -> None:
        connection.sendall(OK + b"\r\n")
        for _ in range(40):
            connection.sendall(b"#" * (1 << 20))

    with target(flood) as port, pytest.raises(http.Failed, match="more than 16 MiB"):
        http.get("127.0.0.1", port, "/", 30, lambda: True, "*/*")


@pytest.mark.parametrize(
    "body",
    [
        b"Content-Length: 7\r\n\r\nloss 1\n",
        b"Transfer-Encoding: chunked\r\n\r\n3;x=y\r\nlos\r\n4\r\ns 1\n\r\n0\r\n\r\n",
        b"\r\nloss 1\n",
    ],
    ids=["by length", "in chunks", "to the end"],
)
def test_an_answer_ends_where_it_says(body: bytes) -> None:
    with target(lambda connection: connection.sendall(OK + body)) as port:
        answer = http.get("127.0.0.1", port, "/", 5, lambda: True, "*/*")
    assert (answer.status, answer.body) == (200, b"loss 1\n")


@given(st.text())
def test_any_text_is_read_without_an_error(text: str) -> None:
    for made in samples(text, openmetrics=True):
        assert made.name


@given(
    st.dictionaries(st.from_regex(r"[a-z_]\w{0,5}", fullmatch=True), st.text()),
    st.floats(allow_nan=False),
)
def test_every_series_is_read_back_from_its_own_key(labels: dict[str, str], value: float) -> None:
    registry = prometheus_client.CollectorRegistry()
    labels = {key: text for key, text in labels.items() if not key.startswith("__") and key.isascii()}
    gauge = prometheus_client.Gauge("m", "h", list(labels), registry=registry)
    (gauge.labels(**labels) if labels else gauge).set(value)
    lines = prometheus_client.generate_latest(registry).decode().split("\n")
    (sample,) = (found for line in lines if (found := read(line, openmetrics=False)))
    assert (sample.labels, float(sample.value)) == (labels, value)
    again = read(f"{sample.key()} 1", openmetrics=False)
    assert again is not None
    assert again.labels == labels
    assert Selector.parse(sample.key()).matches(sample)


@given(st.binary())
def test_any_answer_is_parsed_or_failed(data: bytes) -> None:
    for received in (data, OK + data, OK + b"Transfer-Encoding: chunked\r\n\r\n" + data):
        try:
            http.parse(received)
        except http.Failed:
            continue
