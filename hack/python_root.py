"""Copies this Python, without what a server never loads, into a folder that can be an image's root.

Usage: python3 hack/python_root.py ROOT [EXTRA...]: the interpreter, the standard library, the EXTRA folders
(installed packages) and every shared library that one of them is linked with go to their own paths below ROOT.
Works for Debian's Python and for one under /usr/local alike, since it asks the interpreter where things are.
"""

import compileall
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

# Of the standard library: tests, tools for people, and what needs a display or a compiler.
LEFT_OUT = (
    *("__pycache__", "config-*", "dist-packages", "site-packages", "test", "tests", "*.a", "*.exe"),
    *("ensurepip", "idlelib", "lib2to3", "pydoc_data", "tkinter", "turtledemo", "turtle.py", "venv"),
    *("_tkinter*", "_test*", "_ctypes_test*", "_xxtestfuzz*", "xxlimited*"),
)
# Files of a system that libraries look for: users, name resolution, where shared libraries are.
SYSTEM = ("/etc/nsswitch.conf", "/etc/ld.so.cache", "/usr/share/zoneinfo/UTC")
USERS = {
    "passwd": "root:x:0:0::/:/none\nnonroot:x:65532:65532::/:/none\n",
    "group": "root:x:0:\nnonroot:x:65532:\n",
}


def place(root: Path, source: Path) -> Path:
    """Where a path of this system goes below `root`: its folder with links followed, its own name kept."""
    return root / (source.parent.resolve() / source.name).relative_to("/")


def copy_file(root: Path, source: Path) -> None:
    """Copy a file's content; a link becomes the file that it names."""
    target = place(root, source)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, target)


def copy_tree(root: Path, source: Path, left_out: tuple[str, ...]) -> None:
    """Copy a folder, links kept."""
    shutil.copytree(
        source.resolve(),
        place(root, source),
        symlinks=True,
        dirs_exist_ok=True,
        ignore=shutil.ignore_patterns(*left_out),
    )


def libraries(of: Path) -> list[Path]:
    """The shared libraries, dynamic loader included, that a program or library is linked with."""
    listing = subprocess.run(["ldd", of], capture_output=True, text=True, check=False).stdout  # noqa: S603, S607
    return [Path(path) for path in re.findall(r"(/\S+) \(0x", listing)]


def is_elf(path: Path) -> bool:
    """Whether the file is a program or a shared library."""
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def copy_python(root: Path) -> None:
    """The interpreter, by its own name and as python3, and its standard library."""
    interpreter = Path(sys.executable).resolve()
    copy_file(root, interpreter)
    link = place(root, interpreter.with_name("python3"))
    if not link.exists():
        link.symlink_to(interpreter.name)
    for library in {Path(sysconfig.get_path(key)).resolve() for key in ("stdlib", "platstdlib")}:
        copy_tree(root, library, LEFT_OUT)


def compile_all(root: Path) -> None:
    """Write bytecode that is never checked against its source, for the root file system is read-only.

    Without docstrings, which the image's PYTHONOPTIMIZE=2 asks for: each sidecar keeps what it loads. The paths in it are those of the image, so that tracebacks name them.
    """
    compileall.compile_dir(
        root,
        maxlevels=20,
        quiet=2,
        stripdir=str(root),
        prependdir="/",
        optimize=2,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )


def main(root: Path, extras: list[Path]) -> None:
    """Fill `root`."""
    # Where /lib is a link to /usr/lib it must be one there too: programs name their loader by it.
    root.mkdir(parents=True)
    for top in Path("/").iterdir():
        if top.is_symlink() and top.name in {"bin", "lib", "lib32", "lib64", "libx32", "sbin"}:
            (root / top.name).symlink_to(top.readlink())
    copy_python(root)
    for extra in extras:
        copy_tree(root, extra, ("__pycache__",))
    files = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    for file in filter(is_elf, files):
        for library in libraries(file):
            copy_file(root, library)
    for file in map(Path, SYSTEM):
        if file.exists():
            copy_file(root, file)
    for name, text in USERS.items():
        (root / "etc" / name).write_text(text)
    for folder in ("tmp", "var/run/trialtap"):
        (root / folder).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    compile_all(root)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(extra) for extra in sys.argv[2:]])
