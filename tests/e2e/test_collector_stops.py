"""Early stopping of a kind that is read from files: rules over a kill, rows first, then the mark, then the stop."""

import os
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.collecting import DbManager, until
from tests.support.eventfiles import event, version
from tests.support.sidecar import Sidecar
from trialtap import messages


class EarlyStopping:
    """The service that marks a trial: it refuses first, and notes the rows that were stored when it was asked."""

    def __init__(self, db: DbManager, refusals: int) -> None:
        self.db, self.refusals = db, refusals
        self.calls: list[tuple[str, int]] = []
        self.server = grpc.server(futures.ThreadPoolExecutor(2))
        self.server.add_generic_rpc_handlers((self,))
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def service(self, details: Any) -> Any:
        def mark(request: Any, context: grpc.ServicerContext) -> Any:
            self.calls.append((request.trial_name, len(self.db.rows(request.trial_name, "value"))))
            if len(self.calls) <= self.refusals:
                context.abort(grpc.StatusCode.UNAVAILABLE, "not yet")
            return messages.SetTrialStatusReply()

        assert details.method == messages.SET_TRIAL_STATUS.path
        return grpc.unary_unary_rpc_method_handler(
            mark,
            request_deserializer=messages.SetTrialStatusRequest.FromString,
            response_serializer=messages.SetTrialStatusReply.SerializeToString,
        )


@pytest.fixture
def marker(db: DbManager) -> Iterator[EarlyStopping]:
    service = EarlyStopping(db, refusals=1)
    yield service
    service.server.stop(0).wait()


def test_event_files_stop_a_training_once_every_rule_is_met(
    tmp_path: Path, db: DbManager, marker: EarlyStopping, sidecar: Any
) -> None:
    path = tmp_path / "events" / "tfevents.1"
    path.parent.mkdir()
    collector: Sidecar = sidecar(
        "--kind", "TensorFlowEvent", "-path", str(path.parent), "-m", "loss;lr", "-s-earlystop", marker.address,
        "-stop-rule", "loss;0.5;greater;3", "-stop-rule", "lr;0.1;less;0",
    )  # fmt: skip
    control = os.open(tmp_path / "run" / "control", os.O_RDONLY | os.O_NONBLOCK)

    def stopped() -> bool:
        try:
            return os.read(control, 1) == b"s"
        except BlockingIOError:
            return False

    path.write_bytes(version() + event(1, loss=0.9) + event(2, loss=0.8, lr=0.05))
    until(lambda: len(collector.rows()) == 3, what="the first rows are stored")
    until(lambda: b'"loss":2' in (tmp_path / "run" / "checkpoint").read_bytes(), what="the counts are saved")
    collector.kill()
    assert not stopped()
    assert marker.calls == []
    collector.start()
    with path.open("ab") as file:
        file.write(event(3, loss=0.7))  # the third report, counted over the kill
    until(stopped, what="the training is stopped")
    assert [trial for trial, _ in marker.calls] == ["trial-1", "trial-1"]
    assert {rows for _, rows in marker.calls} == {4}
    with path.open("ab") as file:
        file.write(event(4, loss=0.1))  # what a training still writes while it ends
    assert collector.end() == 0
    assert [row[1] for row in collector.rows()] == ["0.9", "0.8", "0.05", "0.7", "0.1"]
    os.close(control)
