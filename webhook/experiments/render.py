"""A trial template and a trial's parameters become the trial's run object. Pure.

Substitution is on the parsed tree and in one pass: a value with quotes, newlines, braces or another
placeholder in it cannot break out of its field. Strings stay strings, as with Katib, except in fields
that batch/v1 Job and PodSpec declare as numbers or booleans; a template from a ConfigMap follows its
YAML's quoting.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import yaml

from trialtap.objects import TrialParameter
from webhook.experiments import podtypes
from webhook.review import JSON

PLACEHOLDER: Final = re.compile(r"\$\{trialParameters\.([^{}]*)\}")
_METADATA: Final = re.compile(
    r"\$\{trialSpec\.(?:(Annotations|Labels)\[(.+)\]|(Name|Namespace|Kind|APIVersion))\}"
)
METADATA_KEYS: Final = ("Name", "Namespace", "Kind", "APIVersion", "Annotations[KEY]", "Labels[KEY]")
_TOKEN = re.compile(r"tRiAlTaP(\d+)pArAmEtEr")
_CHARACTERS_BEFORE_TEXT: Final = 1 << 20
"""Longest template text that is parsed: a ConfigMap holds 1 MiB."""


class RenderError(ValueError):
    """A template cannot be rendered; the message names the field or parameter."""


class Plain(str):
    """A scalar that stood in YAML without quotes: what it becomes follows YAML's rules for its final text."""

    __slots__ = ()


def is_metadata(reference: str) -> bool:
    """Whether a trialParameter's reference is `${trialSpec.…}` of a known key."""
    return _METADATA.fullmatch(reference) is not None


def metadata_value(reference: str, template: JSON, name: str, namespace: str) -> str | None:
    """What `${trialSpec.…}` stands for: Name and Namespace are the Trial's, the rest the template's own.

    Returns:
        None where the template has no such label or annotation.
    """
    found = _METADATA.fullmatch(reference)
    if found is None:
        raise RenderError(f"reference {reference!r}: the keys of trialSpec are {', '.join(METADATA_KEYS)}")
    where, key, simple = found.groups()
    if simple:
        return {
            "Name": name,
            "Namespace": namespace,
            "Kind": str(template.get("kind", "")),
            "APIVersion": str(template.get("apiVersion", "")),
        }[simple]
    metadata = template.get("metadata")
    held = metadata.get(where.lower()) if isinstance(metadata, dict) else None
    there = held.get(key) if isinstance(held, dict) else None
    return None if there is None else str(there)


def used(template: Any) -> set[str]:
    """Names of the trialParameters whose placeholders stand anywhere in a template, keys included."""
    return {name for text in _texts(template) for name in PLACEHOLDER.findall(text)}


def _texts(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, dict):
        for key, child in node.items():
            yield from _texts(key)
            yield from _texts(child)
    elif isinstance(node, list):
        for child in node:
            yield from _texts(child)


