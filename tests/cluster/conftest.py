"""One control plane for all of these tests; each test makes namespaces of its own."""

from collections.abc import Iterator

import pytest

from tests.support import cluster


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = None if cluster.assets() else cluster.HOW_TO_GET
    for item in items:
        if "tests/cluster/" in item.path.as_posix():
            item.add_marker(pytest.mark.cluster)
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def control_plane() -> Iterator[cluster.ControlPlane]:
    folder = cluster.assets()
    assert folder is not None
    plane = cluster.ControlPlane(folder)
    try:
        yield plane.start()
    finally:
        plane.stop()
