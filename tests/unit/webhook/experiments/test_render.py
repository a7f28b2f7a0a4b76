"""Substitution on the tree, in one pass: no value breaks out of its field; numbers only where fields are numbers."""

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from trialtap.objects import TrialParameter
from webhook.experiments import render

JSON = dict[str, Any]


def job(**spec: Any) -> JSON:
    return {"apiVersion": "batch/v1", "kind": "Job", "spec": spec}


def container(**fields: Any) -> JSON:
    return {"template": {"spec": {"containers": [{"name": "c", **fields}]}}}


def custom(**spec: Any) -> JSON:
    return {"apiVersion": "example.com/v1", "kind": "Train", "spec": spec}


P = "${trialParameters.a}"
CASES = [
    ("a string stays one", job(**container(args=[P])), "3", job(**container(args=["3"]))),
    ("inside a longer string", job(**container(args=[f"--a={P}"])), "3", job(**container(args=["--a=3"]))),
    (
        "quotes and braces stay in their field",
        job(**container(args=[P])),
        '"}], "x": [{',
        job(**container(args=['"}], "x": [{'])),
    ),
    ("a newline too", job(**container(args=[P])), "a\nb: c", job(**container(args=["a\nb: c"]))),
    (
        "one pass only",
        job(**container(args=[P])),
        "${trialParameters.a}",
        job(**container(args=["${trialParameters.a}"])),
    ),
    ("a key", custom(**{P: 1}), "k", custom(k=1)),
    ("a Job's number", job(parallelism=P), "3", job(parallelism=3)),
    ("a Job's number in another notation", job(parallelism=P), "3.0", job(parallelism=3)),
    (
        "what is no number stays for the API server to refuse",
        job(parallelism=P),
        "three",
        job(parallelism="three"),
    ),
    ("a Job's boolean", job(suspend=P), "true", job(suspend=True)),
    (
        "a container's port",
        job(**container(ports=[{"containerPort": P}])),
        "80",
        job(**container(ports=[{"containerPort": 80}])),
    ),
    (
        "a quantity stays a string",
        job(**container(resources={"limits": {"cpu": P}})),
        "2",
        job(**container(resources={"limits": {"cpu": "2"}})),
    ),
    (
        "an env value stays a string",
        job(**container(env=[{"name": "A", "value": P}])),
        "2",
        job(**container(env=[{"name": "A", "value": "2"}])),
    ),
    ("a custom resource's field is a string", custom(workers=P), "3", custom(workers="3")),
    (
        "a PodSpec is known inside any kind",
        custom(
            replicas={
                "w": {
                    "template": {"spec": {"containers": [{"name": "c"}], "terminationGracePeriodSeconds": P}}
                }
            }
        ),
        "5",
        custom(
            replicas={
                "w": {
                    "template": {"spec": {"containers": [{"name": "c"}], "terminationGracePeriodSeconds": 5}}
                }
            }
        ),
    ),
]


@pytest.mark.parametrize(("template", "value", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_rendering(template: JSON, value: str, expected: JSON) -> None:
    found = render.render(template, {"a": value}, "t", "ns")
    assert found.pop("metadata") == {"name": "t", "namespace": "ns"}
    assert found == expected


TEXTS = [
    ("unquoted is a number", "a: ${trialParameters.a}", "3", {"a": 3}),
    ("quoted is a string", 'a: "${trialParameters.a}"', "3", {"a": "3"}),
    ("unquoted text is text", "a: ${trialParameters.a}", "adam", {"a": "adam"}),
    ("unquoted with more around", "a: --lr=${trialParameters.a}", "3", {"a": "--lr=3"}),
    ("a value cannot break out", "a: ${trialParameters.a}\nb: 1", "3\nb: 2", {"a": "3\nb: 2", "b": 1}),
    (
        "inside a flow mapping",
        "{a: ${trialParameters.a}, b: [${trialParameters.a}]}",
        "0.5",
        {"a": 0.5, "b": [0.5]},
    ),
    (
        "what PodSpec declares a string stays one",
        "spec: {containers: [{name: c, args: [${trialParameters.a}]}]}",
        "3",
        {"spec": {"containers": [{"name": "c", "args": ["3"]}]}},
    ),
    ("JSON", '{"a": "${trialParameters.a}", "n": 2}', "3", {"a": "3", "n": 2}),
    ("a date stays text", "a: 2026-01-31", "", {"a": "2026-01-31"}),
]


@pytest.mark.parametrize(("text", "value", "expected"), [t[1:] for t in TEXTS], ids=[t[0] for t in TEXTS])
def test_a_config_maps_template_follows_its_yamls_quoting(text: str, value: str, expected: JSON) -> None:
    found = render.render(render.parse(text), {"a": value}, "t", "ns")
    del found["metadata"]
    assert found == expected


@given(st.text(), st.text())
def test_a_value_never_changes_anything_but_its_field(value: str, other: str) -> None:
    template = job(**container(args=[P, other.replace("$", "")], env=[{"name": "E", "value": f"x{P}y"}]))
    found = render.render(template, {"a": value}, "t", "ns")
    assert found["spec"] == container(
        args=[value, other.replace("$", "")], env=[{"name": "E", "value": f"x{value}y"}]
    )


@given(
    st.dictionaries(st.sampled_from("abc"), st.text(max_size=20) | st.integers() | st.none() | st.booleans())
)
def test_a_template_without_placeholders_reads_as_yaml_does(document: JSON) -> None:
    assert render.parse(yaml.safe_dump(document)) == document


def parameter(name: str, reference: str) -> TrialParameter:
    return TrialParameter(name=name, reference=reference)


TEMPLATE = {
    "apiVersion": "v1",
    "kind": "K",
    "metadata": {"labels": {"x": "1"}, "annotations": {"a/b.c": "2"}},
}
REFERENCES = [
    ("lr", "0.1"),
    ("${trialSpec.Name}", "t"),
    ("${trialSpec.Namespace}", "ns"),
    ("${trialSpec.Kind}", "K"),
    ("${trialSpec.APIVersion}", "v1"),
    ("${trialSpec.Labels[x]}", "1"),
    ("${trialSpec.Annotations[a/b.c]}", "2"),
]


@pytest.mark.parametrize(("reference", "expected"), REFERENCES)
def test_a_reference_stands_for(reference: str, expected: str) -> None:
    assert render.values(TEMPLATE, [parameter("p", reference)], {"lr": "0.1"}, "t", "ns") == {"p": expected}


@pytest.mark.parametrize("reference", ["layers", "${trialSpec.Labels[y]}", "${trialSpec.UID}"])
def test_a_reference_to_nothing_is_named(reference: str) -> None:
    with pytest.raises(render.RenderError) as fault:
        render.values(TEMPLATE, [parameter("p", reference)], {"lr": "0.1"}, "t", "ns")
    assert reference in str(fault.value)


def test_a_placeholder_without_a_parameter_is_named() -> None:
    with pytest.raises(render.RenderError, match=r"trialParameters\.b"):
        render.render(custom(x="${trialParameters.b}"), {"a": "1"}, "t", "ns")


def test_two_keys_that_become_one_are_named() -> None:
    with pytest.raises(render.RenderError, match="two keys"):
        render.render(custom(**{P: 1, "k": 2}), {"a": "k"}, "t", "ns")


@pytest.mark.parametrize("text", ["[" * 500, "a: &a [*a]", "\x00", "a: b: c", "- 1", "", "x" * (1 << 21)])
def test_what_is_no_template_is_refused_without_a_traceback(text: str) -> None:
    with pytest.raises(render.RenderError):
        render.parse(text)
