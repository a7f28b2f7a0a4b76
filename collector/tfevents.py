"""TensorFlow event files -> points, without TensorFlow: framing, checksums, and only the wanted tags decoded."""

import struct
from typing import TYPE_CHECKING, Final

import google_crc32c

from collector import summaries
from collector.source import Stamp, State
from collector.tags import Search, Target
from trialtap.points import MetricPoint

if TYPE_CHECKING:
    from collector.eventfiles import EventFiles

LIMIT: Final = 1 << 23
"""Bytes that one record with a wanted tag may have; a longer one is skipped."""
_SMALL: Final = 1 << 17
"""Bytes of a record that is waited for, whatever it holds: it will be whole soon."""
_FRAME: Final = 16
"""Bytes of a record around its data: length (8), its checksum (4); behind the data, the data's (4)."""
_HEADER: Final = struct.Struct("<QI").unpack
_uint32: Final = struct.Struct("<I").unpack_from
_double: Final = struct.Struct("<d").unpack_from
_crc: Final = google_crc32c.value
_new: Final = tuple.__new__  # a NamedTuple's own constructor takes twice as long
_YEAR_10000: Final = 253_402_300_800


def masked(checksum: int) -> int:
    """Mask a CRC-32C as TFRecord does."""
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


class EventParser:
    """Parser of one event file.

    A record is passed over by its length once that one's checksum holds; only where the bytes of a wanted
    tag stand is it decoded, and its own checksum looked at. A record with a bad checksum is skipped and
    counted; a bad length leaves nothing to go by, and the rest of the file is given up.
    """

    def __init__(self, source: "EventFiles", path: str, stamp: Stamp, state: State) -> None:
        self._source = source
        self._path = path
        self._run = path.rpartition("/")[0] or "."
        self._findings = source.findings
        self._stamp = stamp
        self._targets = source.targets(path)
        self._by_tag = {target.tag: target for target in self._targets}
        self._skip = int(state.get("skip", 0))
        self._lost = bool(state.get("lost", False))
        self._begun: dict[str, bool] = dict(state.get("forms", {}))
        source.decided(self._begun)
        self._sizes: dict[bytes, int] = {}
        self._sample = source.sample
        self._every = source.sample > 0 or source.check_all
        self._first = True

    def state(self) -> State:
        """Bytes still to be passed over, whether the file was given up, and the forms that names took."""
        state: State = {}
        if self._skip:
            state["skip"] = self._skip
        if self._lost:
            state["lost"] = True
        if self._begun:
            state["forms"] = dict(self._begun)
        return state

    def feed(self, data: bytes, final: bool) -> tuple[int, list[MetricPoint]]:  # noqa: ARG002
        """Read whole records from the start of `data`; see `collector.source.Parser`.

        `final` changes nothing: a record that is not whole is none.
        """
        points: list[MetricPoint] = []
        end = len(data)
        position = min(self._skip, end)
        self._skip -= position
        if self._lost or self._skip:
            return end, points
        sizes = self._sizes
        search = Search(data, self._targets)
        hit = search.next(position)
        while True:
            wanted = position if self._every else hit
            try:
                # Most of the time is spent here: records without a wanted tag are passed over.
                while (after := position + sizes[data[position : position + 12]]) <= wanted:
                    position = after
            except KeyError:
                if end - position < 12:
                    break
                if not self._learn(data[position : position + 12]):
                    return end, points
                continue
            if after > end:
                if self._passes(data, position + 12, after - 4, hit >= end):
                    self._skip = after - end
                    position = end
                break
            if hit < after:
                self._record(data, position + 12, after - 4, (hit, search.target), points)
                hit = search.next(after)
            else:
                self._look(data, position + 12, after - 4)
            position = after
        return position, points

    def _learn(self, header: bytes) -> bool:
        """Keep the size that a header tells; when its checksum does not hold, give up the file."""
        length, checksum = _HEADER(header)
        if masked(_crc(header[:8])) == checksum:
            if len(self._sizes) >= 4096:
                self._sizes.clear()
            self._sizes[header] = length + _FRAME
            self._first = False
            return True
        self._lost = True
        self._findings.skip("files with a damaged length")
        self._findings.notes.append(
            f"{self._path}: no event file, its first record's length is damaged"
            if self._first
            else f"{self._path}: a record's length is damaged, the rest of the file cannot be read"
        )
        return False

    def _passes(self, data: bytes, start: int, stop: int, hitless: bool) -> bool:
        """Say whether a record that is only begun can be passed over: nothing of it that is missing is wanted."""
        if stop - start < _SMALL:
            return False
        if hitless and _one_value(data, start, stop):
            return True
        if stop - start > LIMIT:
            self._findings.skip("records longer than 8 MiB")
            return True
        return False

    def _record(
        self, data: bytes, start: int, end: int, found: tuple[int, Target], points: list[MetricPoint]
    ) -> None:
        """Read the record `data[start:end]`, in which a target's tag seems to stand."""
        hit, target = found
        checksum = _crc(data[start:end])
        if ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF != _uint32(data, end)[0]:
            self._findings.skip("damaged records")
            return
        step_end = -1
        if end - start > 10 and data[start] == 0x09 and data[start + 9] == 0x10:  # time and step, as all have
            step, step_end = summaries.step_at(data, start + 10)
            number = hit + target.offset
            if (
                target.live
                and data[step_end:number] == target.before
                and data[number + target.width : end] == target.behind
            ):
                wall_time = _double(data, start + 1)[0]
                time = (
                    int(wall_time * 1e6 + 0.5) * 1000 if 0 < wall_time < _YEAR_10000 else self._stamp.next()
                )
                value = target.write(target.read(data, number)[0])
                self._findings.lines += 1
                for name in target.live:
                    points.append(_new(MetricPoint, (name, value, time, step)))
                return
        self._decode(data, start, end, (step_end, hit), points)

    def _decode(
        self, data: bytes, start: int, end: int, between: tuple[int, int], points: list[MetricPoint]
    ) -> None:
        """Read a record in full: one of several values, of unusual order, or the first of its layout."""
        before = len(points)
        try:
            event = summaries.event(data, start, end)
            for value in event.values:
                target = self._by_tag.get(value.tag)
                found = summaries.scalar(data, value.start, value.stop) if target else None
                if target is None or found is None:
                    continue
                live = self._live(target)
                if live:
                    time = self._time(event.wall_time)
                    points += [MetricPoint(name, found.text, time, event.step) for name in live]
                if len(event.values) == 1:
                    target.learn(data, between, end, found)
        except ValueError:
            self._findings.skip("records that are no events")
            return
        self._saw(event)
        self._findings.lines += len(points) > before

    def _live(self, target: Target) -> tuple[str, ...]:
        """Settle which names a tag answers, at its first point, and keep it for this file."""
        if target.live is None:
            live = []
            for name, literal in target.answers:
                if self._begun.get(name, self._source.literal(name, literal)) != literal:
                    continue
                live.append(name)
                if "/" in name:
                    self._begun[name] = literal
                self._source.hit(name, self._run, target.tag.decode("utf-8", "replace"))
            target.live = tuple(live)
        return target.live

    def _time(self, wall_time: float) -> int:
        """Turn seconds into nanoseconds, to the microsecond: a double holds no more of today's seconds."""
        if 0 < wall_time < _YEAR_10000:
            return int(wall_time * 1e6 + 0.5) * 1000
        return self._stamp.next()

    def _look(self, data: bytes, start: int, end: int) -> None:
        """Look at a record without a wanted tag, for its checksum and its tags."""
        if masked(_crc(data[start:end])) != _uint32(data, end)[0]:
            self._findings.skip("damaged records")
        elif self._sample > 0:
            try:
                self._saw(summaries.event(data, start, end))
            except ValueError:
                self._findings.skip("records that are no events")

    def _saw(self, event: summaries.Event) -> None:
        if self._sample > 0:
            self._sample -= 1
            self._every = self._sample > 0 or self._source.check_all
            prefix = "" if self._run == "." else f"{self._run}/"
            for value in event.values:
                self._findings.saw(prefix + value.tag.decode("utf-8", "replace"))


def _one_value(data: bytes, start: int, stop: int) -> bool:
    """Say whether a record, of which the beginning is there, holds nothing behind the value it is within."""
    try:
        for number, wire, begin, end in summaries.fields(data, start, stop):
            if wire == 0 or end < len(data):
                continue
            if end != stop:
                return False
            if number != 5:
                return True  # a graph, say
            for _, _, _, last in summaries.fields(data, begin, end):
                if last >= len(data):
                    return last == stop
    except (ValueError, IndexError):
        return False
    return False
