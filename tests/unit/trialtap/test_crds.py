"""The chart's CRDs are those of the types: structural, described, preserving what they do not know."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trialtap import crds

CHART = Path(__file__).parents[3] / "charts" / "trialtap" / "crds-source"


@pytest.mark.parametrize("plural", list(crds.definitions()))
def test_the_charts_file_is_fresh(plural: str) -> None:
    assert (CHART / f"{plural}.yaml").read_text() == crds.text(plural), "run `make crds`"


def schemas(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        if "type" in node or "x-kubernetes-int-or-string" in node:
            yield node
        for key in ("properties", "additionalProperties", "items"):
            inner = node.get(key)
            for child in inner.values() if key == "properties" and inner else [inner]:
                yield from schemas(child)


@pytest.mark.parametrize("plural", list(crds.definitions()))
def test_every_level_is_structural_and_open(plural: str) -> None:
    version = crds.definitions()[plural]["spec"]["versions"][0]
    found = list(schemas(version["schema"]["openAPIV3Schema"]))
    assert len(found) > 2
    for schema in found:
        assert not {"anyOf", "$ref", "default", "title"} & schema.keys()
        is_map = "additionalProperties" in schema
        if schema.get("type") == "object":
            assert is_map != bool(schema.get("x-kubernetes-preserve-unknown-fields"))


def test_fields_are_described_for_kubectl_explain() -> None:
    spec = crds.definitions()["experiments"]["spec"]["versions"][0]["schema"]["openAPIV3Schema"][
        "properties"
    ]["spec"]
    for name, field in spec["properties"].items():
        assert field["description"], name
