"""Puts the collector together from argv: checkpoint, source, tails, stop rules, reporter, run loop."""

import os

from collector.checkpoint import Checkpoint
from collector.client import Client
from collector.lifecycle import Loop, Surroundings, pod_name
from collector.native import Native, Terminated
from collector.reporter import Reporter
from collector.say import say
from collector.source import Files, Producer, Rules, make
from collector.tail import FileTail, SegmentsTail, Tail, TreeTail
from collector.watch import Watch
from trialtap import names
from trialtap.argv import CollectorArgs, parse


def collect(argv: list[str], signals: Terminated, directory: str) -> None:
    """Collect until training has ended and all is told.

    Raises:
        ValueError: argv can never work; the message names the flag.
    """
    args = parse(argv)
    watch = Watch()
    signals.pipe = watch.pipe
    source = make(args)
    checkpoint, wrong = Checkpoint.load(f"{directory}/checkpoint")
    if wrong:
        say(wrong)
    pod = pod_name()
    address = args.db_address or names.DEFAULT_DB_ADDRESS
    client = Client(address, args.early_stop_address, args.trial, args.namespace, pod, args.attempt)
    reporter = Reporter(client, watch.pipe)
    surroundings: Surroundings = Native(signals, directory)
    rules: Rules | None = None
    if args.stop_rules:
        from collector import stopping  # noqa: PLC0415

        rules = stopping.Rules(args)
    tails = _tails(args, source, checkpoint, directory)
    loop = Loop(args, pod, checkpoint, tails, reporter, watch, surroundings, rules, source.findings)
    try:
        loop.run()
    finally:
        reporter.close()


def _tails(
    args: CollectorArgs, source: Files | Producer, checkpoint: Checkpoint, directory: str
) -> list[Tail]:
    files: Files = source  # type: ignore[assignment]
    if args.kind == "StdOut":
        return [SegmentsTail(args.path or f"{directory}/out", files, checkpoint)]
    if files.directory:
        return [TreeTail(args.path, files, checkpoint, from_end=checkpoint.fresh)]
    return [
        FileTail(args.path, os.path.basename(args.path), files, checkpoint, from_end=checkpoint.fresh)  # noqa: PTH119
    ]
