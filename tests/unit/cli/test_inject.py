"""`trialtap inject`: what the webhook would do, said to a person who has files and no cluster."""

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonpatch
import pytest
import yaml

from cli.__main__ import main
from tests.support.admission import RECORDED, TESTS, Case, load_case, recorded
from tests.support.registry import Registry, run_registry

CASES = [load_case(file) for file in sorted((TESTS / "golden" / "pods").glob("*/case.yaml"))]
Capture = pytest.CaptureFixture[str]


def write(folder: Path, name: str, document: Any) -> str:
    file = folder / name
    file.write_text(json.dumps(document), encoding="utf-8")
    return str(file)


def files_of(case: Case, folder: Path) -> list[str]:
    """Flags that give the command a golden case."""
    objects = {"apiVersion": "v1", "kind": "List", "items": case.all_objects}
    return [
        *("-f", write(folder, "review.json", case.review)),
        *("-f", write(folder, "objects.json", objects)),
        *("--settings", write(folder, "settings.json", case.settings)),
    ]


@pytest.mark.parametrize("case", [c for c in CASES if c.image is None], ids=lambda case: case.name)
def test_it_answers_every_golden_case_as_the_webhook_does(
    case: Case, tmp_path: Path, capsys: Capture
) -> None:
    verdict = case.answer()
    status = main(["inject", *files_of(case, tmp_path), "-o", "review"])
    out, said = capsys.readouterr()
    response = json.loads(out)["response"]
    assert status == (1 if verdict.refusal else 0)
    assert response["allowed"] is (verdict.refusal is None)
    patch = json.loads(base64.b64decode(response.get("patch", "W10=")))
    assert patch == json.loads(json.dumps(verdict.patch))
    assert response.get("warnings", []) == [warning[:512] for warning in verdict.warnings]
    if verdict.refusal and "look-ups" not in verdict.refusal.message:
        assert verdict.refusal.message in said
    assert len(said.splitlines()) == 1 + len(verdict.warnings)


def test_the_pod_is_printed_as_yaml_that_the_webhook_would_make(tmp_path: Path, capsys: Capture) -> None:
    case = next(case for case in CASES if case.name == "job-stdout")
    assert main(["inject", *files_of(case, tmp_path)]) == 0
    out, said = capsys.readouterr()
    golden = TESTS / "golden" / "pods" / "job-stdout" / "pod.yaml"
    assert yaml.safe_load(out) == yaml.safe_load(golden.read_text())
    assert said == "pod hpo/mnist-a1b2c3-…: injected\n"


def test_the_patch_is_printed_as_json(tmp_path: Path, capsys: Capture) -> None:
    case = next(case for case in CASES if case.name == "job-stdout")
    assert main(["inject", *files_of(case, tmp_path), "-o", "patch"]) == 0
    patch = json.loads(capsys.readouterr().out)
    assert jsonpatch.apply_patch(case.before, patch) == jsonpatch.apply_patch(
        case.before, list(case.answer().patch)
    )


def test_a_pod_needs_no_review_and_stdin_is_a_file(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    document = recorded("job-stdout")
    pod = document["review"]["request"]["object"]
    monkeypatch.setattr("sys.stdin", io.StringIO(yaml.safe_dump_all([pod, *document["objects"]])))
    assert main(["inject", "-f", "-"]) == 0
    out, said = capsys.readouterr()
    assert yaml.safe_load(out)["spec"]["initContainers"][-1]["name"] == "metrics-logger-and-collector"
    assert said == "pod hpo/mnist-a1b2c3-…: injected\n"


def test_what_names_no_namespace_is_in_the_one_that_is_given(tmp_path: Path, capsys: Capture) -> None:
    document = recorded("job-stdout")
    objects = [document["review"]["request"]["object"], *document["objects"]]
    for item in objects:
        del item["metadata"]["namespace"]
    file = write(tmp_path, "all.json", {"apiVersion": "v1", "kind": "List", "items": objects})
    assert main(["inject", "-f", file, "-n", "team"]) == 0
    out, said = capsys.readouterr()
    args = yaml.safe_load(out)["spec"]["initContainers"][-1]["args"]
    assert args[args.index("--namespace") + 1] == "team"
    assert said == "pod team/mnist-a1b2c3-…: injected\n"


def test_a_trial_of_a_job_needs_no_pod(tmp_path: Path, capsys: Capture) -> None:
    trial = next(item for item in recorded("job-stdout")["objects"] if item["kind"] == "Trial")
    assert main(["inject", "-f", write(tmp_path, "trial.json", trial)]) == 0
    out, said = capsys.readouterr()
    assert yaml.safe_load(out)["spec"]["containers"][0]["command"][0] == "/var/run/trialtap/tap"
    assert said.endswith(": injected\n")


def changed(base: str, **metadata: Any) -> list[dict[str, Any]]:
    document = recorded(base)
    pod = document["review"]["request"]["object"]
    pod["metadata"].update(metadata)
    return [pod, *document["objects"]]


UNTOUCHED = [
    (
        "no owner",
        changed("job-stdout", ownerReferences=None),
        "unchanged: no trial's pod; it has no ownerReferences",
    ),
    (
        "owner not given",
        changed("job-stdout")[:2],
        'unchanged: no trial\'s pod; its owner Job batch/v1 "mnist-a1b2c3" is not among the files',
    ),
    (
        "trial not given",
        [item for item in changed("job-stdout") if item["kind"] != "Trial"],
        'its owner Trial kubeflow.org/v1beta1 "mnist-a1b2c3" is not among the files',
    ),
    (
        "another uid",
        changed(
            "job-stdout",
            ownerReferences=[{"apiVersion": "batch/v1", "kind": "Job", "name": "mnist-a1b2c3", "uid": "x"}],
        ),
        'its owner Job batch/v1 "mnist-a1b2c3" has another uid',
    ),
    (
        "namespace without the label",
        [*changed("job-stdout"), {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "hpo"}}],
        "unchanged: namespace hpo lacks the label katib.kubeflow.org/metrics-collector-injection: enabled",
    ),
]


