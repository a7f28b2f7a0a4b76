"""Both images, built by the project's own script on a base image made of Debian's packages."""

import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BASE = "localhost/trialtap-test-python:bookworm"
CONTAINERS_CONF = """
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
# The builder reaches the package index by this machine's network and certificates.
BUILD_ARGS = "--pull=never --network=host --volume=/etc/ssl/certs:/etc/ssl/certs:ro"


@dataclass(frozen=True)
class Podman:
    """podman, with the settings that these tests need."""

    environment: dict[str, str]

    def __call__(
        self, *arguments: str, check: bool = True, timeout: float = 100
    ) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(
            ["podman", *arguments],
            env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=timeout,
        )  # fmt: skip
        assert done.returncode == 0 or not check, f"podman {' '.join(arguments)}: {done.stderr[-2000:]}"
        return done

    def inspect(self, image: str) -> dict[str, object]:
        """The image's configuration."""
        (found,) = json.loads(self("image", "inspect", image).stdout)
        return {**found["Config"], "Size": found["Size"], "Architecture": found["Architecture"]}


@dataclass(frozen=True)
class Image:
    """One image that was built."""

    name: str
    podman: Podman
    scratch: Path

    @cached_property
    def config(self) -> dict[str, object]:
        return self.podman.inspect(self.name)

    @cached_property
    def files(self) -> dict[str, tarfile.TarInfo]:
        """Everything in its file system, by absolute path."""
        container = self.podman("create", self.name).stdout.strip()
        tar = self.scratch / "root.tar"
        try:
            self.podman("export", "-o", str(tar), container)
            with tarfile.open(tar) as archive:
                return {"/" + member.name.strip("/"): member for member in archive}
        finally:
            self.podman("rm", "-f", container)
            tar.unlink(missing_ok=True)

    def bytes_under(self, *prefixes: str) -> int:
        return sum(info.size for path, info in self.files.items() if path.startswith(prefixes))


@pytest.fixture(scope="session")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Podman:
    missing = [name for name in ("podman", "runc", "debootstrap") if not shutil.which(name)]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root and these programs: {', '.join(missing) or 'all there'}")
    settings = tmp_path_factory.mktemp("podman") / "containers.conf"
    settings.write_text(CONTAINERS_CONF)
    return Podman({**os.environ, "CONTAINERS_CONF": str(settings)})


@pytest.fixture(scope="session")
def base(podman: Podman) -> str:
    """The Python base image."""
    if podman("image", "exists", BASE, check=False).returncode:
        subprocess.run([ROOT / "hack" / "base-image", BASE], env=podman.environment, check=True)
    return BASE


@pytest.fixture(scope="session")
def built(podman: Podman, base: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Image]:
    """Both images, as `make images` builds them."""
    settings = {"BUILDER": "podman", "BASE": base, "BUILD_ARGS": BUILD_ARGS, "REGISTRY": "localhost/test"}
    done = subprocess.run(
        [ROOT / "hack" / "images"],
        env={**podman.environment, **settings},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    sizes = [line for line in done.stdout.splitlines() if line.endswith(" MB unpacked")]
    print(*sizes, sep="\n")
    names = [line.partition(": ")[0] for line in sizes]
    assert [name.rpartition("/")[2].partition(":")[0] for name in names] == [
        "trialtap-collector",
        "trialtap-webhook",
    ]
    return {
        kind: Image(name, podman, tmp_path_factory.mktemp(kind))
        for kind, name in zip(("collector", "webhook"), names, strict=True)
    }


@pytest.fixture
def containers(podman: Podman) -> Iterator[list[str]]:
    """Containers to remove when the test has ended, whatever they do by then."""
    names: list[str] = []
    yield names
    for name in names:
        podman("rm", "-f", "-t", "1", name, check=False)
