"""Runs a pod's containers as processes of this machine, in the order the kubelet keeps.

Init containers run one after the other; one with `restartPolicy: Always` (a native sidecar) is started,
its postStart hook awaited, and goes on. Then the containers run together. When the last has ended, the
sidecars get SIGTERM one after the other, the last one first, within the pod's grace period.

Images are ignored: `entrypoints` says what stands for an image without `command`. A container is not
started again, a native sidecar is. Probes, preStop hooks, resources and securityContext have no effect.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cli.sandbox import Bind, Sandbox
from trialtap import names

JSON = dict[str, Any]
Echo = Callable[[str, str], None]
"""Called with a container's name and a line of its output."""

_REFERENCE = re.compile(r"\$\$|\$\(([^)\s]+)\)")
_BACKOFF: Final = (0.0, 10.0, 20.0, 40.0)


class PodError(Exception):
    """The pod cannot run on this machine; the message names the field."""


@dataclass(frozen=True)
class Machine:
    """Where and how the pod runs here."""

    scratch: Path
    """A folder for its volumes."""
    cwd: Path
    """Where a container without workingDir starts."""
    entrypoints: Mapping[str, Sequence[str]]
    """Image -> argv, for a container without `command`."""
    path: str
    """PATH of every container that sets none."""
    sandboxed: bool
    """Mount paths are real, each container in a mount namespace of its own."""
    echo: Echo


@dataclass
class _Running:
    container: JSON
    process: subprocess.Popen[bytes]
    readers: list[threading.Thread] = field(default_factory=list)


def expand(text: str, env: Mapping[str, str]) -> str:
    """Replace `$(NAME)` as the kubelet does: `$$` is `$`, an unknown name stays as it is."""

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        return "$" if name is None else env.get(name, match.group())

    return _REFERENCE.sub(value, text)


