"""The DB manager as a process: what a client over gRPC sees, on SQLite."""

import contextlib
import re
import signal
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from hypothesis import given, settings
from hypothesis import strategies as st

from dbmanager.__main__ import main
from tests.unit.dbmanager.conftest import Process
from trialtap.messages import DB_MANAGER, DELETE, GET, NEXT_METADATA, REPORT

Start = Callable[..., Process]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One DB manager for the tests that need no other's peace; they use trials of their own."""
    process = Process(f"sqlite:///{tmp_path_factory.mktemp('served')}/trials.db")
    yield process
    process.kill()


@pytest.fixture
def trial(request: pytest.FixtureRequest) -> str:
    """A name for this test alone."""
    return re.sub(r"\W", "-", request.node.name)[-60:]


def report(trial: str, *rows: tuple[str, str, str], **origin: Any) -> Any:
    request = REPORT.request(trial_name=trial)
    for at, name, value in rows:
        log = request.observation_log.metric_logs.add(time_stamp=at)
        log.metric.name, log.metric.value = name, value
    for name, value in (
        {"namespace": "ns", "pod": "pod", "stream": trial, **origin} if origin else {}
    ).items():
        setattr(request.origin, name, value)
    return request


def loss(*values: str) -> list[tuple[str, str, str]]:
    return [(f"2026-01-01T00:00:{index:02d}.5Z", "loss", value) for index, value in enumerate(values)]


def read(served: Process, trial: str, **fields: str) -> list[str]:
    reply = served.call(GET, GET.request(trial_name=trial, **fields))
    return [log.metric.value for log in reply.observation_log.metric_logs]


