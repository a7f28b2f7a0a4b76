"""Settings: every field is read under its own name, and what is wrong is said by name."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from webhook import settings
from webhook.settings import Settings, SettingsError

EVERYTHING = """
sidecar:
  image: example.com/c:1
  pullPolicy: Always
  pullSecret: pull
  resources: {requests: {cpu: 1}, limits: {memory: 1Gi}}
  imageFromKatibConfig: true
  flushGraceSeconds: 60
  keep: 5
  echo: true
dbAddress: db:6789
dbCA: PEM
tokenAudience: trialtap
earlyStoppingAddress: c:6788
katibNamespace: katib
entrypointLookup:
  enabled: false
  registries: [r.example.com]
  privateHosts: [p.example.com]
  plainHosts: ["127.0.0.1:5000"]
  pullSecretNamespaces: [hpo]
  deadlineSeconds: 2
"""


def test_every_field_can_be_set() -> None:
    read, default = settings.parse(yaml.safe_load(EVERYTHING)), Settings()
    for part, base in (
        (read, default),
        (read.sidecar, default.sidecar),
        (read.entrypoint_lookup, default.entrypoint_lookup),
    ):
        for item in dataclasses.fields(part):
            assert getattr(part, item.name) != getattr(base, item.name), item.name
    assert read.sidecar.resources.requests == {"cpu": "1"}
    assert read.entrypoint_lookup.deadline_seconds == 2.0


@pytest.mark.parametrize("document", [None, {}, {"sidecar": None}, {"sidecar": {"image": None}}])
def test_what_is_not_said_has_its_default(document: Any) -> None:
    assert settings.parse(document) == Settings()


WRONG = [
    ({"sidcar": {}}, r"sidcar: unknown; known here are dbAddress, dbCA, .*sidecar"),
    ({"sidecar": {"pull_policy": "Always"}}, r"sidecar\.pull_policy: unknown; .*pullPolicy"),
    ({"entrypointLookup": {"registry": []}}, r"entrypointLookup\.registry: unknown"),
    ({"sidecar": {"resources": {"request": {}}}}, r"sidecar\.resources\.request: unknown"),
    ({"sidecar": []}, r"sidecar: must be a mapping"),
    ([], r"the document: must be a mapping"),
    ({"dbAddress": 5}, r"dbAddress: must be a string, not 5"),
    ({"sidecar": {"keep": "1Gi"}}, r"sidecar\.keep: must be a whole number"),
    ({"sidecar": {"keep": True}}, r"sidecar\.keep: must be a whole number"),
    ({"sidecar": {"imageFromKatibConfig": "yes"}}, r"imageFromKatibConfig: must be true or false"),
    ({"entrypointLookup": {"deadlineSeconds": True}}, r"deadlineSeconds: must be a number"),
    ({"entrypointLookup": {"registries": "docker.io"}}, r"registries: must be a list of strings"),
    ({"entrypointLookup": {"registries": [1]}}, r"registries: must be a list of strings"),
    ({"sidecar": {"resources": {"limits": []}}}, r"limits: must be a mapping"),
    ({"sidecar": {"pullPolicy": "Sometimes"}}, r"sidecar\.pullPolicy: 'Sometimes' is not one of"),
    ({"sidecar": {"flushGraceSeconds": -1}}, r"sidecar\.flushGraceSeconds: -1 is negative"),
]


@pytest.mark.parametrize(("document", "said"), WRONG)
def test_what_is_wrong_is_said_by_name(document: Any, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        settings.parse(document)


def test_a_file_is_named_in_what_is_wrong_with_it(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    with pytest.raises(SettingsError, match=r"settings\.yaml: cannot be read"):
        settings.load(file)
    file.write_text("{")
    with pytest.raises(SettingsError, match=r"settings\.yaml: cannot be read as YAML"):
        settings.load(file)
    file.write_text("a: 1")
    with pytest.raises(SettingsError, match=r"settings\.yaml: a: unknown"):
        settings.load(file)
    file.write_text(EVERYTHING)
    assert settings.load(file).db_ca == "PEM"


def test_every_field_has_its_sentence() -> None:
    source = Path(settings.__file__).read_text(encoding="utf-8")
    for kind in (Settings, settings.Sidecar, settings.EntrypointLookup, settings.Resources):
        for item in dataclasses.fields(kind):
            line = next(
                i for i, text in enumerate(source.splitlines()) if text.startswith(f"    {item.name}: ")
            )
            assert source.splitlines()[line + 1].startswith('    """'), item.name
