"""Which volumes a pod gets, and how training and collector come to see the same metrics."""

import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from trialtap import names
from webhook.review import JSON, Reason, Refusal
from webhook.surroundings import Subject

_UNWRITABLE: Final = {
    "secret": "Secret",
    "configMap": "ConfigMap",
    "downwardAPI": "downwardAPI",
    "projected": "projected",
    "image": "image",
}
_PROGRAMS: Final = (".py", ".sh", ".jl", ".R", ".jar", ".pl")
_VARIABLE = re.compile(r"\$\$|\$\(([^()]*)\)")


@dataclass(frozen=True, slots=True)
class Sharing:
    """How the metrics' folder is shared."""

    volume: JSON | None = None
    """A volume of our own that is added; None: the user's volumes are shared."""
    mount: JSON | None = None
    """Its mount in the training container."""
    collector_mounts: tuple[JSON, ...] = ()
    """Mounts of the sidecar, read-only where the volume is the user's."""
    collector_env: tuple[JSON, ...] = ()
    """Variables that a `subPathExpr` among those mounts needs."""
    fault: str = ""
    """Why the sidecar cannot see the metrics; empty: it can."""
    warnings: tuple[str, ...] = ()

    @property
    def volumes(self) -> tuple[JSON, ...]:
        """The volume of our own, as the pod's volumes take it."""
        return () if self.volume is None else (self.volume,)

    @property
    def training_mounts(self) -> tuple[JSON, ...]:
        """Its mount, as the training container's mounts take it."""
        return () if self.mount is None else (self.mount,)


def share(subject: Subject, path: str, *, directory: bool, writable: bool = False) -> Sharing:
    """Decide how the sidecar sees `path`.

    A mount of the training container at or above the path is shared, with mounts below it when the path is a
    directory; else an emptyDir is put at the metrics directory.

    Args:
        subject: the pod and its training container.
        path: absolute path of the metrics file, or of the directory.
        directory: whether `path` is a directory.
        writable: the sidecar may write into a volume of our own (Katib's lifecycle keeps its marks there).

    Raises:
        Refusal: the path is relative or directly under `/`, or lies in a Secret, ConfigMap, downwardAPI,
            projected or image volume, into which no training can write.
    """
    pod, container = subject.pod, subject.container
    path, folder = _folder(path, directory=directory, whose=subject.whose)
    mounts = container.get("volumeMounts") or []
    above = [mount for mount in mounts if _within(path, _path(mount))]
    if not above:
        _refuse_covering(subject, folder)
        name = free_name(names.METRICS_VOLUME, pod)
        mount = {"name": name, "mountPath": folder}
        return Sharing(
            volume={"name": name, "emptyDir": {}},
            mount=mount,
            collector_mounts=(dict(mount) if writable else {**mount, "readOnly": True},),
            warnings=_hidden(container, path, folder),
        )
    nearest = max(above, key=lambda mount: len(_path(mount)))
    _refuse_unwritable(subject, nearest, path)
    _refuse_covering(subject, _path(nearest))
    below = [m for m in mounts if directory and m is not nearest and _within(_path(m), path)]
    return _copy(container, [nearest, *below], path)


def free_name(wanted: str, pod: JSON) -> str:
    """`wanted`, or with the first number behind it that no volume of the pod bears."""
    taken = {volume.get("name") for volume in pod["spec"].get("volumes") or ()}
    if wanted not in taken:
        return wanted
    return next(name for number in range(1, len(taken) + 2) if (name := f"{wanted}-{number}") not in taken)


def refuse_private_clash(container: JSON, whose: str) -> None:
    """Refuse a training container whose own mounts leave no room for the private volume.

    Raises:
        Refusal: something is mounted at our directory, or read-only above it: the kubelet could then
            not make the mount point.
    """
    for mount in container.get("volumeMounts") or ():
        path = _path(mount)
        if path == names.PRIVATE_DIRECTORY or (
            mount.get("readOnly") and _within(names.PRIVATE_DIRECTORY, path)
        ):
            raise Refusal(
                Reason.UNSUPPORTED_MOUNT,
                f"{whose}: container {container['name']!r} mounts volume {mount.get('name')!r} at {mount['mountPath']!r},"
                f" where trialtap needs {names.PRIVATE_DIRECTORY}; mount it elsewhere",
            )


def _folder(path: str, *, directory: bool, whose: str) -> tuple[str, str]:
    if not path.startswith("/"):
        raise Refusal(
            Reason.UNSUPPORTED_MOUNT,
            f"{whose}: spec.metricsCollector.source.fileSystemPath.path: {path!r} is not absolute; write it from / on",
        )
    normal = posixpath.normpath(path)
    normal = normal[1:] if normal.startswith("//") else normal
    folder = normal if directory else posixpath.dirname(normal)
    if folder == "/":
        raise Refusal(
            Reason.UNSUPPORTED_MOUNT,
            f"{whose}: spec.metricsCollector.source.fileSystemPath.path: {path!r} lies directly under /, which no volume"
            " can share; write the metrics into a folder of their own, as /metrics/metrics.log",
        )
    return normal, folder


