"""Print the metrics of a trial as a table, or plot them in the terminal.

Examples:
  trialtap metrics random-7f3a --db trials.db
  trialtap metrics random-7f3a --db http://localhost:8080 --metric loss --plot
  trialtap metrics random-7f3a --db katib-db-manager.kubeflow:6789 --output csv
"""

import argparse
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import chain, islice

from cli.readers import CommandError, Reader, add_database_argument, closest, open_reader
from dbmanager.records import Record, csv_head, csv_lines, ndjson
from trialtap.points import parse_time

_LOOK_AHEAD = 1000
"""Rows seen before the table's columns are laid out; the rest is printed as it arrives."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("trial", metavar="TRIAL", help="name of the Trial")
    add_database_argument(parser)
    parser.add_argument("-n", "--namespace", help="namespace of the Trial, needed where two hold that name")
    parser.add_argument("--metric", action="append", default=[], help="only this metric; may repeat")
    parser.add_argument("--attempt", type=int, help="only this attempt, from 0")
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--plot", action="store_true", help="draw a curve of each metric")
    shape.add_argument(
        "--output",
        choices=("table", "ndjson", "csv"),
        default="table",
        help="how to print (default: %(default)s)",
    )


def main(args: argparse.Namespace) -> int:
    """Run the command."""
    try:
        with closing(open_reader(args.db)) as reader:
            records = _found(reader, args)
            if args.plot:
                _plot(records)
            else:
                _print(records, args.output)
    except CommandError as error:
        print(f"trialtap metrics: {error}", file=sys.stderr)
        return error.status
    return 0


def _found(reader: Reader, args: argparse.Namespace) -> Iterator[Record]:
    """The records asked for, the first one fetched.

    Raises:
        CommandError: there is none; the message says whether trial, metric or attempt is unknown.
    """
    records = reader.records(args.trial, args.namespace, args.metric)
    if args.attempt is not None:
        records = (record for record in records if (record.attempt or 0) == args.attempt)
    first = next(records, None)
    if first is not None:
        return chain([first], records)
    everything = list(islice(reader.records(args.trial, args.namespace), 100_000))
    where = f" in namespace {args.namespace}" if args.namespace else ""
    if not everything:
        known = reader.trials()
        others = sorted({key.namespace or "" for key in known or () if key.name == args.trial} - {""})
        if others:
            raise CommandError(
                f"trial {args.trial} is not{where} but in {', '.join(others)}: choose with --namespace"
            )
        if known is not None and any(key.name == args.trial for key in known):
            raise CommandError(f"trial {args.trial} has no points yet")
        raise CommandError(f"no trial {args.trial}{where} in {args.db}{closest(args.trial, known)}")
    if args.metric and not {record.name for record in everything} & set(args.metric):
        there = ", ".join(sorted({record.name for record in everything}))
        raise CommandError(f"trial {args.trial} has no metric {' or '.join(args.metric)}; it has {there}")
    attempts = ", ".join(str(number) for number in sorted({record.attempt or 0 for record in everything}))
    raise CommandError(
        f"trial {args.trial} has no such point in attempt {args.attempt}; it has attempts {attempts}"
    )


def _print(records: Iterator[Record], output: str) -> None:
    if output != "table":
        sys.stdout.flush()
        if output == "csv":
            sys.stdout.buffer.write(csv_head())
        write = ndjson if output == "ndjson" else csv_lines
        while chunk := list(islice(records, _LOOK_AHEAD)):
            sys.stdout.buffer.write(write(chunk))
        return
    head = list(islice(records, _LOOK_AHEAD))
    columns = ["time", "name", "value"]
    columns += [name for name in ("step", "attempt", "pod") if _differs(head, name)]
    titles = {"name": "METRIC"}
    widths = {
        column: max(len(titles.get(column, column)), *(len(_cell(record, column)) for record in head))
        for column in columns
    }
    print("  ".join(titles.get(c, c.upper()).ljust(widths[c]) for c in columns).rstrip())
    for record in chain(head, records):
        print("  ".join(_cell(record, c).ljust(widths[c]) for c in columns).rstrip())


def _differs(records: list[Record], name: str) -> bool:
    """Whether a column says anything: steps if there are any, attempts and pods if there are several."""
    seen = {getattr(record, name) for record in records}
    return seen != {None} if name == "step" else len(seen) > 1


def _cell(record: Record, column: str) -> str:
    value = getattr(record, column)
    if value is None:
        return "-"
    # A value may hold anything, line ends and terminal commands included.
    text = str(value)
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def _plot(records: Iterable[Record]) -> None:
    """One plot a metric, one line an attempt and pod."""
    metrics: dict[str, dict[tuple[int, str], list[Record]]] = {}
    for record in records:
        series = metrics.setdefault(record.name, {})
        series.setdefault((record.attempt or 0, record.pod or ""), []).append(record)
    for name, series in metrics.items():
        print(_drawn(name, series))


def _drawn(name: str, series: dict[tuple[int, str], list[Record]]) -> str:
    import numpy as np  # noqa: PLC0415 - with plotext 300 ms that a table need not pay
    import plotext  # noqa: PLC0415

    from dbmanager.rest_curves import curve, numbers  # noqa: PLC0415

    size = shutil.get_terminal_size((100, 30))
    by_step = all(record.step is not None for points in series.values() for record in points)
    start = min(parse_time(record.time) for points in series.values() for record in points)

    def position(record: Record) -> float:
        return float(record.step or 0) if by_step else (parse_time(record.time) - start) / 1e9

    figure = plotext.figure
    figure.clear()
    figure.theme("clear")
    nonfinite = drawn = 0
    for (attempt, pod), points in series.items():
        line = curve(
            np.array([position(record) for record in points]),
            numbers([record.value for record in points]),
            size.columns * 2,
        )
        nonfinite += line.nonfinite
        drawn += line.y.size
        if line.y.size:
            signal = figure.signal(line.x.tolist(), line.y.tolist())
            signal.lines()
            if len(series) > 1:
                signal.label(f"attempt {attempt} {pod}".rstrip())
            figure.draw(signal)
    if not drawn:
        return f"{name}: none of its {nonfinite} values is a finite number, there is nothing to draw"
    figure.plot_size(size.columns, min(20, max(size.lines - 3, 10)))
    figure.title(name + (f" ({nonfinite} not finite, left out)" if nonfinite else ""))
    figure.label("step" if by_step else "seconds")
    text = str(figure.build())
    # Colours tell several lines apart; into a file or a pipe they would be noise.
    return text if sys.stdout.isatty() and len(series) > 1 else str(plotext.uncolorize(text))
