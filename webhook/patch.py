"""JSON Patch (RFC 6902) between a document and a changed version that shares the unchanged parts with it."""

from typing import Any, Final

from webhook.review import JSON

_ABSENT: Final = object()


def diff(before: Any, after: Any) -> tuple[JSON, ...]:
    """Operations that turn `before` into `after`.

    Parts that are the same object are skipped without a look, so the cost is that of what changed.
    Lists are compared by their common beginning and end: one insertion, removal or move of a run of
    elements is found as such, anything else is replaced element by element.
    """
    operations: list[JSON] = []
    _diff("", before, after, operations)
    return tuple(operations)


def _diff(path: str, before: Any, after: Any, out: list[JSON]) -> None:
    if before is after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        _diff_objects(path, before, after, out)
    elif isinstance(before, list) and isinstance(after, list):
        _diff_lists(path, before, after, out)
    elif not _same(before, after):
        out.append({"op": "replace", "path": path, "value": after})


def _diff_objects(path: str, before: JSON, after: JSON, out: list[JSON]) -> None:
    added = 0
    for key, value in after.items():
        old = before.get(key, _ABSENT)
        if old is value:
            continue
        if old is _ABSENT:
            added += 1
            out.append({"op": "add", "path": f"{path}/{_escape(key)}", "value": value})
        else:
            _diff(f"{path}/{_escape(key)}", old, value, out)
    if len(before) + added > len(after):
        out += [{"op": "remove", "path": f"{path}/{_escape(key)}"} for key in before if key not in after]


def _diff_lists(path: str, before: list[Any], after: list[Any], out: list[JSON]) -> None:
    start, shorter = 0, min(len(before), len(after))
    while start < shorter and (before[start] is after[start] or _same(before[start], after[start])):
        start += 1
    end = 0
    while end < shorter - start and _same(before[-1 - end], after[-1 - end]):
        end += 1
    old, new = len(before) - start - end, len(after) - start - end
    if old + new > 1 and not any(isinstance(item, (dict, list)) for item in after):
        out.append({"op": "replace", "path": path, "value": after})  # words: shorter whole, as a command's
        return
    common = min(old, new)
    for index in range(start, start + common):
        _diff(f"{path}/{index}", before[index], after[index], out)
    for index in range(start + old - 1, start + common - 1, -1):
        out.append({"op": "remove", "path": f"{path}/{index}"})
    for index in range(start + common, start + new):
        out.append({"op": "add", "path": f"{path}/{index}", "value": after[index]})


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON: True is not 1 and 1 is not 1.0, which Python takes for equal."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def _escape(key: str) -> str:
    """A key as one token of a JSON Pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1") if "~" in key or "/" in key else key
