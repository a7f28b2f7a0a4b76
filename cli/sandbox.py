"""Runs a command in a mount namespace of its own, where a container's mount paths are real.

`python -m cli.sandbox SPEC -- argv…`, SPEC being the JSON of a `Sandbox`. The root directory becomes a
tmpfs into which everything of this machine is bound, down to where a mount point is missing: so mounts
may be anywhere and nothing of the machine is changed. Linux only; root, or a user namespace where the
machine allows one.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
_KEPT_FLAGS = {os.ST_NOSUID: 2, os.ST_NODEV: 4, os.ST_NOEXEC: 8}
"""Flags that a read-only remount must repeat, or an unprivileged one is refused (mount(2))."""
_PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Bind:
    """A folder or file of this machine, and where the command sees it."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Sandbox:
    """What the command sees: `root` is an empty folder to build on, `cwd` where it starts."""

    root: str
    cwd: str
    binds: tuple[Bind, ...] = ()

    def argv(self, command: Sequence[str]) -> list[str]:
        """Give the command line that runs `command` inside."""
        return [sys.executable, "-P", "-m", "cli.sandbox", json.dumps(asdict(self)), "--", *command]


def available(scratch: Path) -> str:
    """Try it; returns "" when it works, else the reason why not."""
    (scratch / "probe").mkdir(exist_ok=True)
    probe = Sandbox(str(scratch / "probe"), "/", (Bind(str(scratch), "/trialtap-probe"),))
    done = subprocess.run(probe.argv(["/bin/true"]), capture_output=True, text=True, check=False)  # noqa: S603
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["unshare failed"])[-1]


def _call(what: str, result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _mount(source: str, target: str, kind: str, flags: int) -> None:
    result = _libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), None)
    _call(f"mount {source} at {target}", result)


def _unshare() -> None:
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        _call("unshare", _libc.unshare(_CLONE_NEWNS))
        return
    _call("unshare", _libc.unshare(_CLONE_NEWNS | _CLONE_NEWUSER))
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def _folders_to_open(targets: Sequence[Path]) -> set[Path]:
    """Folders that must be built anew because a mount point below them is missing, and those above them."""
    opened = {Path("/")}
    for target in targets:
        if not target.exists():
            deepest = next(parent for parent in target.parents if parent.is_dir())
            opened.update({deepest, *deepest.parents})
    return opened


def _open(folder: Path, root: str, opened: set[Path]) -> None:
    """Bind what a folder holds into the root's folder of the same name."""
    for entry in os.scandir(folder):
        here = root + entry.path
        if entry.is_symlink():
            Path(here).symlink_to(Path(entry.path).readlink())
        elif not entry.is_dir():
            Path(here).touch()
            _mount(entry.path, here, "", _MS_BIND)
        else:
            Path(here).mkdir()
            if Path(entry.path) in opened:
                _open(Path(entry.path), root, opened)
            else:
                _mount(entry.path, here, "", _MS_BIND | _MS_REC)


def _bind(bind: Bind, target: Path, root: str) -> None:
    here = Path(root + str(target))
    if Path(bind.source).is_dir():
        here.mkdir(parents=True, exist_ok=True)
    else:
        here.parent.mkdir(parents=True, exist_ok=True)
        here.touch()
    _mount(bind.source, str(here), "", _MS_BIND | _MS_REC)
    if bind.read_only:
        kept = sum(flag for bit, flag in _KEPT_FLAGS.items() if os.statvfs(here).f_flag & bit)
        _mount("none", str(here), "", _MS_REMOUNT | _MS_BIND | _MS_RDONLY | kept)


def enter(sandbox: Sandbox) -> None:
    """Move this process into the sandbox.

    Raises:
        OSError: the kernel refuses; the message names the step.
    """
    binds = sorted(
        ((bind, Path(os.path.realpath(bind.target))) for bind in sandbox.binds),
        key=lambda pair: pair[1].parts,
    )
    _unshare()
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE)
    _mount("tmpfs", sandbox.root, "tmpfs", 0)
    _open(Path("/"), sandbox.root, _folders_to_open([target for _, target in binds]))
    for bind, target in binds:
        _bind(bind, target, sandbox.root)
    os.chroot(sandbox.root)
    os.chdir(sandbox.cwd)


def main(argv: Sequence[str]) -> int:
    """Enter the sandbox and become the command; 125 where the machine does not allow one."""
    spec = json.loads(argv[0])
    command = list(argv[2:])
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    try:
        enter(Sandbox(spec["root"], spec["cwd"], tuple(Bind(**bind) for bind in spec["binds"])))
    except OSError as error:
        print(f"mount namespace: {error.strerror or error}", file=sys.stderr)
        return 125
    try:
        os.execvp(command[0], command)  # noqa: S606 - that is what it is for
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
