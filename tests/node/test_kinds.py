"""Each kind of collector beside the training that it is made for, as a Job trial."""

from typing import Any

import pytest

from tests.support import nodeimages
from tests.support.running import HOME, Trial, python, trial

NUMBERS = ["1.5", "2.5", "3.5"]

FILE = python("""
for number in (1.5, 2.5, 3.5):
    with open("/var/log/katib/metrics.log", "a") as file:
        print(f"loss={number}", file=file)
""")

JSON_LINES = python("""
import json
for step, number in enumerate((1.5, 2.5, 3.5)):
    with open("/var/log/katib/metrics.log", "a") as file:
        print(json.dumps({"step": step, "loss": number}), file=file)
""")

TENSORBOARD = python("""
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.event_file_writer import EventFileWriter
import time
writer = EventFileWriter("/var/log/katib/tfevent/train")
for step, number in enumerate((1.5, 2.5, 3.5)):
    summary = Summary(value=[Summary.Value(tag="loss", simple_value=number)])
    writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))
writer.close()
""")

PROMETHEUS = python("""
import time
from prometheus_client import Gauge, start_http_server
loss = Gauge("loss", "what is minimized")
loss.set(1.5)
start_http_server(8080, addr="127.0.0.1")
for number in (1.5, 2.5, 3.5):
    loss.set(number)
    time.sleep(6)
""")

CSV = python("""
import time
with open("/var/log/training/metrics.csv", "w", buffering=1) as file:
    print("epoch,loss", file=file)
    for epoch, number in enumerate((1.5, 2.5, 3.5)):
        print(epoch, number, sep=",", file=file)
""")

PUSH = python(
    f"""
import kubeflow.katib as katib
for number in (1.5, 2.5, 3.5):
    katib.report_metrics({{"loss": number}}, db_manager_address="trialtap-db-manager.{HOME}:6789")
""",
    env=[{"name": "PYTHONPATH", "value": "/opt/katib"}],
)

CUSTOM = {
    "name": "csv-collector",
    "image": nodeimages.CUSTOM,
    "imagePullPolicy": nodeimages.PULL_POLICY,
    "restartPolicy": "Always",
}

KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "file": (FILE, {"collector": {"kind": "File"}}),
    "json": (
        JSON_LINES,
        {
            "collector": {"kind": "File"},
            "source": {
                "fileSystemPath": {"kind": "File", "path": "/var/log/katib/metrics.log", "format": "JSON"}
            },
        },
    ),
    "tensorboard": (TENSORBOARD, {"collector": {"kind": "TensorFlowEvent"}}),
    "prometheus": (PROMETHEUS, {"collector": {"kind": "PrometheusMetric"}}),
    "custom": (
        CSV,
        {
            "collector": {"kind": "Custom", "customCollector": CUSTOM},
            "source": {"fileSystemPath": {"kind": "File", "path": "/var/log/training/metrics.csv"}},
        },
    ),
    "push": (PUSH, {"collector": {"kind": "Push"}}),
}


@pytest.fixture
def submitted(hpo: str) -> dict[str, Trial]:
    """All of them at once: they run side by side."""
    return {name: Trial(trial(hpo, name, *kind)) for name, kind in KINDS.items()}


def test_what_each_kind_of_training_says_is_in_the_database_once(submitted: dict[str, Trial]) -> None:
    ends = {name: one.ended() for name, one in submitted.items()}
    assert {name: end.type for name, end in ends.items()} == dict.fromkeys(KINDS, "Succeeded"), ends
    assert {name: one.rows() for name, one in submitted.items()} == dict.fromkeys(KINDS, NUMBERS)
    assert {name: one.observation()["loss"]["latest"] for name, one in submitted.items()} == dict.fromkeys(
        KINDS, "3.5"
    )
