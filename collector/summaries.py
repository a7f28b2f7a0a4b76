"""The part of TensorFlow's Event, Summary and TensorProto messages that scalars need, read from their bytes.

Written by hand: a sidecar that waits for its first report has no room for protobuf, and most records are
never decoded. Numbers of fields and dtypes: TensorFlow's event.proto, summary.proto, tensor.proto, types.proto.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

# Event
_WALL_TIME, _STEP, _SUMMARY = 1, 2, 5
# Summary: repeated Value
_VALUE = 1
# Summary.Value
_TAG, _SIMPLE_VALUE, _TENSOR, _METADATA = 1, 2, 8, 9
# SummaryMetadata and its PluginData
_PLUGIN_DATA, _PLUGIN_NAME = 1, 1
# TensorProto and its shape
_DTYPE, _SHAPE, _CONTENT, _DIM, _DIM_SIZE = 1, 2, 4, 2, 1

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_double: Final = struct.Struct("<d").unpack_from
_pack_float: Final = struct.Struct("<f").pack


def float32(value: float) -> str:
    """Write a float32 with as few digits as give it back, 9 at most."""
    packed = _pack_float(value)
    text = f"{value:.7g}"  # fewer digits come of it by themselves: noughts at the end are dropped
    try:
        if _pack_float(float(text)) == packed:
            return text
        text = f"{value:.8g}"
        if _pack_float(float(text)) == packed:
            return text
    except OverflowError:
        pass  # the largest float32, rounded up
    return f"{value:.9g}"


def _float16(value: float) -> str:
    packed = struct.pack("<e", value)
    for form in ("%.3g", "%.4g"):
        text = form % value
        try:
            if struct.pack("<e", float(text)) == packed:
                return text
        except OverflowError:
            continue
    return f"{value:.5g}"


def _bfloat16(bits: int) -> str:
    (value,) = struct.unpack("<f", struct.pack("<I", bits << 16))
    for count in range(2, 5):
        text = f"{value:.{count}g}"
        # The nearest bfloat16 of the text: the upper half of its float32, rounded.
        (whole,) = struct.unpack("<I", struct.pack("<f", float(text)))
        if (whole + 0x8000) >> 16 == bits:
            return text
    return float32(value)


def _float8_e5m2(bits: int) -> str:
    (value,) = struct.unpack("<e", struct.pack("<H", bits << 8))
    return float32(value)


def _float8_e4m3fn(bits: int) -> str:
    sign, exponent, fraction = -1 if bits & 0x80 else 1, bits >> 3 & 15, bits & 7
    if bits & 0x7F == 0x7F:
        return "nan"
    size = (8 + fraction) / 8 * 2.0 ** (exponent - 7) if exponent else fraction / 8 * 2.0**-6
    return float32(sign * size)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


class _Type(NamedTuple):
    """A dtype: how `tensor_content` holds it, which field holds it else, and how it is written."""

    code: str
    field: int
    write: Callable[..., str]
    as_bits: bool = False
    """The field's varints, or its bytes, are the number's bits."""


_TYPES: Final = {
    1: _Type("<f", 5, float32),
    2: _Type("<d", 6, repr),
    3: _Type("<i", 7, str),
    4: _Type("<B", 7, str),
    5: _Type("<h", 7, str),
    6: _Type("<b", 7, str),
    9: _Type("<q", 10, str),
    10: _Type("<B", 11, str),  # a boolean is 0 or 1
    11: _Type("<b", 7, str),  # quantized integers, as they are
    12: _Type("<B", 7, str),
    13: _Type("<i", 7, str),
    14: _Type("<H", 13, _bfloat16, as_bits=True),
    15: _Type("<h", 7, str),
    16: _Type("<H", 7, str),
    17: _Type("<H", 7, str),
    19: _Type("<e", 13, _float16, as_bits=True),
    22: _Type("<I", 16, str),
    23: _Type("<Q", 17, str),
    24: _Type("<B", 18, _float8_e5m2, as_bits=True),
    25: _Type("<B", 18, _float8_e4m3fn, as_bits=True),
}


class Scalar(NamedTuple):
    """A number found in a record: its text, and where its bytes are, so that the next is found faster.

    `position` is -1 where the number is not simply `code` at a place (a varint, say).
    """

    text: str
    position: int = -1
    code: str = ""
    write: Callable[..., str] = str


class Value(NamedTuple):
    """One Summary.Value: its tag, and where it begins and ends."""

    tag: bytes
    start: int
    stop: int


class Event(NamedTuple):
    """One record: seconds since 1970 (0.0: not given), step, and the values of its summary."""

    wall_time: float
    step: int
    values: list[Value]


def varint(data: bytes, position: int) -> tuple[int, int]:
    """Read a varint: its value, unsigned, and where it ends.

    Raises:
        ValueError: it has more than ten bytes.
        IndexError: it goes on past the end of `data`.
    """
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, position
        shift += 7
        if shift > 63:
            raise ValueError("a varint of more than ten bytes")


def step_at(data: bytes, position: int) -> tuple[int, int]:
    """Read a varint of a signed 64-bit number; where it ends is -1 if it is none."""
    low = data[position]
    if low < 0x80:
        return low, position + 1
    middle = data[position + 1]
    if middle < 0x80:
        return low - 0x80 + (middle << 7), position + 2
    high = data[position + 2]
    if high < 0x80:
        return low - 0x80 + (middle - 0x80 << 7) + (high << 14), position + 3
    try:
        value, end = varint(data, position)
    except (ValueError, IndexError):
        return 0, -1
    return _signed(value), end


def fields(data: bytes, position: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Walk through the fields of a message that stands in `data[position:stop]`.

    Yields:
        Field number, wire type, then for a varint its value and its end, else where the content begins and
        ends. The last one's end may lie past `stop`: whether that is an error is the caller's to say.

    Raises:
        ValueError: a tag or length is wrong, or a group stands there.
        IndexError: a tag or length goes on past the end of `data`.
    """
    while position < stop:
        key, position = varint(data, position)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, position = varint(data, position)
            yield number, wire, value, position
            continue
        if wire == _BYTES:
            size, position = varint(data, position)
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire}")
        yield number, wire, position, position + size
        position += size


