"""Pods of one template get one verdict, and only they."""

import base64
import copy
import json
from collections.abc import Callable

import pytest

from tests.support.admission import RECORDED, recorded
from tests.support.objects import JSON
from webhook.cluster import ObjectsCluster
from webhook.events import Events
from webhook.pods import Pods
from webhook.review import Malformed, Request, Verdict, parse
from webhook.settings import Settings
from webhook.templates import template_of

NAMES = sorted(file.stem for file in RECORDED.glob("*.json") if not file.stem.startswith("experiment"))


class Asked:
    """The handler of pods over a recorded case, asked about changed pods."""

    def __init__(self, name: str) -> None:
        self.case = recorded(name)
        self.cluster = ObjectsCluster(copy.deepcopy(self.case["objects"]))
        self.pods = Pods(Events(self.cluster))

    def pod(self, change: Callable[[JSON], None] = lambda _pod: None) -> Request:
        review = copy.deepcopy(self.case["review"])
        change(review["request"]["object"])
        return parse(json.dumps(review).encode())

    async def answer(self, change: Callable[[JSON], None] = lambda _pod: None) -> Verdict:
        return await self.pods.mutate(self.pod(change), self.cluster, Settings())


def renamed(pod: JSON) -> None:
    """Another pod of the same template: its name and its token volume are its own."""
    pod["metadata"]["name"] = "another-0"
    text = json.dumps(pod["spec"])
    for volume in pod["spec"].get("volumes", []):
        if volume["name"].startswith("kube-api-access-"):
            text = text.replace(volume["name"], "kube-api-access-zzzzz")
    pod["spec"] = json.loads(text)


@pytest.mark.parametrize("name", NAMES)
async def test_a_second_pod_of_the_template_gets_what_it_would_get_alone(name: str) -> None:
    asked = Asked(name)
    first = await asked.answer()
    again = await asked.answer(renamed)
    alone = await Asked(name).answer(renamed)
    assert (again.patch, again.warnings, str(again.refusal)) == (
        alone.patch,
        alone.warnings,
        str(alone.refusal),
    )
    if not (first.refusal or first.warnings):
        assert again.patch == first.patch


async def test_it_is_not_planned_twice() -> None:
    asked = Asked("job-stdout")
    first, second, third = [await asked.answer(renamed) for _ in range(3)]
    assert second is third
    assert second.patch is first.patch
    assert json.loads(base64.b64decode(second.encoded)) == list(first.patch)


CHANGES: dict[str, Callable[[JSON], None]] = {
    "a label": lambda pod: pod["metadata"].setdefault("labels", {}).update(other="label"),
    "an annotation": lambda pod: pod["metadata"].update(annotations={"other": "annotation"}),
    "an argument": lambda pod: pod["spec"]["containers"][0]["command"].append("--more"),
    "a security context": lambda pod: pod["spec"].update(securityContext={"runAsUser": 0}),
    "a volume": lambda pod: pod["spec"]["volumes"].append({"name": "trialtap", "emptyDir": {}}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
async def test_a_pod_that_differs_in_anything_else_is_planned_anew(change: Callable[[JSON], None]) -> None:
    asked = Asked("job-stdout")
    first = await asked.answer()
    other = await asked.answer(change)
    assert other is not first
    assert other == await Asked("job-stdout").answer(change)


async def test_what_changes_around_the_pods_is_heeded_at_once() -> None:
    asked = Asked("job-stdout")
    first = await asked.answer()
    trial = copy.deepcopy(next(o for o in asked.case["objects"] if o["kind"] == "Trial"))
    trial["spec"]["objective"]["objectiveMetricName"] = "another"
    asked.cluster.add(trial)
    second = await asked.answer()
    assert second.patch != first.patch
    asked.cluster.add(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "katib-config", "namespace": "kubeflow"},
            "data": {
                "katib-config.yaml": "runtime: {metricsCollectors: [{kind: StdOut, imagePullPolicy: Never}]}"
            },
        }
    )
    third = await asked.answer()
    assert "Never" in json.dumps(third.patch)
    assert (
        await asked.pods.mutate(asked.pod(), asked.cluster, Settings(db_address="other:1"))
    ).patch != third.patch


async def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webhook.templates.MAX_KEPT", 5)
    asked = Asked("job-stdout")
    for n in range(20):
        await asked.answer(lambda pod, n=n: pod["metadata"].update(annotations={"n": str(n)}))  # type: ignore[misc]
    assert len(asked.pods.templates._kept) == 5


def test_the_token_volumes_name_is_no_part_of_the_template() -> None:
    pod = recorded("job-stdout")["review"]["request"]["object"]
    other = copy.deepcopy(pod)
    renamed(other)
    assert template_of(pod) == template_of(other)


async def test_a_pod_too_deep_to_be_written_is_a_bad_request() -> None:
    def deepen(pod: JSON) -> None:
        deep: object = 1
        for _ in range(300):
            deep = [deep]
        pod["spec"]["nodeSelector"] = {"deep": deep}

    with pytest.raises(Malformed, match="cannot be read"):
        await Asked("job-stdout").answer(deepen)