def refusal(served: Process, *arguments: Any, **options: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as error:
        served.call(*arguments, **options)
    return error.value.code(), error.value.details()  # type: ignore[attr-defined]


# Reports.


def test_a_report_of_a_stream_is_answered_with_the_next_ordinal(served: Process, trial: str) -> None:
    assert served.call(REPORT, report(trial, *loss("1", "2"), first=0)).next == 2
    assert served.call(REPORT, report(trial, *loss("1", "2"), first=0)).next == 2
    assert read(served, trial) == ["1", "2"]


def test_a_report_ahead_is_told_where_to_go_on(served: Process, trial: str) -> None:
    served.call(REPORT, report(trial, *loss("1"), first=0))
    with pytest.raises(grpc.RpcError) as error:
        served.call(REPORT, report(trial, *loss("9"), first=8))
    failed: Any = error.value
    assert failed.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert dict(failed.trailing_metadata())[NEXT_METADATA] == "1"
    assert "send from 1, or set origin.gap" in failed.details()
    assert served.call(REPORT, report(trial, *loss("9"), first=8, gap=True)).next == 9


def test_a_peers_report_has_no_origin_and_its_reply_no_field(served: Process, trial: str) -> None:
    assert served.call(REPORT, report(trial, *loss("1"))).SerializeToString() == b""
    assert read(served, trial) == ["1"]


def test_steps_and_nanoseconds_come_back(served: Process, trial: str) -> None:
    request = report(
        trial, ("2026-01-01T00:00:00.123456789Z", "loss", "1"), ("2026-01-01T02:00:01+02:00", "loss", "2")
    )
    request.observation_log.metric_logs[0].step = -3
    served.call(REPORT, request)
    first, second = served.call(GET, GET.request(trial_name=trial)).observation_log.metric_logs
    assert (first.time_stamp, first.step, first.HasField("step")) == (
        "2026-01-01T00:00:00.123456789Z",
        -3,
        True,
    )
    assert (second.time_stamp, second.HasField("step")) == ("2026-01-01T00:00:01Z", False)


def test_a_row_without_time_is_skipped_as_by_the_peer(served: Process, trial: str) -> None:
    served.call(REPORT, report(trial, ("", "loss", "1"), *loss("2")))
    assert read(served, trial) == ["2"]


INVALID = {
    "no trial": (REPORT, report("", *loss("1")), "trial_name: is empty"),
    "a time that is none": (
        REPORT,
        report("t", *loss("1"), ("noon", "loss", "2")),
        "observation_log.metric_logs[1].time_stamp: 'noon' is no RFC 3339 time",
    ),
    "a long name": (
        REPORT,
        report("t", ("2026-01-01T00:00:00Z", "x" * 256, "1")),
        "metric_logs[0].metric.name: has 256",
    ),
    "a long value": (
        REPORT,
        report("t", *loss("x" * 65_536)),
        "metric_logs[0].metric.value: of metric 'loss' has 65536",
    ),
    "NUL": (REPORT, report("t", *loss("\0")), "metric_logs[0].metric.value: of metric 'loss' holds a NUL"),
    "no stream": (REPORT, report("t", *loss("1"), stream=""), "origin.stream: must be 1-255"),
    "an unknown time to start at": (
        GET,
        GET.request(trial_name="t", start_time="now"),
        "start_time: 'now' is no",
    ),
    "an unknown time to end at": (GET, GET.request(trial_name="t", end_time="now"), "end_time: 'now' is no"),
    "get of no trial": (GET, GET.request(), "trial_name: is empty"),
    "delete of no trial": (DELETE, DELETE.request(), "trial_name: is empty"),
}


@pytest.mark.parametrize(("method", "request_", "reason"), INVALID.values(), ids=INVALID.keys())
def test_what_is_invalid_is_said_by_field(served: Process, method: Any, request_: Any, reason: str) -> None:
    code, details = refusal(served, method, request_)
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert reason in details


@settings(max_examples=150)
@given(st.binary(max_size=200), st.sampled_from([REPORT, GET, DELETE]))
def test_garbage_is_answered_and_never_with_a_traceback(served: Process, data: bytes, method: Any) -> None:
    try:
        served.channel.unary_unary(method.path)(data, timeout=10)
    except grpc.RpcError as error:
        failed: Any = error
        assert failed.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "Traceback" not in failed.details()


def test_garbage_names_the_message_that_was_expected(served: Process) -> None:
    with pytest.raises(grpc.RpcError) as error:
        served.channel.unary_unary(REPORT.path)(b"\xff\xfe\xfd", timeout=10)
    failed: Any = error.value
    assert failed.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "is no api.v1.beta1.ReportObservationLogRequest" in failed.details()


def test_a_message_of_64_mib_is_stored_and_a_larger_one_refused(served: Process, trial: str) -> None:
    request = report(trial)
    value = "1" * 65_000
    log = REPORT.request.FromString(
        report(trial, *loss(value)).SerializeToString()
    ).observation_log.metric_logs[0]
    request.observation_log.metric_logs.extend([log] * ((64 * 1024 * 1024 - 1000) // (log.ByteSize() + 4)))
    size = request.ByteSize()
    assert 63.9 < size / 1024 / 1024 <= 64
    served.call(REPORT, request, timeout=100)
    request.observation_log.metric_logs.extend([log] * 2)
    code, details = refusal(served, REPORT, request, timeout=100)
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "larger than max" in details
    served.call(DELETE, DELETE.request(trial_name=trial))


# Reads: Katib's view.


def test_while_a_stream_is_open_a_read_of_a_metric_is_empty_and_a_read_of_all_is_live(
    served: Process, trial: str
) -> None:
    served.call(REPORT, report(trial, *loss("1"), first=0))
    assert read(served, trial, metric_name="loss") == []
    assert read(served, trial) == ["1"]
    served.call(REPORT, report(trial, first=1, end=True))
    assert read(served, trial, metric_name="loss") == ["1"]


def test_a_read_of_a_metric_leaves_out_what_would_freeze_katibs_min_and_max(
    served: Process, trial: str
) -> None:
    served.call(REPORT, report(trial, *loss("nan", "inf", "2", "-Inf", "1e999"), end=True))
    assert read(served, trial, metric_name="loss") == ["2"]
    assert read(served, trial) == ["nan", "inf", "2", "-Inf", "1e999"]


def test_unavailable_is_hidden_behind_a_number_and_from_reads_of_all(served: Process, trial: str) -> None:
    first = ("0001-01-01T00:00:00Z", "loss", "unavailable")
    served.call(REPORT, report(trial, first))
    assert read(served, trial, metric_name="loss") == ["unavailable"]
    assert read(served, trial) == []
    served.call(REPORT, report(trial, *loss("1")))
    assert read(served, trial, metric_name="loss") == ["1"]
    served.call(REPORT, report(trial, ("0001-01-01T00:00:00Z", "acc", "unavailable")))
    assert read(served, trial, metric_name="acc") == ["unavailable"]


def test_values_that_are_no_numbers_are_values(served: Process, trial: str) -> None:
    served.call(REPORT, report(trial, *loss("Genotype(normal=[])")))
    assert read(served, trial, metric_name="loss") == ["Genotype(normal=[])"]


def test_rows_of_a_retried_attempt_are_kept_and_left_out_of_the_trials_values(
    served: Process, trial: str
) -> None:
    served.call(REPORT, report(trial, *loss("9"), stream=f"{trial}0", attempt=0, end=True))
    served.call(REPORT, report(trial, *loss("1"), stream=f"{trial}1", attempt=1, end=True))
    assert read(served, trial, metric_name="loss") == ["1"]
    assert sorted(read(served, trial)) == ["1", "9"]


def test_filters_are_inclusive(served: Process, trial: str) -> None:
    served.call(REPORT, report(trial, *loss("0", "1", "2", "3"), ("2026-01-01T00:00:01.5Z", "acc", "a")))
    window = {"start_time": "2026-01-01T00:00:01.5Z", "end_time": "2026-01-01T00:00:02.5Z"}
    assert read(served, trial, **window) == ["1", "a", "2"]
    assert read(served, trial, metric_name="loss", **window) == ["1", "2"]


def test_an_unknown_trial_is_an_empty_log_and_the_server_says_who_it_is(served: Process, trial: str) -> None:
    reply = served.call(GET, GET.request(trial_name=trial))
    assert reply.HasField("observation_log")
    assert re.fullmatch(r"trialtap/\d+\.\d+\.\d+", reply.server)


def test_an_answer_past_4_mb_is_thinned_and_says_so(served: Process, trial: str) -> None:
    count = 70_000
    request = report(trial)
    for index in range(count):
        value = {2_000: "-1000000", 3_000: "1000000"}.get(index, str(index))
        log = request.observation_log.metric_logs.add(
            time_stamp=f"2026-01-01T{index // 3600:02d}:{index // 60 % 60:02d}:{index % 60:02d}Z"
        )
        log.metric.name, log.metric.value = "validation-accuracy-of-the-model", value
    served.call(REPORT, request, timeout=60)
    call = served.channel.unary_unary(GET.path, request_serializer=GET.request.SerializeToString)
    data, finished = call.with_call(GET.request(trial_name=trial), timeout=60)
    assert len(data) < 4 * 1024 * 1024
    got = [log.metric.value for log in GET.reply.FromString(data).observation_log.metric_logs]
    assert got[:1000] == [str(index) for index in range(1000)]
    assert got[1000:1002] == ["-1000000", "1000000"]
    assert got[-10_000:] == [str(index) for index in range(count - 10_000, count)]
    assert dict(finished.trailing_metadata())["trialtap-thinned"] == f"{len(got)}/{count}"
    assert len(data) > 2.8 * 1024 * 1024


def test_namespaces_are_kept_apart(served: Process, trial: str) -> None:
    for namespace in ("a", "b"):
        served.call(
            REPORT, report(trial, *loss(namespace), namespace=namespace, stream=f"{trial}-{namespace}")
        )
    code, details = refusal(served, GET, GET.request(trial_name=trial))
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert "held by the namespaces a, b" in details
    assert read(served, trial, namespace="b") == ["b"]
    served.call(DELETE, DELETE.request(trial_name=trial))  # deletes nothing, is OK
    assert read(served, trial, namespace="a") == ["a"]
    served.call(DELETE, DELETE.request(trial_name=trial, namespace="a"))
    assert read(served, trial) == ["b"]


def test_a_late_flush_after_a_delete_is_ok_and_stores_nothing(served: Process, trial: str) -> None:
    served.call(REPORT, report(trial, *loss("1"), first=0))
    served.call(DELETE, DELETE.request(trial_name=trial))
    assert served.call(REPORT, report(trial, *loss("2"), first=1)).next == 2
    assert read(served, trial) == []


# The rest of the port, and HTTP.


def test_health_answers_for_the_server_and_the_service(served: Process) -> None:
    stub = health_pb2_grpc.HealthStub(served.channel)
    for service in ("", DB_MANAGER):
        assert stub.Check(health_pb2.HealthCheckRequest(service=service)).status == 1


def test_reflection_describes_our_messages(served: Process) -> None:
    database = ProtoReflectionDescriptorDatabase(served.channel)
    assert set(database.get_services()) == {
        DB_MANAGER,
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    service = DescriptorPool(database).FindServiceByName(DB_MANAGER)
    assert [method.name for method in service.methods] == [
        "ReportObservationLog", "GetObservationLog", "DeleteObservationLog",
    ]  # fmt: skip
    request = service.FindMethodByName("ReportObservationLog").input_type
    assert {field.name: field.number for field in request.fields} == {
        "trial_name": 1, "observation_log": 2, "origin": 1001,
    }  # fmt: skip


def http(served: Process, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{served.ports['http']}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_probes_and_metrics_are_served(served: Process, trial: str) -> None:
    def stored() -> float:
        found = re.search(r"^trialtap_db_rows_stored_total (\S+)", http(served, "/metrics")[1], re.MULTILINE)
        assert found
        return float(found[1])

    assert http(served, "/healthz") == (200, "ok\n")
    assert http(served, "/readyz") == (200, "ok\n")
    before = stored()
    served.call(REPORT, report(trial, *loss("1", "2"), first=0))
    served.call(REPORT, report(trial, *loss("1", "2"), first=0))
    assert stored() == before + 2
    metrics = http(served, "/metrics")[1]
    assert 'trialtap_db_request_duration_seconds_count{code="OK",method="ReportObservationLog"}' in metrics
    assert "trialtap_db_up 1.0" in metrics


# Its life.


def test_what_was_acknowledged_before_sigkill_is_there_after_it(start: Start, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/trials.db"
    first = start(url)
    acknowledged = 0
    stop = threading.Timer(0.4, first.process.kill)
    stop.start()
    with contextlib.suppress(grpc.RpcError):
        while acknowledged < 1_000_000:
            rows = [
                (f"2026-01-01T00:00:00.{acknowledged + i:06d}Z", "loss", str(acknowledged + i))
                for i in range(10)
            ]
            acknowledged = first.call(REPORT, report("t", *rows, first=acknowledged)).next
    stop.join()
    second = start(url)
    got = read(second, "t")
    assert got[:acknowledged] == [str(index) for index in range(acknowledged)]
    assert acknowledged <= len(got) <= acknowledged + 10
    assert second.call(REPORT, report("t", first=len(got))).next == len(got)


def test_told_to_stop_it_finishes_what_is_in_flight(start: Start, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/trials.db"
    served = start(url)
    calls = []
    stub = served.channel.unary_unary(REPORT.path, request_serializer=REPORT.request.SerializeToString)
    for number in range(20):
        rows = [(f"2026-01-01T00:00:00.{index:06d}Z", "loss", str(index)) for index in range(500)]
        calls.append(stub.future(report("t", *rows, stream=f"s{number}"), timeout=60))
    calls[0].result()
    served.process.send_signal(signal.SIGTERM)
    answered = sum(call.exception() is None for call in calls)
    assert answered >= 1
    served.process.wait(40)
    assert served.process.returncode == 0
    assert len(read(start(url), "t")) == answered * 500


def test_a_port_that_is_taken_is_said(start: Start, tmp_path: Path) -> None:
    served = start(f"sqlite:///{tmp_path}/a.db")
    with pytest.raises(AssertionError, match="cannot serve: .*" + re.escape(served.ports["grpc"])):
        start(f"sqlite:///{tmp_path}/b.db", "--listen", served.ports["grpc"])


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--database", "oracle://x"], "unknown database 'oracle'"),
        (["--listen", "nowhere"], "'nowhere' is not HOST:PORT"),
        (["--keep-days", "0"], "'0' is no number of days above 0"),
        (["--cert", "x"], "--cert and --key go together"),
        (["--http-tls"], "--http-tls needs --cert and --key"),
        (["--cert", "/no/tls.crt", "--key", "/no/tls.key"], "--cert: /no/tls.crt: No such file"),
    ],
)
def test_flags_that_make_no_sense_are_refused_by_name(
    tmp_path: Path, flags: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        sys.exit(main(["--database", f"sqlite:///{tmp_path}/x.db", *flags]))
    assert error.value.code == 2
    assert reason in capsys.readouterr().err
