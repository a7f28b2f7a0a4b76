"""A pod's containers as local processes: the kubelet's order, expansion, exit statuses, mounts."""

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from cli import sandbox
from cli.localpod import LocalPod, Machine, PodError, expand

JSON = dict[str, Any]
PYTHON = sys.executable


@pytest.fixture
def lines() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def machine(tmp_path: Path, lines: list[tuple[str, str]]) -> Machine:
    return Machine(
        scratch=tmp_path,
        cwd=tmp_path,
        entrypoints={"known:1": ["/bin/echo", "from the image"]},
        path=os.environ["PATH"],
        sandboxed=not sandbox.available(tmp_path),
        echo=lambda name, line: lines.append((name, line)),
    )


def pod(*containers: JSON, init: list[JSON] | None = None, **spec: Any) -> JSON:
    metadata = {"name": "p", "namespace": "ns", "labels": {"katib.kubeflow.org/trial": "t1"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "initContainers": init or [],
            "containers": list(containers),
            "terminationGracePeriodSeconds": 5,
            **spec,
        },
    }


def shell(script: str, name: str = "main", **more: Any) -> JSON:
    return {"name": name, "image": "i", "command": ["/bin/sh", "-c", script], **more}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(A)", "x1y1"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$(B)", "$(B)"),
        ("$A ${A} $", "$A ${A} $"),
        ("$$$$", "$$"),
    ],
)
def test_a_reference_is_expanded_as_the_kubelet_does(text: str, expected: str) -> None:
    assert expand(text, {"A": "1"}) == expected


@pytest.mark.parametrize(
    ("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$$$", 137), ("kill -TERM $$$$", 143)]
)
def test_the_exit_status_is_the_primary_containers(machine: Machine, script: str, status: int) -> None:
    assert LocalPod(pod(shell("exit 3", "other"), shell(script)), machine).run("main") == status


def test_init_containers_run_first_and_a_failed_one_ends_the_pod(
    machine: Machine, lines: list[tuple[str, str]]
) -> None:
    init = [shell("echo one", "a"), shell("exit 4", "b"), shell("echo never", "c")]
    assert LocalPod(pod(shell("echo never"), init=init), machine).run("main") == 4
    assert lines == [("a", "one")]


def test_sidecars_start_before_the_training_and_end_after_it_last_first(
    machine: Machine, lines: list[tuple[str, str]]
) -> None:
    script = "trap 'echo end; exit 0' TERM; echo start; while :; do sleep 0.05; done"
    init = [shell(script, name, restartPolicy="Always") for name in ("first", "second")]
    for sidecar in init:
        sidecar["lifecycle"] = {"postStart": {"exec": {"command": ["sleep", "0.3"]}}}
    assert LocalPod(pod(shell("echo training"), init=init), machine).run("main") == 0
    assert lines == [
        ("first", "start"),
        ("second", "start"),
        ("main", "training"),
        ("second", "end"),
        ("first", "end"),
    ]


def test_a_sidecar_that_ends_is_started_again(machine: Machine, lines: list[tuple[str, str]]) -> None:
    init = [shell("echo up; exit 1", "side", restartPolicy="Always")]
    LocalPod(pod(shell("sleep 0.7"), init=init), machine).run("main")
    assert lines.count(("side", "up")) == 2


def test_a_sidecar_that_ignores_its_signal_is_killed_at_the_end_of_grace(machine: Machine) -> None:
    init = [shell("trap '' TERM; while :; do sleep 0.1; done", "side", restartPolicy="Always")]
    begun = time.monotonic()
    assert (
        LocalPod(pod(shell("sleep 0.2"), init=init, terminationGracePeriodSeconds=1), machine).run("main")
        == 0
    )
    assert time.monotonic() - begun < 30


def test_stopping_ends_the_containers_as_a_deletion_does(machine: Machine) -> None:
    local = LocalPod(pod(shell("sleep 60")), machine)
    threading.Timer(0.5, local.stop).start()
    assert local.run("main") == 143


