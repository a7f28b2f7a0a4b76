"""tap as a process: built several ways, placed as a child or as PID 1, and what it left read back."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest

SOURCE = Path(__file__).parents[3] / "collector" / "tap.c"
FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-DREADY_MS=1500", "-DLOG_MS=500"]
SANITIZER = ["-O1", "-g", "-fno-omit-frame-pointer"]
BUILDS = {
    "static": ["cc", *FLAGS, "-O2", "-static"],
    "asan": ["cc", *FLAGS, *SANITIZER, "-fsanitize=address"],
    "ubsan": ["cc", *FLAGS, *SANITIZER, "-fsanitize=undefined", "-fno-sanitize-recover=all"],
}
if shutil.which("musl-gcc"):
    BUILDS["musl"] = ["musl-gcc", *FLAGS, "-O2", "-static"]

MARK = re.compile(rb"\x1etrialtap missing ([0-9]+)$")


@dataclass
class Copy:
    """What tap left under one PREFIX, read as docs/tap.md says."""

    directory: Path
    prefix: str = "out"

    @property
    def to(self) -> list[str]:
        return ["--to", str(self.directory / self.prefix)]

    def segments(self) -> list[Path]:
        return sorted(self.directory.glob(f"{self.prefix}.[0-9]*"))

    def data(self) -> bytes:
        return b"".join(path.read_bytes() for path in self.segments())

    def lines(self) -> list[bytes]:
        """Whole lines, without marks and without what a mark declares cut."""
        return [line for line in self.data().split(b"\n")[:-1] if not MARK.search(line)]

    def marked(self) -> int:
        """Bytes that the marks say are missing."""
        found = (MARK.search(line) for line in self.data().split(b"\n"))
        return sum(int(mark[1]) for mark in found if mark)

    def end(self) -> dict[str, str]:
        text = (self.directory / f"{self.prefix}.end").read_text()
        return dict(line.split(" ") for line in text.splitlines())


@dataclass
class Tap:
    """One build of tap, in one place."""

    binary: Path
    place: list[str] = field(default_factory=list)

    def argv(self, *arguments: str) -> list[str]:
        return [*self.place, str(self.binary), *arguments]

    def run(self, *arguments: str, **popen: Any) -> subprocess.CompletedProcess[bytes]:
        """Run to the end, output captured unless given elsewhere."""
        if not {"stdout", "stderr"} & popen.keys():
            popen["capture_output"] = True
        return subprocess.run(self.argv(*arguments), timeout=60, check=False, **popen)

    def start(self, *arguments: str, **popen: Any) -> "Running":
        return Running(
            subprocess.Popen(self.argv(*arguments), **{"stdout": subprocess.PIPE, **popen}), bool(self.place)
        )


@dataclass
class Running:
    """A tap that runs."""

    process: subprocess.Popen[bytes]
    placed: bool

    @property
    def stdout(self) -> IO[bytes]:
        assert self.process.stdout
        return self.process.stdout

    @property
    def pid(self) -> int:
        """Tap's own process, also where another program placed it."""
        return children(self.process.pid)[0] if self.placed else self.process.pid

    def wait(self) -> int:
        return self.process.wait(60)


def children(pid: int) -> list[int]:
    """The direct children of a process."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture(scope="session")
def builds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every build that was asked for, made once."""
    return {"": tmp_path_factory.mktemp("tap")}


@pytest.fixture(params=BUILDS)
def binary(request: pytest.FixtureRequest, builds: dict[str, Path]) -> Path:
    name = request.param
    if name not in builds:
        subprocess.run([*BUILDS[name], "-o", builds[""] / name, SOURCE], check=True)
        builds[name] = builds[""] / name
    return builds[name]


@pytest.fixture
def tap(binary: Path) -> Tap:
    return Tap(binary)


@pytest.fixture(params=["as a child", "as PID 1"])
def placed(request: pytest.FixtureRequest, binary: Path) -> Tap:
    """Tap as an ordinary process, and as the first of a pid namespace of its own."""
    if request.param == "as a child":
        return Tap(binary)
    unshare = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*unshare, "true"], check=False, stderr=subprocess.DEVNULL).returncode:
        pytest.skip("this machine does not allow a pid namespace")
    return Tap(binary, unshare)


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    directory = tmp_path / "trialtap"
    directory.mkdir()
    return Copy(directory)


@pytest.fixture
def python() -> list[str]:
    """A Python that starts fast; the program follows."""
    return [sys.executable, "-ISc"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    directory = tmp_path / "small"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "trialtap-test", str(directory)]
    if subprocess.run(mount, check=False, stderr=subprocess.DEVNULL).returncode:
        pytest.skip("this machine does not allow a mount")
    yield directory
    subprocess.run(["umount", "-l", str(directory)], check=True)
