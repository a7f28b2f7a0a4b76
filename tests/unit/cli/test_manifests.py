"""Files of Kubernetes objects: YAML, JSON, lists, standard input; faults name the file and the place."""

import io
from pathlib import Path

import pytest

from cli import manifests

OBJECT = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (OBJECT, ["a"]),
        (OBJECT + "---\n" + OBJECT.replace("a}", "b}") + "---\n", ["a", "b"]),
        ('{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "j"}}', ["j"]),
        (
            '{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "l"}}]}',
            ["l"],
        ),
        ("", []),
    ],
)
def test_objects_are_read_in_order(tmp_path: Path, text: str, names: list[str]) -> None:
    (tmp_path / "f").write_text(text)
    assert [o["metadata"]["name"] for o in manifests.load([str(tmp_path / "f")])] == names


def test_a_dash_is_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(OBJECT))
    assert len(manifests.load(["-"])) == 1


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"a: [", "line 2, column 1: did not find"),
        (b"- 1", "document 1: is no Kubernetes object but list"),
        (b"kind: Pod", "apiVersion or kind is missing"),
        (b"apiVersion: v1\nkind: Pod\nmetadata: 3", "metadata is no mapping"),
        (b"\xff\xfe\xff", "UTF-8"),
        (b"[" * 20000, "nest"),
    ],
)
def test_a_fault_names_the_file_and_the_place(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "f.yaml").write_bytes(data)
    with pytest.raises(manifests.ManifestError, match=said) as fault:
        manifests.load([str(tmp_path / "f.yaml")])
    assert "f.yaml" in str(fault.value)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(manifests.ManifestError, match="/nowhere: No such file"):
        manifests.load(["/nowhere"])


def test_a_time_stays_text_as_kubernetes_has_it(tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text("apiVersion: v1\nkind: Pod\nmetadata: {creationTimestamp: 2026-12-01T04:38:29Z}\n")
    assert manifests.load([str(file)])[0]["metadata"]["creationTimestamp"] == "2026-12-01T04:38:29Z"
