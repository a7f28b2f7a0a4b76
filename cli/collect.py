r"""Read a metrics file or directory as the collector would, and print the points: a dry run.

Points go to stdout as JSON lines (name, value, time, step). On stderr: how many lines matched, which names
were seen, and for each wanted name that is missing what comes closest. Exit status 1: a wanted name is missing.

Examples:
  trialtap collect --path train.log -m loss accuracy
  kubectl logs my-trial | trialtap collect --path - -m loss -f '(\w+): ([0-9.]+)'
  trialtap collect --path metrics.jsonl --format JSON -m eval.loss
  trialtap collect --kind TensorFlowEvent --path runs/ -m train/loss validation/loss
  trialtap collect --kind PrometheusMetric --path http://127.0.0.1:8080/metrics -m 'loss{split="val"}'
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from cli.readers import CommandError
from collector import http, seen
from collector.checkpoint import Checkpoint
from collector.prometheus import PATH, Scraper
from collector.source import Files, Findings, make
from collector.tail import FileTail, Tail, TreeTail
from trialtap.argv import CollectorArgs
from trialtap.points import MetricPoint, format_time

_KINDS = ("File", "StdOut", "TensorFlowEvent", "PrometheusMetric")
_LOOK = 16 << 20
"""Bytes of a text that are looked through for names that come close."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "--kind", choices=_KINDS, default="File", help="collector kind (default: %(default)s)"
    )
    parser.add_argument(
        "--path",
        required=True,
        help="file or directory; - is stdin; PrometheusMetric: a URL or a saved answer",
    )
    parser.add_argument(
        "-m",
        "--metric",
        nargs="+",
        action="extend",
        required=True,
        metavar="NAME",
        help="metrics to look for",
    )
    parser.add_argument("--format", choices=("TEXT", "JSON"), default="TEXT", help="(default: %(default)s)")
    parser.add_argument(
        "-f", "--filter", nargs="+", action="extend", default=[], metavar="REGEX",
        help="RE2 patterns with two groups, name and value, in place of NAME=VALUE",
    )  # fmt: skip


def main(args: argparse.Namespace) -> int:
    """Run the command."""
    try:
        names = tuple(dict.fromkeys(name for given in args.metric for name in given.split(";") if name))
        counts: Counter[str] = Counter()
        if args.kind == "PrometheusMetric":
            findings, points = _scraped(args.path, names)
        else:
            findings, points = _read(args, names)
        for point in points:
            counts[point.name] += 1
            print(_line(point))
        sys.stdout.flush()
    except (CommandError, ValueError) as error:
        print(f"trialtap collect: {error}", file=sys.stderr)
        return 2
    for line in _report(names, counts, findings):
        print(line, file=sys.stderr)
    return 0 if all(counts[name] for name in names) else 1


def _line(point: MetricPoint) -> str:
    row = {"name": point.name, "value": point.value, "time": format_time(point.time), "step": point.step}
    return json.dumps(row, ensure_ascii=False)


def _report(names: tuple[str, ...], counts: Counter[str], findings: Findings) -> Iterator[str]:
    each = ", ".join(f"{name} {counts[name]}" for name in names)
    yield f"{findings.lines} lines or records matched, {counts.total()} points: {each}"
    for reason, count in findings.skipped.items():
        yield f"skipped, {reason}: {count}"
    yield f"names seen: {seen.listed(seen.most_seen(findings), 20) or 'none'}"
    yield from findings.notes
    yield from seen.advice(names, {name for name in names if counts[name]}, findings)


def _read(args: argparse.Namespace, names: tuple[str, ...]) -> tuple[Findings, Iterable[MetricPoint]]:
    """Read files through the collector's own tail.

    Raises:
        CommandError: the path is not there, or options do not go together.
        ValueError: a pattern is wrong.
    """
    json_lines = args.format == "JSON"
    if args.kind == "TensorFlowEvent" and (json_lines or args.filter):
        raise CommandError("--kind TensorFlowEvent takes neither --format nor -f: tags are asked for by -m")
    if json_lines and args.filter:
        raise CommandError("--format JSON takes no -f: keys are asked for by -m, nested ones as a.b")
    spooled = _stdin() if args.path == "-" else None
    path = Path(spooled.name) if spooled else Path(args.path)
    if not path.exists():
        raise CommandError(f"--path {args.path}: there is no such file or directory")
    source = make(
        CollectorArgs(
            trial="dry-run", metrics=names, path=str(path), filters=tuple(args.filter),
            kind="File" if args.kind == "StdOut" else args.kind,
            format="JSON" if json_lines else None,
        )
    )  # fmt: skip
    if hasattr(source, "run"):
        raise CommandError(f"--kind {args.kind} is read from no file")
    for everything in ("sample", "check_all"):  # what the sidecar looks at in part only, to stay fast
        if hasattr(source, everything):
            setattr(source, everything, sys.maxsize if everything == "sample" else True)
    text = args.kind != "TensorFlowEvent" and not json_lines
    return source.findings, _followed(path, source, names, text, spooled)


def _followed(
    path: Path, source: Files, names: tuple[str, ...], text: bool, spooled: object
) -> Iterator[MetricPoint]:
    checkpoint = Checkpoint("")
    tail: Tail
    if path.is_dir():
        source.directory = True
        tail = TreeTail(str(path), source, checkpoint)
    else:
        tail = FileTail(str(path.absolute()), path.name, source, checkpoint)
    missing = set(names)
    while (chunk := tail.read(True)) is not None:
        missing -= {point.name for point in chunk.points}
        yield from chunk.points
    if missing and text:
        source.findings.names.clear()  # of a sample; now all is looked at
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                _look(file, names, source.findings)
    del spooled  # the copy of stdin is there until here


def _look(path: Path, names: tuple[str, ...], findings: Findings) -> None:
    """Look through a text for what the patterns passed by, to say what comes closest."""
    with path.open("rb") as file:
        for line in file.read(_LOOK).replace(b"\r", b"\n").split(b"\n"):
            seen.look(line.decode("utf-8", "replace"), names, findings)


def _stdin() -> "tempfile._TemporaryFileWrapper[bytes]":
    copy = tempfile.NamedTemporaryFile(prefix="trialtap-stdin-")  # noqa: SIM115 - closed when all is read
    shutil.copyfileobj(sys.stdin.buffer, copy)
    copy.flush()
    return copy


def _scraped(path: str, names: tuple[str, ...]) -> tuple[Findings, Iterable[MetricPoint]]:
    """Scrape a target once, or read a saved answer.

    Raises:
        CommandError: the URL or file is wrong, or the target does not answer.
        ValueError: a metric's label selectors are wrong.
    """
    url = urlsplit(path) if "://" in path else urlsplit("http://localhost")
    if url.scheme != "http" or not url.hostname:
        raise CommandError(f"--path {path}: a target is scraped from http://HOST:PORT/PATH")
    where = (url.path or PATH) + (f"?{url.query}" if url.query else "")
    args = CollectorArgs(trial="dry-run", metrics=names, port=url.port or 80, path=where)
    scraper = Scraper(args, url.hostname)
    try:
        if "://" in path:
            text, openmetrics = scraper.fetch()
        else:
            text = sys.stdin.read() if path == "-" else Path(path).read_text("utf-8", "replace")
            openmetrics = text.rstrip().endswith("# EOF")
    except (OSError, http.Failed) as error:
        raise CommandError(f"--path {path}: {error}") from None
    return scraper.findings, scraper.changed(scraper.wanted(text, openmetrics), {})