def test_env_knows_fields_and_earlier_variables(machine: Machine, lines: list[tuple[str, str]]) -> None:
    env = [
        {
            "name": "TRIAL",
            "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['katib.kubeflow.org/trial']"}},
        },
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "BOTH", "value": "$(TRIAL)/$(POD)/$(UNKNOWN)"},
    ]
    command = [
        PYTHON,
        "-c",
        "import os, sys; print(os.environ['BOTH'], sys.argv[1])",
        '$(TRIAL) it\'s "$HOME"',
    ]
    LocalPod(pod({"name": "main", "image": "i", "command": command, "env": env}), machine).run("main")
    assert lines == [("main", 't1/p/$(UNKNOWN) t1 it\'s "$HOME"')]


def test_the_callers_own_unbuffered_setting_does_not_reach_the_training(
    machine: Machine, lines: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    LocalPod(pod(shell("echo [$PYTHONUNBUFFERED]")), machine).run("main")
    assert lines == [("main", "[]")]


def test_a_known_image_stands_for_its_entrypoint(machine: Machine, lines: list[tuple[str, str]]) -> None:
    LocalPod(pod({"name": "main", "image": "known:1", "args": ["and args"]}), machine).run("main")
    assert lines == [("main", "from the image and args")]


def test_volumes_are_shared_at_each_containers_own_path(
    machine: Machine, lines: list[tuple[str, str]]
) -> None:
    if not machine.sandboxed:
        pytest.skip("this machine allows no mount namespaces")
    mount = {"name": "v", "mountPath": "/data/out"}
    reader = {"name": "v", "mountPath": "/elsewhere/in", "readOnly": True}
    init = [shell("echo hello > /data/out/file", "writer", volumeMounts=[mount])]
    main = shell(
        "cat /elsewhere/in/file; touch /elsewhere/in/x 2>/dev/null || echo read-only", volumeMounts=[reader]
    )
    status = LocalPod(pod(main, init=init, volumes=[{"name": "v", "emptyDir": {}}]), machine).run("main")
    assert (status, lines) == (0, [("main", "hello"), ("main", "read-only")])
    assert not Path("/data/out").exists()
    assert not Path("/elsewhere").exists()


@pytest.mark.parametrize(
    ("container", "named"),
    [
        ({"name": "main", "image": "unknown:1"}, "command"),
        (shell("x", envFrom=[{"secretRef": {"name": "s"}}]), "envFrom"),
        (
            shell("x", env=[{"name": "K", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]),
            "secretKeyRef",
        ),
        (shell("x", volumeMounts=[{"name": "claim", "mountPath": "/d"}]), "persistentVolumeClaim"),
        (shell("x", volumeMounts=[{"name": "none", "mountPath": "/d"}]), "no such volume"),
    ],
)
def test_what_cannot_be_had_here_is_named(machine: Machine, container: JSON, named: str) -> None:
    volumes = [{"name": "claim", "persistentVolumeClaim": {"claimName": "c"}}]
    with pytest.raises(PodError, match=named):
        LocalPod(pod(container, volumes=volumes), machine).run("main")


def test_without_a_sandbox_only_the_private_volume_can_be_had(
    tmp_path: Path, lines: list[tuple[str, str]]
) -> None:
    bare = Machine(
        tmp_path, tmp_path, {}, os.environ["PATH"], False, lambda name, line: lines.append((name, line))
    )
    private = {"name": "trialtap", "mountPath": "/var/run/trialtap"}
    volumes = [{"name": "trialtap", "emptyDir": {}}, {"name": "data", "emptyDir": {}}]
    main = {
        "name": "main",
        "image": "i",
        "command": ["/bin/echo", "/var/run/trialtap/x"],
        "volumeMounts": [private],
    }
    assert LocalPod(pod(main, volumes=volumes), bare).run("main") == 0
    assert lines == [("main", f"{tmp_path}/volumes/trialtap/x")]
    other = shell("x", volumeMounts=[{"name": "data", "mountPath": "/data"}])
    with pytest.raises(PodError, match="mount namespace"):
        LocalPod(pod(other, volumes=volumes), bare).run("main")
