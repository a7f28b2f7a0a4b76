"""`trialtap validate` and `trialtap render`, as a person runs them."""

from pathlib import Path

import pytest
import yaml

from cli.__main__ import main

BASE = Path(__file__).parents[2] / "cases" / "experiments" / "base.yaml"


def changed(tmp_path: Path, old: str, new: str) -> str:
    text = BASE.read_text()
    assert old in text
    (tmp_path / "e.yaml").write_text(text.replace(old, new))
    return str(tmp_path / "e.yaml")


def test_a_valid_experiment_exits_0_and_says_what_was_defaulted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "-f", str(BASE)]) == 0
    said = capsys.readouterr().err
    assert 'Experiment "random": valid; defaulted: ' in said
    assert "spec.trialTemplate.successCondition" in said


def test_o_yaml_prints_the_defaulted_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "-f", str(BASE), "-o", "yaml"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["spec"]["resumePolicy"] == "Never"


def test_faults_exit_1_with_a_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = changed(tmp_path, "type: minimize", "type: minimise")
    assert main(["validate", "-f", file]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert 'spec.objective.type: Unsupported value: "minimise"' in lines[0]


def test_an_update_is_judged_against_the_old_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = changed(tmp_path, "goal: 0.001", "goal: 0.002")
    assert main(["validate", "-f", file, "--old", str(BASE)]) == 1
    assert "spec.objective: Forbidden" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["apiVersion: v1\nkind: Pod\n", "a: ["])
def test_a_file_without_anything_to_judge_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (tmp_path / "f.yaml").write_text(text)
    assert main(["validate", "-f", str(tmp_path / "f.yaml")]) == 1
    assert "f.yaml" in capsys.readouterr().err


def test_rendering_prints_the_run_object(capsys: pytest.CaptureFixture[str]) -> None:
    values = ["--set", "lr=0.1", "--set", "layers=3", "--set", "optimizer=a=b"]
    assert main(["render", "-f", str(BASE), *values, "--name", "t1"]) == 0
    found = yaml.safe_load(capsys.readouterr().out)
    assert found["metadata"] == {"name": "t1", "namespace": "hpo"}
    command = found["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command[2:] == ["--lr=0.1", "--layers=3", "--optimizer=a=b"]


def test_a_config_maps_template_is_rendered_from_the_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = yaml.safe_load(BASE.read_text())
    template = experiment["spec"]["trialTemplate"]
    data = {"job": yaml.safe_dump(template.pop("trialSpec"))}
    template["configMap"] = {"configMapName": "t", "configMapNamespace": "hpo", "templatePath": "job"}
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "t", "namespace": "hpo"},
        "data": data,
    }
    (tmp_path / "e.yaml").write_text(yaml.safe_dump_all([experiment, config_map]))
    values = ["--set", "lr=0.1", "--set", "layers=3", "--set", "optimizer=sgd"]
    assert main(["render", "-f", str(tmp_path / "e.yaml"), *values]) == 0
    assert "--lr=0.1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([], "parameter 'lr' has no value"),
        (["--set", "lr"], "write NAME=VALUE"),
        (["--set", "learningRate=1"], "the references are layers, lr, optimizer"),
    ],
)
def test_what_is_missing_is_named(capsys: pytest.CaptureFixture[str], values: list[str], said: str) -> None:
    assert main(["render", "-f", str(BASE), *values]) == 1
    assert said in capsys.readouterr().err
