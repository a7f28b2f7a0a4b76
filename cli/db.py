"""Export and import observation logs.

  trialtap db export --db trials.db > trials.ndjson
  trialtap db export --db http://localhost:8080 --format csv --output mine.csv TRIAL
  trialtap db export --db trials.db --tensorboard runs --follow     then: tensorboard --logdir runs
  trialtap db import --db trials.db trials.ndjson
  kubectl logs POD -c metrics-collector | trialtap db import --db localhost:6789 -

Import takes what export writes, and the log of a collector that could not deliver: the points in it, other
lines are skipped. Running it again changes nothing: a point is told by its stream and ordinal.
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from cli.eventfiles import Runs
from cli.eventfiles import export as export_runs
from cli.importing import GrpcSink, Importer, StoreSink, Tally, parse
from cli.readers import (
    CommandError,
    GrpcReader,
    Reader,
    StoreReader,
    add_database_argument,
    closest,
    open_reader,
)
from dbmanager.records import Record, csv_head, csv_lines, ndjson
from dbmanager.rows import TrialKey

_CHUNK = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="export|import")
    out = actions.add_parser("export", help="write the points of trials to a file")
    add_database_argument(out)
    out.add_argument("trials", metavar="TRIAL", nargs="*", help="only these trials (default: all)")
    out.add_argument("-n", "--namespace", help="only trials of this namespace")
    out.add_argument("--prefix", default="", help="only trials whose name begins so: those of an experiment")
    out.add_argument("--output", type=Path, metavar="FILE", help="default: stdout")
    out.add_argument("--format", choices=("ndjson", "csv"), default="ndjson", help="default: %(default)s")
    out.add_argument(
        "--tensorboard",
        type=Path,
        metavar="DIR",
        help="write event files instead, one run a trial; an export to the same folder adds what is new",
    )
    out.add_argument("--follow", action="store_true", help="with --tensorboard: go on as points come")
    back = actions.add_parser("import", help="read files of points into a database")
    add_database_argument(back)
    back.add_argument("files", metavar="FILE", nargs="+", help="NDJSON or CSV, - for stdin")
    back.add_argument("-n", "--namespace", help="namespace of the points that name none")


def main(args: argparse.Namespace) -> int:
    """Run the command."""
    try:
        return _export(args) if args.action == "export" else _import(args)
    except CommandError as error:
        print(f"trialtap db {args.action}: {error}", file=sys.stderr)
        return error.status


def _export(args: argparse.Namespace) -> int:
    if args.follow and args.tensorboard is None:
        raise CommandError("--follow goes with --tensorboard DIR", 2)
    if args.tensorboard is not None and args.output is not None:
        raise CommandError("--output is a file, --tensorboard a folder: give one of them", 2)
    with closing(open_reader(args.db)) as reader:
        keys = _keys(reader, args)
        if args.tensorboard is None:
            _write(args, reader, keys)
            return 0
        with closing(Runs(args.tensorboard)) as runs:
            try:
                export_runs(
                    runs,
                    reader,
                    lambda: keys if args.trials else _keys(reader, args, missing_ok=True),
                    follow=args.follow,
                )
            finally:
                skipped = f", {runs.skipped} that are no numbers left out" if runs.skipped else ""
                print(f"{runs.written} points written to {args.tensorboard}{skipped}", file=sys.stderr)
    return 0


def _keys(reader: Reader, args: argparse.Namespace, *, missing_ok: bool = False) -> list[TrialKey]:
    """The trials that are asked for.

    Raises:
        CommandError: one of them is not there, or none is.
    """
    known = reader.trials(args.namespace)
    if known is None:
        if not args.trials:
            raise CommandError(
                f"{args.db}: gRPC has no list of trials; name them, or give the REST API or the database"
            )
        return [TrialKey(args.namespace, name) for name in args.trials]
    found = [key for key in known if key.name.startswith(args.prefix)]
    if args.trials:
        for name in args.trials:
            if not any(key.name == name for key in found):
                raise CommandError(f"no trial {name} in {args.db}{closest(name, known)}")
        found = [key for key in found if key.name in args.trials]
    if not found and not missing_ok and not args.follow:
        raise CommandError(f"{args.db} holds no trial{' that begins so' if known else ''}")
    return found


def _write(args: argparse.Namespace, reader: Reader, keys: list[TrialKey]) -> None:
    lines = ndjson if args.format == "ndjson" else csv_lines
    with ExitStack() as stack:
        out: BinaryIO = sys.stdout.buffer
        if args.output is not None:
            try:
                out = stack.enter_context(args.output.open("wb"))
            except OSError as error:
                raise CommandError(f"--output {args.output}: {error.strerror}") from error
        if args.format == "csv":
            out.write(csv_head())
        count = 0
        for key in keys:
            for chunk in _chunks(reader.stored(key.name, key.namespace)):
                out.write(lines(chunk))
                count += len(chunk)
    print(f"{count} points of {len(keys)} trials written", file=sys.stderr)


def _chunks(records: Iterator[Record]) -> Iterator[list[Record]]:
    while chunk := list(islice(records, _CHUNK)):
        yield chunk


def _import(args: argparse.Namespace) -> int:
    if args.db.startswith(("http://", "https://")):
        raise CommandError(
            "--db: REST takes no points; give HOST:PORT of the DB manager's gRPC, or the database", 2
        )
    for name in args.files:
        if name != "-" and not Path(name).is_file():
            raise CommandError(f"{name}: there is no such file", 2)
    tally = Tally()
    with closing(open_reader(args.db)) as reader:
        if isinstance(reader, StoreReader):
            importer = Importer(StoreSink(reader), reader, args.namespace, tally)
        elif isinstance(reader, GrpcReader):
            importer = Importer(GrpcSink(args.db, reader.channel), reader, args.namespace, tally)
        try:
            for name in args.files:
                if name == "-":
                    importer.feed(parse(sys.stdin, tally))
                else:
                    with Path(name).open(encoding="utf-8", errors="replace", newline="") as lines:
                        importer.feed(parse(lines, tally))
            importer.finish()
        finally:
            print(_said(tally), file=sys.stderr)
    if tally.refused:
        raise CommandError(f"{tally.refused} points cannot be stored; the first: {tally.first_refusal}")
    return 0


def _said(tally: Tally) -> str:
    parts = [f"{tally.stored} points of {len(tally.trials)} trials stored"]
    if tally.known:
        parts.append(f"{tally.known} were there already")
    if tally.skipped:
        parts.append(f"{tally.skipped} other lines skipped")
    return ", ".join(parts)