def _path(mount: JSON) -> str:
    return posixpath.normpath(mount.get("mountPath") or "/")


def _within(path: str, folder: str) -> bool:
    """Whether `path` is `folder` or stands below it, by whole components."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _refuse_unwritable(subject: Subject, mount: JSON, path: str) -> None:
    volume: JSON = next(
        (v for v in subject.pod["spec"].get("volumes") or () if v.get("name") == mount.get("name")), {}
    )
    for source, word in _UNWRITABLE.items():
        if source in volume:
            raise Refusal(
                Reason.UNSUPPORTED_MOUNT,
                f"{subject.whose}: the metrics at {path!r} lie in volume {mount.get('name')!r} of container {subject.container['name']!r},"
                f" mounted at {mount['mountPath']!r}: no training can write into a {word} volume;"
                " write the metrics elsewhere and set fileSystemPath.path to that",
            )


def _refuse_covering(subject: Subject, folder: str) -> None:
    """Refuse metrics whose volume would lie over the collector's own folder: read-only, it takes no mount point."""
    if _within(names.PRIVATE_DIRECTORY, folder):
        raise Refusal(
            Reason.UNSUPPORTED_MOUNT,
            f"{subject.whose}: the volume of the metrics would be mounted at {folder!r}, over the collector's own"
            f" {names.PRIVATE_DIRECTORY}; write the metrics elsewhere and set fileSystemPath.path to that",
        )


def _copy(container: JSON, mounts: list[JSON], path: str) -> Sharing:
    """The user's own mounts as the sidecar gets them: read-only, at the same paths."""
    copies: list[JSON] = []
    env: list[JSON] = []
    warnings: list[str] = []
    for mount in mounts:
        copy: JSON = {
            key: mount[key] for key in ("name", "mountPath", "subPath", "subPathExpr") if key in mount
        }
        copy["readOnly"] = True
        if mount.get("mountPropagation") in ("Bidirectional", "HostToContainer"):
            copy["mountPropagation"] = "HostToContainer"
        if mount.get("readOnly"):
            warnings.append(
                f"container {container['name']!r} mounts {mount['mountPath']!r} read-only: unless another container"
                f" writes {path!r}, there will be no metrics"
            )
        if expression := mount.get("subPathExpr"):
            needed, missing = _variables(container, expression)
            if missing:
                return Sharing(
                    fault=f"subPathExpr {expression!r} of the mount at {mount['mountPath']!r} needs ${missing}, which"
                    f" container {container['name']!r} does not set in `env`; set it there"
                )
            env += [item for item in (_of_training(item, container) for item in needed) if item not in env]
        copies.append(copy)
    return Sharing(collector_mounts=tuple(copies), collector_env=tuple(env), warnings=tuple(warnings))


def _variables(container: JSON, expression: str) -> tuple[list[JSON], str]:
    """The `env` entries that an expression needs, in their order; and a variable that is not among them."""
    by_name = {item["name"]: item for item in container.get("env") or () if "name" in item}
    wanted = _names_in(expression)
    missing = next((name for name in wanted if name not in by_name), "")
    seen: set[str] = set()
    while wanted:
        name = wanted.pop()
        if name in by_name and name not in seen:
            seen.add(name)
            wanted += _names_in(by_name[name].get("value") or "")
    return [item for name, item in by_name.items() if name in seen], missing


def _of_training(item: JSON, container: JSON) -> JSON:
    """A variable with the training's value in another container: its own resources are named."""
    reference = (item.get("valueFrom") or {}).get("resourceFieldRef")
    if not reference or reference.get("containerName"):
        return item
    return {**item, "valueFrom": {"resourceFieldRef": {**reference, "containerName": container["name"]}}}


def _names_in(text: str) -> list[str]:
    return [name for name in _VARIABLE.findall(text) if name]


def _hidden(container: JSON, path: str, folder: str) -> tuple[str, ...]:
    """Warn where the new volume hides files of the image that the training seems to need."""
    words: Iterable[str] = (*(container.get("command") or ()), *(container.get("args") or ()))
    used = next(
        (
            word
            for number, word in enumerate(words)
            if word != path
            and (number == 0 or word.endswith(_PROGRAMS))
            and _within(posixpath.normpath(word), folder)
        ),
        "",
    )
    if not used and _within(container.get("workingDir") or "", folder):
        used = container["workingDir"]
    if not used:
        return ()
    return (
        f"a volume is mounted at {folder!r} for the metrics and hides what the image holds there, {used!r} included;"
        " let the training write its metrics into a folder of their own",
    )
