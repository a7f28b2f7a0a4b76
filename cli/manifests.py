"""Reads Kubernetes objects from YAML or JSON files, for every command that takes `-f FILE`."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import yaml

JSON = dict[str, Any]


class ManifestError(Exception):
    """A file cannot be read as Kubernetes objects; the message names the file and the place in it."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML as Kubernetes reads it: a time such as a creationTimestamp is text."""

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def load(files: Iterable[str]) -> list[JSON]:
    """Read every object of the files in order; `-` is standard input, a `List` gives its items.

    Raises:
        ManifestError: a file is missing, unreadable, no YAML or JSON, or holds something else than objects.
    """
    return [item for file in files for item in _objects(file)]


def _objects(file: str) -> Iterator[JSON]:
    name = "standard input" if file == "-" else file
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise ManifestError(f"{name}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ManifestError(f"{name}: is no UTF-8 text ({error.reason} at byte {error.start})") from None
    try:
        documents = list(yaml.load_all(text, Loader=_Loader))
    except yaml.YAMLError as error:
        raise ManifestError(f"{name}: {_where(error)}") from None
    except RecursionError:
        raise ManifestError(f"{name}: is nested too deeply") from None
    for index, document in enumerate(documents):
        yield from _flatten(document, f"{name}, document {index + 1}")


def _where(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or "no YAML or JSON"
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}" if mark else f"{problem}: {error}"


def _flatten(document: object, place: str) -> Iterator[JSON]:
    if document is None:
        return
    if not isinstance(document, dict):
        raise ManifestError(f"{place}: is no Kubernetes object but {type(document).__name__}")
    kind = document.get("kind")
    if not isinstance(kind, str) or not isinstance(document.get("apiVersion"), str):
        raise ManifestError(f"{place}: apiVersion or kind is missing; a Kubernetes object has both")
    if kind.endswith("List") and isinstance(document.get("items"), list):
        for index, item in enumerate(document["items"]):
            yield from _flatten(item, f"{place}, items[{index}]")
        return
    if not isinstance(document.get("metadata", {}), dict):
        raise ManifestError(f"{place}: metadata is no mapping")
    yield document
