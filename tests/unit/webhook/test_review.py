"""AdmissionReview in, answer out."""

import base64
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.objects import JSON, pod, review
from webhook.review import Cause, Malformed, Reason, Refusal, Verdict, answer, parse

GOOD = review(pod())


def changed(**request: Any) -> bytes:
    return orjson.dumps({**GOOD, "request": {**GOOD["request"], **request}})


MALFORMED: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "not JSON"),
    "no JSON": (b"kind: Pod", "not JSON"),
    "half a review": (orjson.dumps(GOOD)[:200], "not JSON"),
    "not UTF-8": (b'{"kind": "\xff"}', "not JSON"),
    "a list": (b"[]", "must be an AdmissionReview"),
    "a pod": (orjson.dumps(pod()), "must be an AdmissionReview"),
    "v1beta1": (orjson.dumps({**GOOD, "apiVersion": "admission.k8s.io/v1beta1"}), "v1beta1"),
    "no version": (orjson.dumps({"kind": "AdmissionReview"}), "None"),
    "an answer": (
        orjson.dumps({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": {}}),
        "request: missing",
    ),
    "no uid": (changed(uid=None), "request.uid"),
    "no operation": (changed(operation=""), "request.operation"),
    "no kind": (changed(kind=None), "request.kind.kind"),
    "a kind of the wrong type": (changed(kind="Pod"), "request.kind.kind"),
    "an object of the wrong type": (changed(object=[1]), "request.object"),
    "a namespace of the wrong type": (changed(namespace=3), "request.namespace"),
    "nested 5,000 deep": (b'{"a":' * 5000 + b"1" + b"}" * 5000, "not JSON"),
    "a number that is none": (b'{"kind": NaN}', "not JSON"),
}


@pytest.mark.parametrize(("body", "said"), MALFORMED.values(), ids=MALFORMED.keys())
def test_what_cannot_be_answered_is_a_bad_request_that_names_the_field(body: bytes, said: str) -> None:
    with pytest.raises(Malformed, match=said) as caught:
        parse(body)
    assert caught.value.status == 400


@given(st.binary(max_size=200))
def test_no_body_breaks_the_parser(body: bytes) -> None:
    with pytest.raises(Malformed):
        parse(body)


JSONS = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(sorted(GOOD["request"])), JSONS)
def test_any_field_may_be_anything(field: str, value: Any) -> None:
    try:
        request = parse(changed(**{field: value}))
    except Malformed as error:
        said = str(error)
    else:
        said = answer(request, Verdict()).decode() + field
    assert field in said


def decoded(request: bytes, verdict: Verdict) -> JSON:
    response: JSON = orjson.loads(answer(parse(request), verdict))["response"]
    return response


def test_an_untouched_object_is_allowed_without_a_patch() -> None:
    assert decoded(changed(), Verdict()) == {"uid": "review-1", "allowed": True}


def test_a_patch_goes_out_in_base64() -> None:
    operation = {"op": "add", "path": "/metadata/labels", "value": {"a": "ü"}}
    response = decoded(changed(), Verdict(patch=(operation,)))
    assert response["patchType"] == "JSONPatch"
    assert orjson.loads(base64.b64decode(response["patch"])) == [operation]


def test_a_refusal_says_why_with_every_field_and_carries_no_patch() -> None:
    refusal = Refusal(
        Reason.INVALID, "two faults", [Cause("spec.a", "must be b", "FieldValueInvalid")], code=422
    )
    response = decoded(changed(), Verdict(patch=({"op": "remove", "path": "/x"},), refusal=refusal))
    assert response["allowed"] is False
    assert "patch" not in response
    assert response["status"] == {
        "status": "Failure",
        "message": "two faults",
        "reason": "Invalid",
        "code": 422,
        "details": {
            "name": "t1-abcde",
            "group": "",
            "kind": "Pod",
            "causes": [{"field": "spec.a", "message": "must be b", "reason": "FieldValueInvalid"}],
        },
    }


def test_warnings_are_passed_on_and_cut_where_the_api_server_would() -> None:
    warnings = decoded(changed(), Verdict(warnings=("short", "x" * 1000)))["warnings"]
    assert warnings[0] == "short"
    assert len(warnings[1]) == 512
    assert warnings[1].endswith("…")


def test_a_patch_too_deep_to_be_written_is_a_bad_request() -> None:
    deep: Any = 1
    for _ in range(400):
        deep = [deep]
    with pytest.raises(Malformed, match="cannot be patched"):
        answer(parse(changed()), Verdict(patch=({"op": "add", "path": "/a", "value": deep},)))


LABELS = [
    ({"name": "a"}, "a"),
    ({"name": "", "object": {"metadata": {"generateName": "job-"}}}, "job-…"),
    ({"name": "", "object": {"metadata": []}}, "?"),
]


@pytest.mark.parametrize(("request_fields", "expected"), LABELS)
def test_an_object_without_a_name_is_called_by_its_generate_name(request_fields: JSON, expected: str) -> None:
    assert parse(changed(**request_fields)).label == expected
