"""The run loop: tails -> points -> stop rules -> reporter, until training has ended and all is told.

One thread does everything but the calls to the database. It reads only while the outbox has room, so that
what waits for the database waits in the file. docs/delivery.md has the rules that it follows.
"""

import _thread
import os
import time
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from collector.checkpoint import Checkpoint, Position, Stream
from collector.ndjson import Writer
from collector.outbox import Acknowledged, Barrier, Rewind
from collector.reporter import Reporter, Server, Stopped
from collector.say import Once, say
from collector.source import Findings, Rules
from collector.tail import Chunk, Tail
from collector.watch import Watch
from trialtap import names
from trialtap.argv import CollectorArgs
from trialtap.points import YEAR_ONE, MetricPoint

SAVE: Final = 1.0
"""Seconds between two writes of the checkpoint."""
SPILL: Final = 1.5
"""Seconds after the end of training when what is not delivered is printed: a deleted pod may have 2 s left."""
ROUND: Final = 16
"""Chunks that are read before acknowledgements are looked at."""
_UNAVAILABLE: Final = "//unavailable"
"""Key of the stream that holds the row which says `unavailable`; no file has such a path."""


class Surroundings(Protocol):
    """What differs between the native sidecar and Katib's shared process namespace."""

    patience: float
    """Seconds after which `ended` is to be asked again."""

    def ended(self) -> bool:
        """Say whether training has ended: all that it wrote is in its files."""
        ...

    def killed(self) -> bool:
        """Say whether it is known that training was ended by a signal, and not by an early stop."""
        ...

    def stop_training(self) -> bool:
        """End the training; False when that must be tried again."""
        ...


