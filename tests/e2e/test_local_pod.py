"""`trialtap run` runs what the patched pod says and nothing else: the metrics come by its sidecar."""

import os
import shutil
from pathlib import Path

import pytest

from cli import sandbox, trialpod
from cli.local import Services, Watcher, admit
from cli.localpod import LocalPod, Machine
from trialtap import names

TAP = Path(__file__).parents[2] / "collector" / "tap"
TRIAL = {
    "apiVersion": "kubeflow.org/v1beta1",
    "kind": "Trial",
    "metadata": {"name": "t", "namespace": "ns"},
    "spec": {
        "objective": {"type": "minimize", "objectiveMetricName": "loss"},
        "primaryContainerName": "main",
        "runSpec": {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "spec": {
                "template": {
                    "spec": {
                        "containers": [{"name": "main", "image": "i", "command": ["/bin/echo", "loss=0.5"]}]
                    }
                }
            },
        },
    },
}


@pytest.mark.parametrize("sidecar", [True, False], ids=["with its sidecar", "with the sidecar taken out"])
def test_metrics_arrive_only_by_the_sidecar(tmp_path: Path, sidecar: bool) -> None:
    trial = trialpod.build([TRIAL])
    lines: list[str] = []
    with Services(trial, tmp_path, database=None, http="127.0.0.1:0") as services:
        pod = admit(trial, services)
        assert [c["name"] for c in pod["spec"]["initContainers"]] == [names.LOGGER_CONTAINER]
        if not sidecar:
            del pod["spec"]["initContainers"]
            # What the sidecar does besides collecting: without tap in its place the training could not start.
            private = tmp_path / "volumes" / names.PRIVATE_VOLUME
            private.mkdir(parents=True)
            shutil.copy(TAP, private / "tap")
            os.mkfifo(private / "control")
        machine = Machine(
            scratch=tmp_path,
            cwd=tmp_path,
            entrypoints=services.entrypoints,
            path=services.path,
            sandboxed=not sandbox.available(tmp_path),
            echo=lambda _name, line: lines.append(line),
        )
        assert LocalPod(pod, machine).run("main") == 0
        with Watcher(trial, services.database, lambda _: None) as watcher:
            summaries = watcher.finish()
    assert "loss=0.5" in lines
    assert list(summaries) == (["loss"] if sidecar else [])
