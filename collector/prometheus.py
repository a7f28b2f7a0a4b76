"""PrometheusMetric: scrapes the training's own endpoint and gives a point when a value has changed."""

from collections.abc import Callable, Sequence
from threading import Event
from typing import Any, Final

from collector import http
from collector.exposition import Sample, Selector, read
from collector.say import Once
from collector.source import Clock, Findings, Stamp, Write
from trialtap.argv import CollectorArgs
from trialtap.points import MetricPoint

HOST: Final = "127.0.0.1"
PORT: Final = 8080
PATH: Final = "/metrics"
TIMEOUT: Final = 5.0
"""Seconds that a scrape may take."""
ACCEPT: Final = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.9,*/*;q=0.1"


class Scraper:
    """The source: `http://127.0.0.1:PORT/PATH` every `--poll` seconds, until training has ended.

    A metric is a series' name, or a name with label selectors. Several series may be of one metric: each
    gives its own points, and a message names them. The cursor is `{series: its last value}`, so that a
    restart repeats no point.
    """

    def __init__(self, args: CollectorArgs, host: str = HOST, clock: Clock | None = None) -> None:
        """Read the names.

        Raises:
            ValueError: a name's label selectors are wrong.
        """
        self.findings = Findings()
        self._selectors = tuple(map(Selector.parse, args.metrics))
        self._names = tuple({selector.name for selector in self._selectors})
        self._host = host
        self._port = args.port or PORT
        self._path = args.path if args.path.startswith("/") else f"/{args.path}" if args.path else PATH
        self._interval = max(args.poll, 0.1)
        self._stamp = Stamp(clock=clock) if clock else Stamp()
        self._once = Once()
        self._series: dict[str, str] = {}
        self._looked = False

    @property
    def url(self) -> str:
        """Where it scrapes."""
        return f"http://{self._host}:{self._port}{self._path}"

    def run(self, write: Write, stopped: Event, cursor: Any) -> None:
        """Scrape until `stopped` is set; see `collector.source.Producer`."""
        last: dict[str, str] = dict(cursor or {})
        while not stopped.is_set():
            points = self.changed(self.scrape(lambda: not stopped.is_set()), last)
            if points:
                write(points, last)
            stopped.wait(self._interval)

    def scrape(self, go_on: Callable[[], bool] = lambda: True) -> list[Sample]:
        """Give the samples of the wanted names, none when the target does not answer; trouble is said once."""
        try:
            return self.wanted(*self.fetch(go_on))
        except http.Failed as failed:
            if go_on():
                self._once.trouble("scrape", f"waiting for {self.url}: {failed}")
            return []

    def fetch(self, go_on: Callable[[], bool] = lambda: True) -> tuple[str, bool]:
        """Give the target's text, and whether it is OpenMetrics.

        Raises:
            http.Failed: it does not answer, or not with status 200.
        """
        answer = http.get(self._host, self._port, self._path, TIMEOUT, go_on, ACCEPT)
        if answer.status != 200:
            raise http.Failed(f"it answers with status {answer.status}")
        openmetrics = answer.headers.get("content-type", "").startswith("application/openmetrics-text")
        return answer.body.decode("utf-8", "replace"), openmetrics

    def wanted(self, text: str, openmetrics: bool) -> list[Sample]:
        """Give the samples of the wanted names in an answer; what is no Prometheus text is said once."""
        found: list[Sample] = []
        some = not text.strip()  # an endpoint without any series yet is no garbage
        look = not self._looked
        for line in text.split("\n"):
            if some and not look and not any(name in line for name in self._names):
                continue
            sample = read(line, openmetrics)
            if sample is None:
                continue
            some = True
            if look:
                self._looked = True
                self.findings.saw(sample.name, sample.key())
            if sample.name in self._names:
                found.append(sample)
        if not some and not _only_comments(text):
            self._once.trouble(
                "scrape", f"{self.url} answers what is no Prometheus text: {text[:60]!r}; trying again"
            )
            self.findings.skip("answers that are no Prometheus text")
        else:
            self._once.over("scrape", f"scraping {self.url}")
        return found

    def changed(self, samples: Sequence[Sample], last: dict[str, str]) -> list[MetricPoint]:
        """Give a point for each metric whose series differ from `last`, which is brought up to date."""
        points: list[MetricPoint] = []
        now: dict[str, str] = {}
        time: int | None = None
        for sample in samples:
            key = sample.key()
            for selector in self._selectors:
                if not selector.matches(sample):
                    continue
                self._note(selector, key)
                now[key] = sample.value
                if last.get(key) == sample.value:
                    continue
                if sample.time is None and time is None:
                    time = self._stamp.next()
                points.append(MetricPoint(selector.wanted, sample.value, sample.time or time or 0))
        last.update(now)
        self.findings.lines += len(points)
        return points

    def _note(self, selector: Selector, key: str) -> None:
        first = self._series.setdefault(selector.wanted, key)
        if first not in (key, ""):
            self._series[selector.wanted] = ""  # said once
            self.findings.notes.append(
                f"metric {selector.wanted!r} is several series, reported together: "
                f"ask for {first!r} or {key!r} to have one of them"
            )


def _only_comments(text: str) -> bool:
    return all(line.startswith("#") or not line.strip() for line in text.split("\n"))
