"""What is in the images, what is not, and that they run as a cluster would run them."""

import re
import subprocess
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.images.conftest import BASE, BUILD_ARGS, ROOT, Image, Podman
from trialtap import __version__, argv

# The images are built by whichever test comes first.
pytestmark = [pytest.mark.images, pytest.mark.timeout(2400)]
BOTH = pytest.mark.parametrize("kind", ["collector", "webhook"])
# As the webhook and the chart run them.
RESTRICTED = [
    "--read-only",
    "--read-only-tmpfs=false",
    "--cap-drop=all",
    "--security-opt=no-new-privileges",
    "--network=host",
]


@BOTH
def test_an_image_says_what_it_is_and_runs_as_a_numeric_user(built: dict[str, Image], kind: str) -> None:
    config = built[kind].config
    assert config["User"] == "65532:65532"
    labels = config["Labels"]
    assert isinstance(labels, dict)
    assert labels["org.opencontainers.image.title"] == f"trialtap-{kind}"
    assert labels["org.opencontainers.image.version"] == __version__
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert re.fullmatch(r"[0-9a-f]{40}|unknown", labels["org.opencontainers.image.revision"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", labels["org.opencontainers.image.created"])


@BOTH
def test_an_image_holds_no_compiler_and_no_cache(built: dict[str, Image], kind: str) -> None:
    files = built[kind].files
    unwanted = r"bin/(gcc|cc|c\+\+|clang|ld|as|make|zig)(-|$)|/(ziglang|tap\.c)(/|$)|/\.cache/|^/build/|\.(deb|whl\.metadata)$"
    assert [path for path in files if re.search(unwanted, path)] == []


def test_the_collector_s_image_holds_nothing_to_log_in_with(built: dict[str, Image]) -> None:
    names = {path.rpartition("/")[2] for path in built["collector"].files}
    assert not names & {"sh", "bash", "dash", "busybox", "pip", "pip3", "apt", "dpkg", "perl"}


@BOTH
def test_every_module_of_ours_and_its_packages_is_compiled(built: dict[str, Image], kind: str) -> None:
    files = built[kind].files
    sources = [path for path in files if path.startswith("/opt/trialtap/") and path.endswith(".py")]
    assert len(sources) > 100
    absent = [path for path in sources if not has_pyc(path, files)]
    assert absent == []


def has_pyc(source: str, files: dict[str, tarfile.TarInfo]) -> bool:
    folder, _, name = source.rpartition("/")
    start = f"{folder}/__pycache__/{name.removesuffix('.py')}.cpython-"
    return any(path.startswith(start) for path in files)


def test_the_collector_s_image_is_small(built: dict[str, Image]) -> None:
    image = built["collector"]
    whole, added = image.bytes_under("/"), image.bytes_under("/opt/trialtap/", "/usr/local/bin/tap")
    print(f"collector: {whole / 1e6:.1f} MB unpacked, of which {added / 1e6:.1f} MB on top of Python")
    assert whole < 90e6
    assert added < 40e6


@pytest.mark.parametrize("program", ["webhook", "dbmanager", "certs", "cli"])
def test_each_server_starts_in_a_container_without_rights(
    built: dict[str, Image], podman: Podman, program: str
) -> None:
    done = podman("run", "--rm", *RESTRICTED, built["webhook"].name, program, "--help")
    assert "usage:" in done.stdout


def test_tap_is_built_for_the_other_architecture_too(podman: Podman, base: str, tmp_path: Path) -> None:
    name = "localhost/test/tap:arm64"
    podman(
        "build", *BUILD_ARGS.split(), "--build-arg", f"PYTHON={BASE}", "--build-arg", "TARGETARCH=arm64",
        "--target", "tap", "-f", str(ROOT / "Dockerfile.collector"), "-t", name, str(ROOT), timeout=2000,
    )  # fmt: skip
    container = podman("create", name, "/build/tap").stdout.strip()
    podman("cp", f"{container}:/build/tap", str(tmp_path / "tap"))
    podman("rm", container)
    header = (tmp_path / "tap").read_bytes()[:20]
    assert header[:4] == b"\x7fELF"
    assert int.from_bytes(header[18:20], "little") == 183  # AArch64


TRAINING = """
#include <stdio.h>
#include <unistd.h>
int main(void) {
	for (int epoch = 1; epoch <= 20; epoch++) {
		printf("epoch=%d loss=%.3f accuracy=%.3f\\n", epoch, 1.0 / epoch, 1 - 1.0 / epoch);
		fflush(stdout);
		usleep(200000);
	}
	return 3;
}
"""


@pytest.fixture
def training(podman: Podman, tmp_path: Path) -> str:
    """A training's image: one static program, no shell, no Python."""
    folder = tmp_path / "training"
    folder.mkdir()
    (folder / "main.c").write_text(TRAINING)
    subprocess.run(["cc", "-static", "-O1", "-o", folder / "training", folder / "main.c"], check=True)
    (folder / "Dockerfile").write_text('FROM scratch\nCOPY training /training\nENTRYPOINT ["/training"]\n')
    podman("build", "-t", "localhost/test/training", str(folder))
    return "localhost/test/training"


def until(found: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 60
    while not found():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def test_a_pod_of_collector_and_a_training_without_a_shell_delivers_its_metrics(
    built: dict[str, Image], podman: Podman, training: str, containers: list[str], tmp_path: Path
) -> None:
    """The steps are the kubelet's: sidecar, its postStart, the training, and TERM when that has ended."""
    for name in ("emptydir", "data"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o777)
    pod, manager, sidecar, main = (f"trialtap-test-{name}" for name in ("pod", "manager", "sidecar", "main"))
    containers += [main, sidecar, manager]
    for name in containers:
        podman("rm", "-f", "-t", "1", name, check=False)
    shared = [*RESTRICTED, "-v", f"{tmp_path}/emptydir:/var/run/trialtap"]

    podman(
        "run", "-d", "--name", manager, *RESTRICTED, "-v", f"{tmp_path}/data:/data", built["webhook"].name,
        "dbmanager", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--database", "sqlite:////data/trials.db",
    )  # fmt: skip
    ready = re.compile(r"dbmanager ready grpc=(\S+) http=(\S+)")
    until(lambda: ready.search(podman("logs", manager).stdout), "the DB manager did not start")
    address = ready.search(podman("logs", manager).stdout)
    assert address

    def metrics() -> list[str]:
        """Points in the database, as the command line of the image prints them."""
        done = podman(
            "exec", manager, "trialtap", "metrics", "demo", "--db", address[1], "--output", "csv", check=False
        )
        return done.stdout.splitlines()[1:]

    told = argv.CollectorArgs(
        trial="demo", metrics=("accuracy", "loss"), objective_type="maximize", db_address=address[1],
        path="/var/run/trialtap/out", kind="StdOut", namespace="team",
    )  # fmt: skip
    podman(
        "run",
        "-d",
        "--name",
        sidecar,
        "-e",
        f"TRIALTAP_POD_NAME={pod}",
        *shared,
        built["collector"].name,
        *argv.write(told),
    )
    podman("exec", sidecar, "tap", "--wait-ready")
    behind_tap = '["/var/run/trialtap/tap","--to","/var/run/trialtap/out","--control","/var/run/trialtap/control","--","/training"]'
    podman("run", "-d", "--name", main, "--user", "1234:1234", *shared, "--entrypoint", behind_tap, training)
    until(lambda: len(metrics()) >= 4, "no metric arrived")
    assert podman("inspect", "--format", "{{.State.Status}}", main).stdout.strip() == "running"
    assert podman("wait", main).stdout.strip() == "3"
    podman("stop", "-t", "60", sidecar)
    assert podman("inspect", "--format", "{{.State.ExitCode}}", sidecar).stdout.strip() == "0"
    expected = [f"epoch={n} loss={1 / n:.3f} accuracy={1 - 1 / n:.3f}" for n in range(1, 21)]
    assert podman("logs", main).stdout.splitlines() == expected
    rows = metrics()
    for name, at in (("loss", lambda n: 1 / n), ("accuracy", lambda n: 1 - 1 / n)):
        values = [
            value
            for row in rows
            if name in row
            for value in row.split(",")
            if re.fullmatch(r"\d\.\d{3}", value)
        ]
        assert values == [f"{at(n):.3f}" for n in range(1, 21)]
