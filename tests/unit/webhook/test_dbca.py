"""The DB manager's CA from a file that changes while the webhook runs."""

from pathlib import Path
from typing import Any, cast

import pytest

from webhook.dbca import DatabaseCA
from webhook.review import Verdict
from webhook.settings import Settings


async def seen_by_a_handler(ca: DatabaseCA) -> str:
    found: list[Settings] = []

    async def handler(_request: Any, _cluster: Any, settings: Settings) -> Verdict:
        found.append(settings)
        return Verdict()

    nothing = cast(Any, None)
    await ca.given_to(handler)(nothing, nothing, Settings(db_address="db:6789", db_ca="of the settings"))
    assert found[0].db_address == "db:6789"
    return found[0].db_ca


async def test_each_pod_is_given_the_ca_that_the_file_holds_then(tmp_path: Path) -> None:
    file = tmp_path / "ca.crt"
    file.write_text("first")
    ca = DatabaseCA(file)
    assert await seen_by_a_handler(ca) == "first"
    file.write_text("second")
    assert await seen_by_a_handler(ca) == "second"


async def test_a_file_that_is_away_or_empty_for_a_moment_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "ca.crt"
    file.write_text("first")
    ca = DatabaseCA(file)
    file.write_text("")
    assert await seen_by_a_handler(ca) == "first"
    file.unlink()
    assert await seen_by_a_handler(ca) == "first"


def test_a_file_that_is_not_there_at_the_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"ca\.crt"):
        DatabaseCA(tmp_path / "ca.crt")
