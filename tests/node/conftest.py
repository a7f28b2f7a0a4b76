"""One cluster for all of these tests: that of KUBECONFIG, `make test-cluster` starts one. trialtap is installed once."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from itertools import count

import pytest

from tests.support import running
from trialtap import names

COUNTER = count(1)
NEEDS = "needs KUBECONFIG, kubectl and helm: `make test-cluster` brings all three"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ready = os.environ.get("KUBECONFIG") and shutil.which("kubectl") and shutil.which("helm")
    for item in items:
        if "tests/node/" in item.path.as_posix():
            item.add_marker(pytest.mark.node)
            # The first test of a session waits for the installation too.
            item.add_marker(pytest.mark.timeout(360))
            if not ready:
                item.add_marker(pytest.mark.skip(reason=NEEDS))
    # Last of all what ends the release.
    items.sort(key=lambda item: item.path.name == "test_uninstall.py")


@pytest.fixture(scope="session")
def release() -> Iterator[float]:
    """trialtap, installed by helm with its controller; gives the seconds that took."""
    yield running.install()
    # Trials first: the controller removes their finalizer.
    label = f"{names.INJECTION_LABEL}=enabled"
    running.kubectl("delete", "namespaces", "-l", label, "--timeout=90s", seconds=100)
    subprocess.run(["helm", "uninstall", "trialtap", "-n", running.HOME, "--ignore-not-found"], check=False)


@pytest.fixture
def hpo(release: float) -> Iterator[str]:
    """A labelled namespace of level `restricted`, of the test's own."""
    name = f"hpo-{os.getpid()}-{next(COUNTER)}"
    running.apply(running.namespace(name))
    yield name
    running.kubectl("delete", "namespace", name, "--wait=false")
