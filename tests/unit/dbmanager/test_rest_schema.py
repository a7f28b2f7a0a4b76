"""The API keeps what its OpenAPI description promises, whatever is sent: schemathesis."""

from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from dbmanager.rest import application
from dbmanager.store import Store
from tests.support.rest import put, put_plain, serving

OPERATIONS = [
    ("GET", "/api/v1/trials"),
    ("GET", "/api/v1/trials/{trial}/metrics"),
    ("GET", "/api/v1/trials/{trial}/summary"),
    ("DELETE", "/api/v1/trials/{trial}"),
    ("POST", "/api/v1/curves"),
]
"""A stream of events has no end to wait for: its refusals are in test_rest.py, its events in test_rest_live.py."""


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    store = Store.open(f"sqlite:///{tmp_path_factory.mktemp('schema')}/trials.db")
    put(store, "t", ["1", "nan", "x"])
    put(store, "t", ["2"], attempt=1)
    put(store, "0", ["1"], namespace="a")
    put(store, "0", ["1"], namespace="b")
    put_plain(store, "katib", [("2026-01-31T12:00:00Z", "loss", "1")])
    with serving(application(store)) as url:
        yield schemathesis.openapi.from_url(f"{url}/openapi.json")
    store.close()


@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_every_answer_is_one_that_the_description_names(
    api: Any, method: str, path: str, mode: GenerationMode
) -> None:
    @hypothesis.given(api[path][method].as_strategy(generation_mode=mode))
    @hypothesis.settings(
        max_examples=20, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
    )
    def ask(case: Any) -> None:
        # A cursor is valid only if the API gave it, which no description can say.
        case.call_and_validate(timeout=30, excluded_checks=[positive_data_acceptance])

    ask()


def test_every_operation_is_tried(api: Any) -> None:
    described = {
        (operation.ok().method.upper(), operation.ok().path) for operation in api.get_all_operations()
    }
    assert described == {*OPERATIONS, ("GET", "/api/v1/events")}
