"""Scalars out of Event messages: every numeric dtype, TensorBoard's own messages as the oracle."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.util import tensor_util

from collector import summaries

DTYPES = [
    np.float16, np.float32, np.float64, np.int8, np.int16, np.int32, np.int64,
    np.uint8, np.uint16, np.uint32, np.uint64, np.bool_,
]  # fmt: skip


def text_of(value: Summary.Value) -> str | None:
    """Write one value into an event and read its text back."""
    data = b"\x00" + Event(step=3, wall_time=1.5, summary=Summary(value=[value])).SerializeToString()
    event = summaries.event(data, 1, len(data))
    assert (event.step, event.wall_time) == (3, 1.5)
    (found,) = event.values
    assert found.tag == value.tag.encode()
    number = summaries.scalar(data, found.start, found.stop)
    return number and number.text


def scalar(tensor: TensorProto, plugin: str = "scalars") -> Summary.Value:
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=plugin))
    return Summary.Value(tag="m", tensor=tensor, metadata=metadata)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", [0, 1, 93, -7])
def test_every_numeric_dtype(dtype: type, number: int) -> None:
    if np.dtype(dtype).kind in "ub":
        number = abs(number)
    array = np.array(number, dtype=dtype)
    typed = tensor_util.make_tensor_proto(array)
    if array.dtype in (np.uint32, np.uint64):  # TensorBoard writes them, and cannot read them
        typed.ClearField("tensor_content")
        (typed.uint32_val if array.dtype == np.uint32 else typed.uint64_val).append(number)
    content = TensorProto(dtype=typed.dtype, tensor_shape=typed.tensor_shape, tensor_content=array.tobytes())
    for tensor in (typed, content):
        text = text_of(scalar(tensor))
        assert text is not None
        assert float(text) == float(array)
        if tensor is content or array.dtype not in (np.uint32, np.uint64):
            assert float(text) == float(tensor_util.make_ndarray(tensor))


@pytest.mark.parametrize(
    ("dtype", "bits", "value"),
    [
        (14, 0x3F80, 1.0), (14, 0xBF00, -0.5), (14, 0x3DCD, 0.1),
        (24, 0x3C, 1.0), (24, 0xC0, -2.0), (25, 0x38, 1.0), (25, 0x7E, 448.0), (25, 0x01, 2.0**-9),
    ],
)  # fmt: skip
def test_floats_of_8_bits_and_bfloat16(dtype: int, bits: int, value: float) -> None:
    if dtype == 14:
        tensors = [
            TensorProto(dtype=dtype, half_val=[bits]),
            TensorProto(dtype=dtype, tensor_content=struct.pack("<H", bits)),
        ]
    else:
        tensors = [
            TensorProto(dtype=dtype, float8_val=bytes([bits])),
            TensorProto(dtype=dtype, tensor_content=bytes([bits])),
        ]
    for tensor in tensors:
        text = text_of(scalar(tensor))
        assert text is not None
        assert float(text) == value


@given(st.floats(width=32))
def test_a_float32_is_given_back_by_its_text(value: float) -> None:
    text = summaries.float32(value)
    assert struct.pack("<f", float(text)) == struct.pack("<f", value) or text == "nan"
    assert len(text) <= len(repr(value))


@given(st.floats())
def test_a_double_is_given_back_by_its_text(value: float) -> None:
    text = text_of(scalar(tensor_util.make_tensor_proto(np.array(value))))
    assert text is not None
    assert struct.pack("<d", float(text)) == struct.pack("<d", value) or text == "nan"


@given(st.floats(width=16))
def test_a_half_is_given_back_by_its_text(value: float) -> None:
    text = text_of(scalar(tensor_util.make_tensor_proto(np.array(value, dtype=np.float16))))
    assert text is not None
    assert struct.pack("<e", float(text)) == struct.pack("<e", value) or text == "nan"


def test_an_empty_tensor_of_a_scalar_is_zero() -> None:
    assert text_of(scalar(TensorProto(dtype=1))) == "0"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("a text", scalar(tensor_util.make_tensor_proto(np.array(b"hello")))),
        ("a vector", scalar(tensor_util.make_tensor_proto(np.array([1.0, 2.0])))),
        ("a complex number", scalar(TensorProto(dtype=8, scomplex_val=[1.0, 2.0]))),
        ("another plugin's", scalar(tensor_util.make_tensor_proto(np.array(1.0)), "pr_curves")),
        ("an image", Summary.Value(tag="m", image=Summary.Image(height=1))),
        ("content of another size", scalar(TensorProto(dtype=1, tensor_content=b"123456"))),
        ("nothing", Summary.Value(tag="m")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_number_is_none(name: str, value: Summary.Value) -> None:
    assert text_of(value) is None


def test_a_vector_of_one_is_its_number() -> None:
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    assert text_of(scalar(TensorProto(dtype=1, tensor_shape=shape, float_val=[0.5]))) == "0.5"


@given(st.binary(), st.binary())
def test_malformed_messages_are_value_errors(before: bytes, after: bytes) -> None:
    data = before + b"\x2a" + after
    for read in (summaries.event, summaries.scalar):
        try:
            read(data, 0, len(data))
        except ValueError:
            continue
