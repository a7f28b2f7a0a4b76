"""The wire: Katib's names and numbers, ours beyond 1000, in a pool that clashes with nobody."""

import subprocess
import sys
from pathlib import Path

from google.protobuf import descriptor_pb2, descriptor_pool

from trialtap import messages

PROTO = Path(messages.__file__).parent


def test_the_stored_descriptor_is_the_one_of_the_proto_file(tmp_path: Path) -> None:
    out = tmp_path / "set"
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-I", PROTO, f"--descriptor_set_out={out}", "api.proto"],
        check=True,
    )
    made = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file[0]
    stored = descriptor_pb2.FileDescriptorProto.FromString((PROTO / "api.binpb").read_bytes())
    assert made == stored, "run `make proto`"


def test_the_default_pool_is_left_to_katibs_sdk() -> None:
    foreign = descriptor_pb2.FileDescriptorProto(name="api.proto", package="api.v1.beta1", syntax="proto3")
    foreign.message_type.add(name="Metric").field.add(name="other", number=1, type=9, label=1)
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(foreign.SerializeToString())
    assert pool.FindMessageTypeByName("api.v1.beta1.Metric").fields_by_number[1].name == "other"
    assert messages.Metric(name="a", value="b").name == "a"


def test_a_peer_that_knows_only_katibs_fields_reads_ours() -> None:
    row = messages.MetricLog(time_stamp="t", metric=messages.Metric(name="a", value="b"), step=-3)
    assert row.SerializeToString().startswith(b"\x0a\x01t\x12\x06\x0a\x01a\x12\x01b")
    assert {field.number for field in messages.Origin.DESCRIPTOR.fields} == set(range(1, 8))
    added = [f for m in messages.FILE.message_types_by_name.values() for f in m.fields if f.number >= 1000]
    assert {field.number for field in added} == {1001}
