"""Puts the collector together from argv: checkpoint, source, tails, stop rules, reporter, run loop."""

import os
from collections.abc import Callable

from collector.checkpoint import Checkpoint
from collector.lifecycle import Loop, Surroundings, pod_name
from collector.native import Native, Terminated
from collector.reporter import Calls, Reporter
from collector.say import say
from collector.source import Files, Producer, Rules, Source
from collector.source import make as make_by_kind
from collector.tail import Echoing, FileTail, SegmentsTail, Tail, TreeTail
from collector.watch import Watch, give_back
from trialtap import names
from trialtap.argv import CollectorArgs, parse

Make = Callable[[CollectorArgs], Source]
"""Makes a source; a Custom collector has its own."""


def collect(
    argv: list[str],
    signals: Terminated,
    directory: str,
    make: Make | None = None,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Collect until training has ended and all is told.

    Args:
        argv: the command line.
        signals: those taken since the start of the process.
        directory: the private volume.
        make: makes the source of a Custom collector.
        ready: called once it is known, and saved, what was there before training.

    Raises:
        ValueError: argv can never work; the message names the flag.
    """
    args = parse(argv)
    watch = Watch()
    signals.pipe = watch.pipe
    source = (make or make_by_kind)(args)
    surroundings: Surroundings
    if args.kind is None:
        from collector.katib import Katib, hidden_folder  # noqa: PLC0415

        directory = hidden_folder(args)
        surroundings = Katib(args, signals)
    else:
        surroundings = Native(signals, directory)
    checkpoint, wrong = Checkpoint.load(f"{directory}/checkpoint")
    if wrong:
        say(wrong)
    pod = pod_name()
    address = args.db_address or names.DEFAULT_DB_ADDRESS

    def connect() -> Calls:
        from collector.client import Client  # noqa: PLC0415 - with the first row

        return Client(address, args.early_stop_address, args.trial, args.namespace, pod, args.attempt)

    reporter = Reporter(connect, watch.pipe)
    rules: Rules | None = None
    if args.stop_rules:
        from collector import stopping  # noqa: PLC0415

        rules = stopping.Rules(args)
    tails, complete = _tails(args, source, checkpoint, directory, watch, surroundings)
    loop = Loop(
        args,
        pod=pod,
        checkpoint=checkpoint,
        tails=tails,
        reporter=reporter,
        watch=watch,
        surroundings=surroundings,
        rules=rules,
        findings=source.findings,
        complete=complete,
    )
    give_back()
    try:
        loop.run(ready)
    finally:
        reporter.close()


def _tails(  # noqa: PLR0913, PLR0917 - a step of `collect`, with what it has made
    args: CollectorArgs,
    source: Source,
    checkpoint: Checkpoint,
    directory: str,
    watch: Watch,
    surroundings: Surroundings,
) -> tuple[list[Tail], Callable[[], bool]]:
    """Make what is to be read, and what says that all of it is there."""
    if hasattr(source, "run"):
        producer: Producer = source  # type: ignore[assignment]
        return _spooled(args, producer, checkpoint, directory, watch, surroundings)
    files: Files = source
    from_end = checkpoint.fresh and args.kind is not None
    echo: Echoing | None = None
    if args.echo or (args.kind is None and args.format):
        from collector.echo import Echo  # noqa: PLC0415

        echo = Echo()
    tail: Tail
    if args.kind == "StdOut":
        tail = SegmentsTail(args.path or f"{directory}/out", files, checkpoint, echo)
    elif files.directory:
        tail = TreeTail(args.path, files, checkpoint, from_end=from_end)
    else:
        name = os.path.basename(args.path)  # noqa: PTH119
        tail = FileTail(args.path, name, files, checkpoint, from_end=from_end, echo=echo)
    return [tail], lambda: True


def _spooled(  # noqa: PLR0913, PLR0917
    args: CollectorArgs,
    producer: Producer,
    checkpoint: Checkpoint,
    directory: str,
    watch: Watch,
    surroundings: Surroundings,
) -> tuple[list[Tail], Callable[[], bool]]:
    from threading import Thread  # noqa: PLC0415

    from collector.spool import Spool, SpoolFiles  # noqa: PLC0415

    spool = Spool(producer, f"{directory}/spool", args.keep, watch.pipe)
    tail = SegmentsTail(f"{directory}/spool", SpoolFiles(producer.findings), checkpoint)
    Thread(target=spool.run, name="source", daemon=True).start()

    def complete() -> bool:
        """Training has ended, so the producer is told to end, and is waited for."""
        if surroundings.ended():
            spool.stopped.set()
        return spool.ended.is_set()

    return [tail], complete
