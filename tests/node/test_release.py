"""The release under load: `helm test`, `helm upgrade`, and each of its pods deleted, while trials come in."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest

from tests.support.running import HOME, JSON, Trial, get, helm, kubectl, training, trial, upgrade

COMPONENTS = ["webhook", "db-manager", "controller"]
KEYS = ["webhook", "dbManager", "controller"]
"""Of the chart's values, in the same order."""


def test_helm_test_passes(release: float) -> None:
    assert "Phase:          Succeeded" in helm("test", "trialtap", "-n", HOME, "--timeout=2m")


def test_an_upgrade_under_load_loses_no_admission_and_no_row(hpo: str) -> None:
    with trials_coming_in(hpo):
        # Every Deployment rolls: the webhook's by its settings, all by a label of their pods.
        upgrade("sidecar.flushGraceSeconds=45", *(f"{key}.podLabels.rolled=yes" for key in KEYS))
    for component in COMPONENTS:
        assert {pod["metadata"]["labels"].get("rolled") for pod in pods_of(component)} == {"yes"}


@pytest.mark.parametrize("component", COMPONENTS)
def test_deleting_the_release_s_pods_under_load_loses_no_admission_and_no_row(
    hpo: str, component: str
) -> None:
    with trials_coming_in(hpo):
        # One after the other, as a drain does it: the next when its successor serves.
        for pod in pods_of(component):
            kubectl("-n", HOME, "delete", "pod", pod["metadata"]["name"])
            kubectl(
                "-n",
                HOME,
                "rollout",
                "status",
                f"deployment/trialtap-{component}",
                "--timeout=90s",
                seconds=100,
            )


def pods_of(component: str) -> list[JSON]:
    selector = f"app.kubernetes.io/component={component}"
    pods: list[JSON] = get(HOME, "pods", "-l", selector)["items"]
    return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]


@contextmanager
def trials_coming_in(namespace: str) -> Iterator[None]:
    """A trial every three seconds; after the block all of them must have ended well, with every row."""
    over, made, refused = threading.Event(), list[Trial](), list[BaseException]()

    def make() -> None:
        for number in count():
            try:
                made.append(Trial(trial(namespace, f"t{number}", training("/training", "40", "50"))))
            except AssertionError as error:
                refused.append(error)
            if over.wait(3):
                return

    maker = threading.Thread(target=make)
    maker.start()
    try:
        time.sleep(3)
        yield
    finally:
        over.set()
        maker.join()
    assert refused == [], "a Trial was not taken"
    assert len(made) > 1
    events = get(namespace, "events", "--field-selector=reason=FailedCreate")["items"]
    assert [event["message"] for event in events] == [], "a pod was not admitted at once"
    assert {one.name: one.ended().type for one in made} == {one.name: "Succeeded" for one in made}
    numbers = [str(number) for number in range(1, 41)]
    assert {one.name: one.rows() for one in made} == {one.name: numbers for one in made}