def event(data: bytes, start: int, stop: int) -> Event:
    """Read the record `data[start:stop]` as far as its values' tags.

    Raises:
        ValueError: it is no Event, though its checksum may hold.
    """
    wall_time, step = 0.0, 0
    values: list[Value] = []
    try:
        for number, wire, begin, end in fields(data, start, stop):
            if number == _STEP and wire == _VARINT:
                step = _signed(begin)
            elif end > stop:
                raise ValueError("a field that is longer than its record")
            elif number == _WALL_TIME and wire == _FIXED64:
                (wall_time,) = _double(data, begin)
            elif number == _SUMMARY and wire == _BYTES:
                values += _values(data, begin, end)
    except IndexError:
        raise ValueError("a record that ends within a field") from None
    return Event(wall_time, step, values)


def _values(data: bytes, start: int, stop: int) -> Iterator[Value]:
    for number, wire, begin, end in fields(data, start, stop):
        if number == _VALUE and wire == _BYTES:
            if end > stop:
                raise ValueError("a value that is longer than its summary")
            for inner, inner_wire, first, last in fields(data, begin, end):
                if inner == _TAG and inner_wire == _BYTES:
                    yield Value(data[first:last], begin, end)
                    break


def scalar(data: bytes, start: int, stop: int) -> Scalar | None:
    """Read the number of the Summary.Value `data[start:stop]`; None when it holds none (an image, a text).

    Raises:
        ValueError: the message is malformed.
    """
    found: Scalar | None = None
    try:
        for number, wire, begin, end in fields(data, start, stop):
            if wire != _VARINT and end > stop:
                raise ValueError("a field that is longer than its value")
            if number == _SIMPLE_VALUE and wire == _FIXED32:
                found = Scalar(float32(struct.unpack_from("<f", data, begin)[0]), begin, "<f", float32)
            elif number == _TENSOR and wire == _BYTES:
                found = _tensor(data, begin, end)
            elif (
                number == _METADATA and wire == _BYTES and _plugin(data, begin, end) not in (b"", b"scalars")
            ):
                return None
    except (IndexError, struct.error):
        raise ValueError("a value that ends within a field") from None
    return found


def _plugin(data: bytes, start: int, stop: int) -> bytes:
    for number, wire, begin, end in fields(data, start, stop):
        if number == _PLUGIN_DATA and wire == _BYTES:
            for inner, inner_wire, first, last in fields(data, begin, end):
                if inner == _PLUGIN_NAME and inner_wire == _BYTES:
                    return data[first:last]
    return b""


def _tensor(data: bytes, start: int, stop: int) -> Scalar | None:
    """Read a tensor of one number; a missing value is 0, as everywhere in TensorFlow."""
    dtype = 0
    content: tuple[int, int] | None = None
    typed: list[tuple[int, int, int, int]] = []
    for number, wire, begin, end in fields(data, start, stop):
        if number == _DTYPE and wire == _VARINT:
            dtype = begin
        elif number == _SHAPE and wire == _BYTES:
            if _elements(data, begin, end) != 1:
                return None
        elif number == _CONTENT and wire == _BYTES:
            if end > begin:
                content = begin, end
        else:
            typed.append((number, wire, begin, end))
    kind = _TYPES.get(dtype)
    if kind is None:
        return None
    if content is not None:
        if content[1] - content[0] != struct.calcsize(kind.code):
            return None
        return _fixed(data, content[0], kind)
    for number, wire, begin, end in typed:
        if number == kind.field and (wire != _BYTES or end > begin):
            return _typed(data, wire, begin, kind)
    return Scalar("0")


def _typed(data: bytes, wire: int, begin: int, kind: _Type) -> Scalar:
    """Read the first number of a repeated field, packed or not."""
    if kind.field in (5, 6) or (kind.code == "<B" and kind.as_bits):
        return _fixed(data, begin, kind)
    value = begin if wire == _VARINT else varint(data, begin)[0]
    if kind.as_bits:
        (number,) = struct.unpack(kind.code, struct.pack("<H", value & 0xFFFF))
        return Scalar(kind.write(number))
    return Scalar(kind.write(value if kind.code in ("<Q", "<I") else _signed(value)))


def _fixed(data: bytes, position: int, kind: _Type) -> Scalar:
    (number,) = struct.unpack_from(kind.code, data, position)
    return Scalar(kind.write(number), position, kind.code, kind.write)


def _elements(data: bytes, start: int, stop: int) -> int:
    """Multiply the sizes of a TensorShapeProto; a scalar has none and 1 element."""
    elements = 1
    for number, wire, begin, end in fields(data, start, stop):
        if number == _DIM and wire == _BYTES:
            size = 0
            for inner, inner_wire, value, _ in fields(data, begin, end):
                if inner == _DIM_SIZE and inner_wire == _VARINT:
                    size = _signed(value)
            elements *= size
    return elements