def parse(text: str) -> JSON:
    """Read a template's YAML or JSON text; placeholders may stand anywhere a scalar may, unquoted too.

    Raises:
        RenderError: it is no YAML, or no object; the message gives the place and quotes nothing of the text.
    """
    if len(text) > _CHARACTERS_BEFORE_TEXT:
        raise RenderError("is longer than a ConfigMap may be")
    found: list[str] = []

    def token(match: re.Match[str]) -> str:
        found.append(match.group())
        return f"tRiAlTaP{len(found) - 1}pArAmEtEr"

    # `{lr: ${trialParameters.lr}}` is no YAML; a word in the placeholder's place is.
    try:
        node = yaml.compose(PLACEHOLDER.sub(token, text), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise RenderError(f"is no YAML: {place}{error.problem}") from None
    except (yaml.YAMLError, RecursionError):
        raise RenderError("is no YAML") from None
    loader = yaml.SafeLoader("")
    document = _construct(node, loader, lambda part: _TOKEN.sub(lambda m: found[int(m[1])], part))
    if not isinstance(document, dict):
        raise RenderError("is no object")
    return document


def _construct(node: Any, loader: yaml.SafeLoader, restore: Callable[[str], str], depth: int = 0) -> Any:
    if depth > 100:
        raise RenderError("is nested too deeply")
    if isinstance(node, yaml.MappingNode):
        return {
            str(_construct(key, loader, restore, depth + 1)): _construct(child, loader, restore, depth + 1)
            for key, child in node.value
        }
    if isinstance(node, yaml.SequenceNode):
        return [_construct(child, loader, restore, depth + 1) for child in node.value]
    if not isinstance(node, yaml.ScalarNode):
        return None
    text = restore(node.value)
    if node.style is None and text != node.value:
        return Plain(text)
    if node.tag == "tag:yaml.org,2002:str" or text != node.value:
        return text
    return _scalar(node.value, loader)


def _scalar(text: str, loader: yaml.SafeLoader) -> Any:
    """What YAML makes of a plain scalar; a date stays text, as in JSON."""
    tag = loader.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    if tag == "tag:yaml.org,2002:timestamp":
        return text
    try:
        return loader.construct_object(yaml.ScalarNode(tag, text))
    except (yaml.YAMLError, ValueError):
        return text


def values(
    template: JSON,
    parameters: Sequence[TrialParameter],
    assignments: Mapping[str, str],
    name: str,
    namespace: str,
) -> dict[str, str]:
    """What each trialParameter's placeholder stands for in one trial.

    Raises:
        RenderError: a parameter has no assignment, or the template lacks a label or annotation.
    """
    result = {}
    for parameter in parameters:
        reference = parameter.reference
        if reference in assignments:
            result[parameter.name] = assignments[reference]
        elif reference.startswith("${"):
            value = metadata_value(reference, template, name, namespace)
            if value is None:
                raise RenderError(f"trialParameter {parameter.name}: the template has no {reference}")
            result[parameter.name] = value
        else:
            raise RenderError(f"trialParameter {parameter.name}: parameter {reference!r} has no value")
    return result


def render(template: JSON, held: Mapping[str, str], name: str, namespace: str) -> JSON:
    """Give the run object of one trial.

    Args:
        template: the parsed trialSpec, or what `parse` made of a ConfigMap's.
        held: what stands for each placeholder, from `values`.
        name: the trial's name, which the run object gets.
        namespace: the trial's namespace, likewise.

    Raises:
        RenderError: a placeholder has no value, or two keys became one.
    """
    loader = yaml.SafeLoader("")
    result = _replace(template, podtypes.of_workload(template), held, loader)
    metadata = result.get("metadata") if isinstance(result.get("metadata"), dict) else {}
    return {**result, "metadata": {**metadata, "name": name, "namespace": namespace}}


def _replace(node: Any, of_type: str, held: Mapping[str, str], loader: yaml.SafeLoader) -> Any:
    if isinstance(node, dict):
        result: JSON = {}
        for key, child in node.items():
            new = _text(key, held)
            if new in result:
                raise RenderError(f"two keys of one object became {new!r}")
            result[new] = _replace(child, podtypes.below(of_type, new, child), held, loader)
        return result
    if isinstance(node, list):
        return [
            _replace(child, podtypes.below(of_type, index, child), held, loader)
            for index, child in enumerate(node)
        ]
    if not isinstance(node, str):
        return node
    text = _text(node, held)
    if isinstance(node, Plain) and of_type != "str":
        return _scalar(text, loader)
    return _typed(text, of_type) if text != node or PLACEHOLDER.search(node) else node


def _text(text: str, held: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in held:
            raise RenderError(f"{match.group()}: no trialParameter has this name")
        return held[name]

    return PLACEHOLDER.sub(value, text)


def _typed(text: str, of_type: str) -> Any:
    """A substituted text in a field of this type; what does not fit stays text, for the API server to refuse."""
    try:
        if of_type == "int":
            number = float(text)
            return int(number) if number.is_integer() else text
        if of_type == "float":
            return float(text)
    except (ValueError, OverflowError):
        return text
    if of_type == "bool" and text.lower() in {"true", "false"}:
        return text.lower() == "true"
    return text
