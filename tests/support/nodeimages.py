"""The images that the tests on a node need: ours, as `make images` builds them, and trainings.

    python -m tests.support.nodeimages    # builds them all with podman and prints their names

On a cluster of your own, load them there (`kind load docker-image NAME…`), or set TRIALTAP_TEST_REGISTRY to the
prefix under which its nodes find them.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from trialtap import __version__

ROOT = Path(__file__).parents[2]
REGISTRY = os.environ.get("TRIALTAP_TEST_REGISTRY", "localhost")
SERVER = f"{REGISTRY}/trialtap-webhook:{__version__}"
COLLECTOR = f"{REGISTRY}/trialtap-collector:{__version__}"
STATIC = f"{REGISTRY}/trialtap-test-static:{__version__}"
"""A training without shell, libraries or anything else: one static program."""
PYTHON = f"{REGISTRY}/trialtap-test-python:{__version__}"
"""A training with tensorboard, prometheus_client, and (in /opt/katib) Katib's SDK."""
CUSTOM = f"{REGISTRY}/trialtap-test-custom:{__version__}"
"""The collector of examples/custom-collector."""
PULL_POLICY = "IfNotPresent" if "TRIALTAP_TEST_REGISTRY" in os.environ else "Never"
PAUSE = "localhost/pause:3.10"
ALL = (SERVER, COLLECTOR, STATIC, PYTHON, CUSTOM, PAUSE)

BASE = "localhost/trialtap-test-python:bookworm"
IMAGES = ROOT / "tests/node/images"
# The builder reaches the package index by this machine's network and certificates.
ARGUMENTS = ("--pull=never", "--network=host", "--volume=/etc/ssl/certs:/etc/ssl/certs:ro")
CONTAINERS_CONF = """
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""


def build(scratch: Path) -> Path:
    """Build every image; a docker archive of them all, in `scratch`."""
    settings = scratch / "containers.conf"
    settings.write_text(CONTAINERS_CONF)
    env = {**os.environ, "CONTAINERS_CONF": str(settings)}

    def run(*command: str | Path, **more: str) -> None:
        done = subprocess.run(
            command, env={**env, **more}, cwd=ROOT, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{' '.join(map(str, command))}: {done.stdout[-3000:]}")

    if subprocess.run(["podman", "image", "exists", BASE], env=env, check=False).returncode:
        run(ROOT / "hack/base-image", BASE)
    run(
        ROOT / "hack/images",
        BUILDER="podman", BASE=BASE, REGISTRY=REGISTRY, BUILD_ARGS=" ".join(ARGUMENTS),
    )  # fmt: skip
    for program, image in (("training", STATIC), ("pause", PAUSE)):
        run("cc", "-static", "-O2", "-Wall", "-Werror", "-o", scratch / program, IMAGES / f"{program}.c")
        recipe = scratch / f"Dockerfile.{program}"
        recipe.write_text(f'FROM scratch\nCOPY {program} /{program}\nENTRYPOINT ["/{program}"]\n')
        run("podman", "build", "-f", recipe, "-t", image, scratch)
    python = IMAGES / "Dockerfile.python"
    run("podman", "build", *ARGUMENTS, "--build-arg", f"PYTHON={BASE}", "-f", python, "-t", PYTHON, IMAGES)
    example = ROOT / "examples/custom-collector"
    run("podman", "build", "--build-arg", f"COLLECTOR={COLLECTOR}", "-t", CUSTOM, example)
    archive = scratch / "images.tar"
    run("podman", "save", "--multi-image-archive", "-o", archive, *ALL)
    return archive


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder)).unlink()
    print(*ALL, sep="\n")
    sys.exit(0)
