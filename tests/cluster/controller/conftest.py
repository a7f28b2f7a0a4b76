"""Fixtures of the controller's tests: a control plane with kinds to run, a DB manager, a namespace."""

import itertools
from collections.abc import Iterator

import pytest

from tests.support import manifests
from tests.support.cluster import ControlPlane
from tests.support.controlling import KINDS
from tests.support.programs import Program
from trialtap import crds

COUNTER = itertools.count()


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    definitions = [*crds.definitions().values(), *(manifests.crd(*kind) for kind in KINDS)]
    control_plane.apply(*definitions)
    for crd in definitions:
        done = control_plane.kubectl("wait", "--for=condition=Established", f"crd/{crd['metadata']['name']}")
        assert done.returncode == 0, done.stderr
    yield control_plane
    control_plane.free_trials()


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    folder = tmp_path_factory.mktemp("database")
    served = Program(
        "dbmanager",
        folder / "log",
        *("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--database", f"sqlite:///{folder / 'db'}"),
    ).start()
    yield served
    served.stop()


@pytest.fixture
def hpo(plane: ControlPlane) -> str:
    name = f"controlled-{next(COUNTER)}"
    plane.apply(manifests.namespace(name))
    return name