class LocalPod:
    """One pod, run once by `run`."""

    def __init__(self, pod: JSON, machine: Machine) -> None:
        self.pod = pod
        self.machine = machine
        self.spec: JSON = pod["spec"]
        self.grace = float(self.spec.get("terminationGracePeriodSeconds", 30))
        self._stopping = threading.Event()
        self._sidecars: list[_Running] = []
        self._main: list[_Running] = []
        self._keepers: list[threading.Thread] = []
        self._volumes = {volume["name"]: self._volume(volume) for volume in self.spec.get("volumes") or ()}

    def run(self, primary: str) -> int:
        """Run it to its end.

        Args:
            primary: name of the container whose exit status is given.

        Returns:
            The exit status, 128+n for a signal as a shell has it; an init container's that failed.

        Raises:
            PodError: something in the pod cannot be had on this machine.
        """
        try:
            for container in self.spec.get("initContainers") or ():
                if container.get("restartPolicy") == "Always":
                    self._start_sidecar(container)
                elif status := self._status(self._start(container)):
                    return status
            self._main = [self._start(container) for container in self.spec["containers"]]
            statuses = {running.container["name"]: self._status(running) for running in self._main}
            return statuses[primary]
        finally:
            self._end()

    def stop(self) -> None:
        """Tell the containers to end, as when the pod is deleted."""
        for running in self._main:
            _kill(running.process, signal.SIGTERM)

    # Starting.

    def _start(self, container: JSON) -> _Running:
        name = container["name"]
        env = self._environment(container)
        argv = self._argv(container, env)
        process = subprocess.Popen(  # noqa: S603 - running the pod's command is the purpose
            argv,
            env=env,
            cwd=self.machine.cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        running = _Running(container, process)
        reader = threading.Thread(target=self._copy, args=(name, process), daemon=True)
        reader.start()
        running.readers.append(reader)
        return running

    def _start_sidecar(self, container: JSON) -> None:
        running = self._start(container)
        self._sidecars.append(running)
        hook = container.get("lifecycle", {}).get("postStart", {}).get("exec", {}).get("command")
        if hook:
            env = self._environment(container)
            done = subprocess.run(  # noqa: S603 - running the pod's hook is the purpose
                self._inside(hook, container, env),
                env=env,
                cwd=self.machine.cwd,
                capture_output=True,
                check=False,
            )
            if done.returncode:
                said = (done.stderr or done.stdout).decode(errors="replace").strip()
                raise PodError(
                    f"{container['name']}: postStart {hook}: exit status {done.returncode}: {said}"
                )
        keeper = threading.Thread(target=self._keep, args=(running,), daemon=True)
        keeper.start()
        self._keepers.append(keeper)

    def _keep(self, running: _Running) -> None:
        """Start a sidecar again whenever it ends before its time."""
        for wait in _backoff():
            running.process.wait()
            if self._stopping.wait(wait):
                return
            fresh = self._start(running.container)
            running.process = fresh.process
            running.readers += fresh.readers
            if self._stopping.is_set():
                _kill(running.process, signal.SIGTERM)
                return

    def _copy(self, name: str, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None  # noqa: S101 - Popen was told to make a pipe
        for line in process.stdout:
            self.machine.echo(name, line.decode(errors="replace").rstrip("\n"))

    # What a container sees.

    def _argv(self, container: JSON, env: Mapping[str, str]) -> list[str]:
        name = container["name"]
        command = container.get("command") or self.machine.entrypoints.get(container.get("image", ""))
        if not command:
            raise PodError(
                f"container {name}: set command; images are ignored here, so its entrypoint is not known"
            )
        argv = [expand(word, env) for word in (*command, *(container.get("args") or ()))]
        return self._inside(argv, container, env)

    def _inside(self, argv: Sequence[str], container: JSON, env: Mapping[str, str]) -> list[str]:
        binds = self._binds(container, env)
        if not self.machine.sandboxed:
            return self._without_sandbox(list(argv), binds, container["name"])
        root = self.machine.scratch / "roots" / container["name"]
        root.mkdir(parents=True, exist_ok=True)
        return Sandbox(str(root), str(container.get("workingDir") or self.machine.cwd), binds).argv(argv)

    def _without_sandbox(self, argv: list[str], binds: Sequence[Bind], name: str) -> list[str]:
        """Put the private volume's real folder into the argv; any other mount needs the sandbox."""
        for bind in binds:
            if bind.target != names.PRIVATE_DIRECTORY:
                raise PodError(
                    f"container {name}: the mount at {bind.target} needs a mount namespace, which this machine does "
                    "not allow (run as root, or allow unprivileged user namespaces); StdOut and PrometheusMetric "
                    "trials without volumes run without one"
                )
            argv = [
                bind.source + word.removeprefix(bind.target) if word.startswith(bind.target) else word
                for word in argv
            ]
        return argv

    def _environment(self, container: JSON) -> dict[str, str]:
        env = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
        env |= {"PATH": self.machine.path, "HOSTNAME": self.pod["metadata"]["name"]}
        if not self.machine.sandboxed and names.PRIVATE_VOLUME in self._volumes:
            env["TRIALTAP_DIRECTORY"] = str(self._volumes[names.PRIVATE_VOLUME])
        if container.get("envFrom"):
            raise PodError(
                f"container {container['name']}: envFrom cannot be had here; write the values into env"
            )
        declared: dict[str, str] = {}
        for item in container.get("env") or ():
            declared[item["name"]] = self._env_value(item, container["name"], declared)
        return env | declared

    def _env_value(self, item: JSON, container: str, earlier: Mapping[str, str]) -> str:
        source = item.get("valueFrom")
        if not source:
            return expand(item.get("value") or "", earlier)
        place = f"container {container}: env {item['name']}: valueFrom"
        if "fieldRef" not in source:
            if next(iter(source.values())).get("optional"):
                return ""
            raise PodError(f"{place}.{next(iter(source))} cannot be had here; write the value into env")
        return self._field(source["fieldRef"]["fieldPath"], place)

    def _field(self, path: str, place: str) -> str:
        metadata = self.pod["metadata"]
        if match := re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path):
            return str((metadata.get(match.group(1)) or {}).get(match.group(2), ""))
        values: dict[str, str] = {
            "metadata.name": metadata["name"],
            "metadata.namespace": metadata.get("namespace", "default"),
            "metadata.uid": metadata.get("uid", ""),
            "spec.nodeName": socket.gethostname(),
            "spec.serviceAccountName": self.spec.get("serviceAccountName", "default"),
            "status.podIP": "127.0.0.1",
            "status.hostIP": "127.0.0.1",
        }
        if path not in values:
            raise PodError(f"{place}.fieldRef.fieldPath: {path} is not known here")
        return values[path]

    def _volume(self, volume: JSON) -> Path:
        """Give the volume's folder; a source that only a cluster has is refused when it is mounted."""
        if "hostPath" in volume:
            return Path(str(volume["hostPath"]["path"]))
        folder: Path = self.machine.scratch / "volumes" / volume["name"]
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
        return folder

    def _binds(self, container: JSON, env: Mapping[str, str]) -> tuple[Bind, ...]:
        by_name = {volume["name"]: volume for volume in self.spec.get("volumes") or ()}
        binds = []
        for mount in container.get("volumeMounts") or ():
            volume = by_name.get(mount["name"])
            place = f"container {container['name']}: volumeMounts {mount['name']}"
            if volume is None:
                raise PodError(f"{place}: the pod has no such volume")
            if not {"emptyDir", "hostPath"} & volume.keys():
                kind = next((key for key in volume if key != "name"), "nothing")
                raise PodError(f"{place}: {kind} cannot be had here; use emptyDir or hostPath")
            inside = mount.get("subPath") or expand(mount.get("subPathExpr", ""), env)
            source = self._volumes[mount["name"]] / inside
            if inside:
                source.mkdir(parents=True, exist_ok=True)
            binds.append(
                Bind(str(source), mount["mountPath"].rstrip("/") or "/", bool(mount.get("readOnly")))
            )
        return tuple(binds)

    # Ending.

    def _status(self, running: _Running) -> int:
        code = running.process.wait()
        for reader in running.readers:
            reader.join(timeout=2)  # a daemon of the training's may hold the pipe for ever
        return code if code >= 0 else 128 - code

    def _end(self) -> None:
        """End what still runs: containers first, then the sidecars, the last one first."""
        self._stopping.set()
        deadline = time.monotonic() + self.grace
        for running in (*self._main, *reversed(self._sidecars)):
            _kill(running.process, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.process.wait(max(2.0, deadline - time.monotonic()))
            _kill(running.process, signal.SIGKILL)
            self._status(running)
        for keeper in self._keepers:
            keeper.join(timeout=2)
        shutil.rmtree(self.machine.scratch / "roots", ignore_errors=True)


def _backoff() -> Iterator[float]:
    yield from _BACKOFF
    while True:
        yield _BACKOFF[-1]


def _kill(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        if process.poll() is None:
            process.send_signal(number)
