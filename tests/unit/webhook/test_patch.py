"""Patches: what jsonpatch makes of them is the document that was meant."""

import copy
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.patch import diff

LEAVES = st.one_of(st.none(), st.booleans(), st.integers(-2, 2), st.sampled_from(["", "a", "b"]))
KEYS = st.sampled_from(["a", "b", "c/d", "e~f", "", "~1"])
DOCUMENTS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=12,
)
OBJECTS = st.dictionaries(KEYS, DOCUMENTS, max_size=4)


def same(one: Any, other: Any) -> bool:
    """Equal as JSON, in which true is not 1."""
    return repr(sorted_keys(one)) == repr(sorted_keys(other))


def sorted_keys(document: Any) -> Any:
    if isinstance(document, dict):
        return {key: sorted_keys(document[key]) for key in sorted(document)}
    return [sorted_keys(item) for item in document] if isinstance(document, list) else document


@given(OBJECTS, OBJECTS)
def test_a_patch_makes_the_second_document_of_the_first(before: Any, after: Any) -> None:
    kept = copy.deepcopy(before)
    assert same(jsonpatch.apply_patch(before, list(diff(before, after))), after)
    assert same(before, kept)


@given(OBJECTS)
def test_equal_documents_need_no_patch(document: Any) -> None:
    assert diff(document, copy.deepcopy(document)) == ()


SMALL = [
    ("an element at the end", [{"n": 1}], [{"n": 1}, {"n": 2}], ["add /x/1"]),
    ("an element at the start", [{"n": 1}], [{"n": 2}, {"n": 1}], ["add /x/0"]),
    ("one of many removed", [{"n": 1}, {"n": 2}, {"n": 3}], [{"n": 1}, {"n": 3}], ["remove /x/1"]),
    ("a field of an element", [{"n": 1}, {"n": 2}], [{"n": 1}, {"n": 3}], ["replace /x/1/n"]),
    ("words are replaced whole", ["a", "b"], ["t", "--", "a", "b"], ["replace /x"]),
    ("one word is added", ["a"], ["a", "b"], ["add /x/1"]),
]


@pytest.mark.parametrize(("before", "after", "operations"), [c[1:] for c in SMALL], ids=[c[0] for c in SMALL])
def test_a_patch_is_as_small_as_the_change(before: Any, after: Any, operations: list[str]) -> None:
    found = [f"{operation['op']} {operation['path']}" for operation in diff({"x": before}, {"x": after})]
    assert found == operations


def test_shared_parts_are_not_looked_at() -> None:
    class Unlooked(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            raise AssertionError(key)

        def __iter__(self) -> Any:
            raise AssertionError

    shared = Unlooked(a=1)
    assert [o["path"] for o in diff({"s": shared, "n": 1}, {"s": shared, "n": 2})] == ["/n"]
