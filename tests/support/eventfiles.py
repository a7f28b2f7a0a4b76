"""Writes event files byte by byte, and reads them as TensorBoard does: the oracle."""

import struct
from pathlib import Path
from typing import Any

import google_crc32c
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.util import tensor_util


def _masked(data: bytes) -> bytes:
    checksum = google_crc32c.value(data)
    return struct.pack("<I", ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def record(data: bytes) -> bytes:
    """Frame a record."""
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def event(step: int, wall_time: float = 1.7e9, **values: float) -> bytes:
    """Frame an event of simple values; a tag's `__` stands for `/`."""
    summary = Summary(
        value=[Summary.Value(tag=tag.replace("__", "/"), simple_value=value) for tag, value in values.items()]
    )
    return record(Event(wall_time=wall_time, step=step, summary=summary).SerializeToString())


def image(step: int, size: int, tag: str = "picture") -> bytes:
    """Frame an event that holds an image of `size` bytes."""
    value = Summary.Value(tag=tag, image=Summary.Image(encoded_image_string=bytes(size)))
    return record(Event(wall_time=1.7e9, step=step, summary=Summary(value=[value])).SerializeToString())


def version() -> bytes:
    """Frame the record that every file begins with."""
    return record(Event(wall_time=1.7e9, file_version="brain.Event:2").SerializeToString())


def as_tensorboard_reads(path: Path) -> dict[str, list[tuple[int, float, float]]]:
    """Read tag -> (step, wall time, value) of every scalar as TensorBoard's loader gives it."""
    found: dict[str, list[tuple[int, float, float]]] = {}
    for loaded in EventFileLoader(str(path)).Load():
        for value in loaded.summary.value:
            number = _scalar(value)
            if number is not None:
                found.setdefault(value.tag, []).append((loaded.step, loaded.wall_time, number))
    return found


def _scalar(value: Any) -> float | None:
    if not value.HasField("tensor"):
        return None
    array = tensor_util.make_ndarray(value.tensor)
    return float(array) if array.shape == () and array.dtype.kind in "fiub" else None
