"""A pod, a DB manager and the link between them, for each test anew."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.support.collecting import DbManager, Link, Pod


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DbManager]:
    manager = DbManager(tmp_path_factory.mktemp("db"))
    manager.start()
    yield manager
    manager.kill()


@pytest.fixture
def link(db: DbManager) -> Iterator[Link]:
    made = Link(lambda: db.address)
    yield made
    made.close()


@pytest.fixture
def pod(tmp_path: Path, link: Link, db: DbManager) -> Iterator[Pod]:
    made = Pod(tmp_path, link.address, db)
    made.trial = uuid4().hex
    yield made
    if made.collector is not None and made.collector.poll() is None:
        made.kill()