class Loop:
    """One run of the collector over its tails."""

    def __init__(  # noqa: PLR0913 - the parts that the wiring has made
        self,
        args: CollectorArgs,
        *,
        pod: str,
        checkpoint: Checkpoint,
        tails: list[Tail],
        reporter: Reporter,
        watch: Watch,
        surroundings: Surroundings,
        rules: Rules | None,
        findings: Findings,
        complete: Callable[[], bool] = lambda: True,
    ) -> None:
        """Take the parts.

        Args:
            args: the command line.
            pod: the pod's name.
            checkpoint: what is known from before.
            tails: what is read.
            reporter: takes the points.
            watch: waits for changes.
            surroundings: says when training has ended.
            rules: early-stopping rules; None where there are none.
            findings: what the parsers came across.
            complete: after training has ended, says whether all that will ever be in the files is there.
        """
        self._args = args
        self._checkpoint = checkpoint
        self._tails = tails
        self._reporter = reporter
        self._watch = watch
        self._surroundings = surroundings
        self._rules = rules
        self._findings = findings
        self._complete = complete
        self._writer = Writer(args.trial, args.namespace, pod, args.attempt)
        self._once = Once()
        self._objective = args.metrics[0]
        self._seen: bool = bool(checkpoint.flags.get("objective"))
        self._resend: dict[str, tuple[int, bool]] = {}  # stream id -> ordinal to send from, after a gap
        self._deferred = False
        self._katib = False
        self._targets: dict[str, int] = {}
        self._barriers = 0
        self._writing = _thread.allocate_lock()
        self._saved_numbers = -1
        self._dirty = True
        self._saved = 0.0
        self._end = 0.0  # when training ended, by time.monotonic
        self._spilled = False
        self._explained = False
        self._whole = False

    # --- the loop

    def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Work until training has ended and all is delivered, or its time is up.

        Args:
            ready: called when training may begin.
        """
        self._begin()
        ready()
        while True:
            if not self._end and self._surroundings.ended():
                self._ending()
            progress = self._read()
            progress = self._results() or progress
            self._stop()
            self._save()
            if self._end and self._finish(progress):
                return
            if not progress:
                self._wait()

    def _begin(self) -> None:
        flags = self._checkpoint.flags
        for stream in self._checkpoint.streams.values():
            if stream.acked.ordinal and not stream.ended and not flags.get("katib"):
                self._reporter.known(stream)
        if flags.get("stop") in {"met", "told", "ended"}:
            flags["stop"] = "met"
            self._aim()
        if any(tail.depends_on_start for tail in self._tails):
            self._save(now=True)
        else:
            self._dirty = False

    def _wait(self) -> None:
        for tail in self._tails:
            self._watch.directories(tail.directories())
        seconds = 0.05 if self._end else self._surroundings.patience
        if self._dirty:
            seconds = min(seconds, max(0.01, self._saved + SAVE - time.monotonic()))
        self._watch.wait(seconds, files=self._reporter.room())

    def _read(self) -> bool:
        progress = False
        for tail in self._tails:
            for _ in range(ROUND):
                if not self._reporter.room():
                    return progress
                chunk = tail.read(bool(self._end))
                self._ended_streams(tail)
                if chunk is None:
                    break
                progress = True
                self._take(chunk)
        return progress

    def _take(self, chunk: Chunk) -> None:
        stream, first, points, after = chunk
        deferred = self._deferred  # a rule that is met by these points ends it, and they are read again
        if points:
            self._note(stream, first, points)
        if deferred:
            self._dirty = True
            return
        gap = False
        if stream.id in self._resend:
            start, gap = self._resend[stream.id]
            if points and after.ordinal > start:
                del self._resend[stream.id]
                points = points[max(0, start - first) :]
                first = after.ordinal - len(points)
            elif points:
                points, gap = [], False
        if self._checkpoint.numbers != self._saved_numbers:
            self._save(now=True)  # a stream's number must survive before anything is reported under it
        self._reporter.add(stream, first, points, after, gap)

    def _note(self, stream: Stream, first: int, points: list[MetricPoint]) -> None:
        """Hand points that were not seen before to the stop rules, and look for the objective."""
        new = points[max(0, stream.counted - first) :]
        if not new:
            return
        stream.counted = first + len(points)
        if not self._seen and any(point.name == self._objective for point in new):
            self._seen = self._checkpoint.flags["objective"] = True
        if self._rules is not None:
            checkpoint = self._checkpoint
            checkpoint.rules = self._rules.step(checkpoint.rules or self._rules.begin(), new)
            if "stop" not in checkpoint.flags and self._rules.met(checkpoint.rules):
                self._met()
        self._dirty = True

    def _ended_streams(self, tail: Tail) -> None:
        for stream in tail.finished:
            if stream.counted and not self._katib:
                self._reporter.end(stream)
        tail.finished.clear()
        for note in self._findings.notes:
            say(note)
        self._findings.notes.clear()

    # --- what the reporter says

    def _results(self) -> bool:
        """Take note of what the reporter has to say; True when something must be read again for it."""
        again = False
        for result in self._reporter.results():
            if isinstance(result, Acknowledged):
                result.stream.acked = result.position
                self._dirty = True
                if self._katib:
                    self._save(now=True)  # Katib's DB manager cannot tell what it has already
            elif isinstance(result, Rewind):
                self._rewind(result.stream, result.ordinal)
                again = True
            elif isinstance(result, Server):
                self._server(result.ours)
                again = True
            elif isinstance(result, Barrier):
                self._flushed()
            elif isinstance(result, Stopped):
                say("early stopping: the trial is marked as stopped early; stopping the training")
                self._phase("marked")
        return again

    def _server(self, ours: bool) -> None:
        self._katib = self._checkpoint.flags["katib"] = not ours
        if self._katib and not self._args.stream:
            self._reporter.clear()
            self._barriers = 0
            self._again_from_met()
            if self._end or "stop" in self._checkpoint.flags:
                self._undefer()
            else:
                say(
                    "the database is Katib's own: reporting once, when training has ended (--stream true: as it comes)"
                )
                self._deferred = True
        self._reporter.go_on()

    def _rewind(self, stream: Stream, ordinal: int) -> None:
        mark = stream.marks[0]
        for candidate in [*stream.marks, stream.acked]:
            if mark.ordinal <= candidate.ordinal <= ordinal:
                mark = candidate
        gap = mark.ordinal > ordinal
        if gap:
            say(
                f"rows {ordinal} to {mark.ordinal - 1} of stream {stream.id} are no longer here: declared missing"
            )
        stream.ended = False
        self._resend[stream.id] = (max(ordinal, mark.ordinal), gap)
        stream.acked = mark
        for tail in self._tails:
            tail.rewind(stream, mark)
        self._again_from_met()

    def _undefer(self) -> None:
        """Report from now on: begin with what was only looked at so far."""
        self._deferred = False
        for stream in list(self._checkpoint.streams.values()):
            for tail in self._tails:
                tail.rewind(stream, stream.acked)

    # --- early stopping: rows and `end` acknowledged, then the trial marked, then training stopped

    def _phase(self, phase: str) -> None:
        self._checkpoint.flags["stop"] = phase
        self._save(now=True)

    def _met(self) -> None:
        say("early stopping: all rules are met")
        self._checkpoint.flags["stop"] = "met"
        if not self._args.early_stop_address:
            say(
                "early stopping: no -s-earlystop address was given, so the trial cannot be marked: training goes on"
            )
            self._checkpoint.flags["stop"] = "given up"
            return
        if self._deferred:
            self._undefer()
        self._aim()

    def _aim(self) -> None:
        self._targets = {stream.id: stream.counted for stream in self._checkpoint.streams.values()}

    def _stop(self) -> None:
        phase = self._checkpoint.flags.get("stop")
        if phase is None or self._end:
            return
        streams = self._checkpoint.streams.values()
        if phase == "met" and all(s.read.ordinal >= self._targets.get(s.id, 0) for s in streams):
            for stream in streams:
                self._reporter.end(stream)
            self._reporter.barrier()
            self._barriers += 1
            self._phase("told")
        elif phase == "marked" and self._surroundings.stop_training():
            say("early stopping: the training was told to stop")
            self._phase("stopped")

    def _again_from_met(self) -> None:
        """What was to be acknowledged before the trial is marked must be sent once more."""
        if self._checkpoint.flags.get("stop") == "told":
            self._checkpoint.flags["stop"] = "met"
            self._aim()

    def _flushed(self) -> None:
        self._barriers = max(0, self._barriers - 1)
        if self._barriers:
            return  # one from before rows had to be read again
        if self._checkpoint.flags.get("stop") == "told" and not self._end:
            self._phase("ended")
            self._reporter.stop_trial()

    # --- the end

    def _ending(self) -> None:
        self._end = time.monotonic()
        say("training has ended: reading to the end")
        self._reporter.hurry(self._deadline())
        if self._reporter.cancel_stop():
            say("early stopping: training ended by itself before the trial could be marked")
        if self._deferred:
            self._undefer()

    def _deadline(self) -> float:
        return self._end + max(1.0, self._args.grace - 0.5)

    def _finish(self, progress: bool) -> bool:
        """Say whether nothing is left to be done, or no time to do it."""
        if not progress and self._reporter.room() and self._whole:
            self._close()
            if self._reporter.idle():
                self._summary(delivered=True)
                return True
        self._whole = self._complete()  # asked before the next reading, which then finds all of it
        now = time.monotonic()
        if not self._spilled and now >= min(self._end + SPILL, self._deadline()):
            self._spill()
        if now >= self._deadline():
            self._summary(delivered=False)
            return True
        return False

    def _close(self) -> None:
        """Nothing more will be read: report `unavailable` if need be, and the ends of all streams."""
        self._unavailable()
        for stream in self._checkpoint.streams.values():
            if not stream.ended and stream.counted and not self._katib:
                self._reporter.end(stream)

    def _unavailable(self) -> None:
        if self._seen or self._explained:
            return
        self._explained = True
        self._explain()
        if self._surroundings.killed():
            say("training was killed by a signal: no row says `unavailable`")
            return
        stream = self._checkpoint.streams.get(_UNAVAILABLE)
        if stream is None:
            stream = self._checkpoint.begin(_UNAVAILABLE, Position(0, 0, 0, {}))
            self._save(now=True)
        if not stream.acked.ordinal:
            stream.counted, stream.read = 1, Position(0, 0, 1, {})
            row = MetricPoint(self._objective, names.UNAVAILABLE, YEAR_ONE)
            self._reporter.add(stream, 0, [row], stream.read, False)

    def _explain(self) -> None:
        """Say what was looked for and what was there instead."""
        found = self._findings
        seen = ", ".join(sorted(found.names, key=lambda name: -found.names[name])[:20])
        skipped = "; ".join(f"{reason}: {count}" for reason, count in found.skipped.items())
        where = self._args.path or "the training's output"
        say(
            f"the objective metric {self._objective!r} never appeared. Looked for {', '.join(self._args.metrics)} "
            f"in {where}. Names that were seen: {seen or 'none'}."
            + (f" Skipped: {skipped}." if skipped else "")
        )
        from collector.seen import advice  # noqa: PLC0415 - it is said once, at the end

        for line in advice([self._objective], (), found):
            say(line)

    def _undelivered(self) -> Iterator[tuple[str, int, MetricPoint]]:
        """Give what waits and what was not read yet; reading goes back to where it was."""
        for stream, ordinal, row in self._reporter.waiting():
            yield stream.id, ordinal, row
        for tail in self._tails:
            places: dict[str, tuple[Stream, Position]] = {}
            before = {stream.id: stream.read for stream in self._checkpoint.streams.values()}
            while (chunk := tail.read(True)) is not None:
                stream = chunk.stream
                places.setdefault(stream.id, (stream, before.get(stream.id, stream.marks[0])))
                start = self._resend.get(stream.id, (0, False))[0]
                for ordinal, row in enumerate(chunk.points, chunk.first):
                    if ordinal >= start:
                        yield stream.id, ordinal, row
            for stream, position in places.values():
                tail.rewind(stream, position)

    def _spill(self) -> None:
        self._spilled = True
        try:
            count = self._writer.write(self._undelivered())
        except OSError as error:
            self._once.trouble("spill", f"rows that were not delivered cannot be printed: {error}")
            return
        if count:
            say(f"{count} rows are not delivered yet and stand above as JSON, for `trialtap db import`")

    def _summary(self, delivered: bool) -> None:
        self._save(now=True)
        rows = sum(stream.counted for stream in self._checkpoint.streams.values())
        skipped = self._reporter.skipped()
        say(
            (
                f"all {rows} rows are delivered"
                if delivered
                else "time is up: what is not delivered stands above as JSON"
            )
            + (f"; {skipped} were refused by the database" if skipped else "")
        )

    # --- the checkpoint

    def _save(self, now: bool = False) -> None:
        """Save the checkpoint: at once, or beside the work, which a slow disk is not to hold up."""
        if not now and (not self._dirty or self._writing.locked() or time.monotonic() < self._saved + SAVE):
            return
        self._writing.acquire()
        self._saved = time.monotonic()
        self._dirty = False
        self._saved_numbers = self._checkpoint.numbers
        text = self._checkpoint.text()
        if now:
            self._write(text)
        else:
            _thread.start_new_thread(self._write, (text,))

    def _write(self, text: str) -> None:
        try:
            self._checkpoint.write(text)
        except OSError as error:
            self._once.trouble(
                "save",
                f"the checkpoint cannot be written ({error}): after a restart rows may be read from the start",
            )
        else:
            self._once.over("save", "the checkpoint can be written again")
        finally:
            self._writing.release()


def pod_name() -> str:
    """Give the pod's name: the webhook puts it into the environment; else the host's name is it."""
    return os.environ.get(names.POD_NAME_ENV) or os.uname().nodename