@pytest.mark.parametrize(
    ("objects", "said"), [case[1:] for case in UNTOUCHED], ids=[case[0] for case in UNTOUCHED]
)
def test_why_a_pod_is_left_alone_is_said(
    objects: list[dict[str, Any]], said: str, tmp_path: Path, capsys: Capture
) -> None:
    file = write(tmp_path, "all.json", {"apiVersion": "v1", "kind": "List", "items": objects})
    assert main(["inject", "-f", file, "-o", "patch"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == []
    assert said in err


def test_a_refused_pod_is_not_printed_and_the_status_says_so(tmp_path: Path, capsys: Capture) -> None:
    case = next(case for case in CASES if case.name == "job-wrong-container")
    assert main(["inject", *files_of(case, tmp_path)]) == 1
    out, said = capsys.readouterr()
    assert out == ""
    assert said.startswith("pod hpo/wc-a1b2c3-…: refused (PrimaryContainerMissing): ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "line 2, column 1"),
        ("kind: Pod", "apiVersion or kind is missing"),
        ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}", "Trial"),
        ("apiVersion: v1\nkind: AdmissionReview", "AdmissionReview: cannot be answered"),
        ("apiVersion: admission.k8s.io/v1\nkind: AdmissionReview\nrequest: {uid: 7}", "request.uid: missing"),
    ],
)
def test_files_that_cannot_be_read_are_said(text: str, said: str, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(text)
    assert main(["inject", "-f", str(file)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert "Traceback" not in err


def test_settings_are_checked_by_name(tmp_path: Path, capsys: Capture) -> None:
    pods = write(tmp_path, "pod.json", changed("job-stdout")[0])
    settings = write(tmp_path, "settings.json", {"sidecar": {"imge": "x"}})
    assert main(["inject", "-f", pods, "--settings", settings]) == 1
    assert "sidecar.imge: unknown; known here are" in capsys.readouterr().err


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with run_registry() as running:
        running.push("team/train", "1", {"Entrypoint": ["/entry"], "Cmd": ["--epochs=3"]})
        yield running


def test_a_registry_is_asked_only_when_told_to(registry: Registry, tmp_path: Path, capsys: Capture) -> None:
    objects = changed("job-no-command")
    objects[0]["spec"]["containers"][0].update(image=f"{registry.host}/team/train:1", args=None)
    pods = write(tmp_path, "pods.json", {"apiVersion": "v1", "kind": "List", "items": objects})
    hosts = {key: [registry.host] for key in ("registries", "privateHosts", "plainHosts")}
    settings = write(tmp_path, "settings.json", {"entrypointLookup": hosts})
    before = registry.requests()
    assert main(["inject", "-f", pods, "--settings", settings]) == 1
    assert "--lookup-entrypoints" in capsys.readouterr().err
    assert registry.requests() == before
    assert main(["inject", "-f", pods, "--settings", settings, "--lookup-entrypoints"]) == 0
    container = yaml.safe_load(capsys.readouterr().out)["spec"]["containers"][0]
    assert container["command"][-1] == "/entry"
    assert container["args"] == ["--epochs=3"]


def test_every_recorded_pod_can_be_given_as_it_was_recorded() -> None:
    assert {case.base for case in CASES} <= {file.stem for file in RECORDED.glob("*.json")}
