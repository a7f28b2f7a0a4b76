"""Katib's published SDK against our DB manager."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.unit.dbmanager.conftest import Process
from trialtap.messages import DELETE, REPORT

SCRIPT = """
import json, sys
from kubeflow.katib import KatibClient, report_metrics
from kubeflow.katib.utils import utils
utils.get_current_k8s_namespace = lambda: "default"  # it reads a file that only pods have
address, kubeconfig = sys.argv[1:]
for epoch in range(3):
    report_metrics({"loss": 1 / (epoch + 1), "accuracy": 0.5 + epoch / 10, "epoch": epoch}, db_manager_address=address)
client = KatibClient(config_file=kubeconfig, namespace="default")
logs = client.get_trial_metrics("sdk-trial", db_manager_address=address)
print(json.dumps([[log.metric.name, log.metric.value, log.time_stamp] for log in logs]))
collected = client.get_trial_metrics("collected", db_manager_address=address)
print(json.dumps([log.metric.value for log in collected]))
try:
    report_metrics({"x" * 256: 1}, db_manager_address=address)
except RuntimeError as error:
    print(error)
"""


@pytest.mark.sdk
def test_the_sdk_reports_and_reads_back(start: Callable[..., Process], tmp_path: Path) -> None:
    python = os.environ.get("TRIALTAP_TEST_KATIB_SDK")
    if python is None:
        pytest.skip(
            "TRIALTAP_TEST_KATIB_SDK is not set: `make sdk-venv` makes $TRIALTAP_CACHE/katib-sdk/bin/python"
        )
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            }
        )
    )
    served = start(f"sqlite:///{tmp_path}/trials.db")
    # What our own collector wrote, with the fields that the SDK does not know.
    request = REPORT.request(trial_name="collected")
    log = request.observation_log.metric_logs.add(time_stamp="2026-01-01T00:00:00.123456789Z", step=7)
    log.metric.name, log.metric.value = "loss", "0.25"
    request.origin.namespace, request.origin.stream = "ns", "s"
    served.call(REPORT, request)

    done = subprocess.run(
        [python, "-c", SCRIPT, served.ports["grpc"], str(kubeconfig)],
        env={**os.environ, "KATIB_TRIAL_NAME": "sdk-trial"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    own, collected, refusal = done.stdout.splitlines()[:3]
    rows = json.loads(own)
    assert [row[:2] for row in rows[:3]] == [["loss", "1.0"], ["accuracy", "0.5"], ["epoch", "0"]]
    assert [row[1] for row in rows if row[0] == "accuracy"] == ["0.5", "0.6", "0.7"]
    assert json.loads(collected) == ["0.25"]
    assert "metric.name: has 256 characters" in done.stdout[done.stdout.index(refusal) :]
    served.call(DELETE, DELETE.request(trial_name="sdk-trial"))
