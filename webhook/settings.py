"""What an administrator decides: read once from the YAML file that the chart renders, and checked by name."""

import dataclasses
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from trialtap import __version__, names

PUBLIC_REGISTRIES: Final = (
    "docker.io",
    "gcr.io",
    "ghcr.io",
    "mcr.microsoft.com",
    "nvcr.io",
    "public.ecr.aws",
    "quay.io",
    "registry.access.redhat.com",
    "registry.gitlab.com",
    "registry.k8s.io",
)
"""The large public registries: hosts of an image reference that a look-up may ask by default."""


@dataclass(frozen=True, slots=True)
class Resources:
    """Compute resources as a container has them: quantities by resource name."""

    requests: Mapping[str, str] = field(default_factory=dict)
    """What the scheduler sets aside, `{cpu: 20m, memory: 64Mi}`."""
    limits: Mapping[str, str] = field(default_factory=dict)
    """What the container may use at most."""


DEFAULT_RESOURCES: Final = Resources(
    requests={"cpu": "20m", "memory": "64Mi", "ephemeral-storage": "64Mi"},
    limits={"cpu": "500m", "memory": "192Mi", "ephemeral-storage": "2Gi"},
)


@dataclass(frozen=True, slots=True)
class Sidecar:
    """The collector container that is put beside a training."""

    image: str = f"trialtap-collector:{__version__}"
    """Image of the collector; its ENTRYPOINT is the collector and `tap` is on its PATH."""
    pull_policy: str = "IfNotPresent"
    """Always, IfNotPresent or Never."""
    pull_secret: str = ""
    """Name of a Secret in the trial's namespace, added to the pod's imagePullSecrets; empty: none."""
    resources: Resources = DEFAULT_RESOURCES
    """Requests and limits before the namespace's LimitRanges and the pod's QoS class have their say."""
    image_from_katib_config: bool = False
    """Take the image, too, from `katib-config`'s metricsCollectors (the images there are usually Katib's own)."""
    flush_grace_seconds: int = 0
    """Least terminationGracePeriodSeconds of an injected pod, so that points can be flushed; 0: leave it."""
    keep: int = 1 << 30
    """Bytes of a training's output to keep while the database is away."""
    echo: bool = False
    """StdOut: repeat the training's lines in the collector's own log, where Katib's UI and SDK look for them."""


@dataclass(frozen=True, slots=True)
class EntrypointLookup:
    """Asking a registry for the entrypoint of an image whose container sets no `command`."""

    enabled: bool = True
    """Ask at all; when off, such a container is refused with the advice to set `command`."""
    registries: tuple[str, ...] = PUBLIC_REGISTRIES
    """Hosts (with `:port` when not 443) of image references that may be asked."""
    private_hosts: tuple[str, ...] = ()
    """Hosts that may resolve to private, loopback or link-local addresses, token realms and redirects included."""
    plain_hosts: tuple[str, ...] = ()
    """Hosts (with `:port` when not 80) that are asked over plain HTTP."""
    pull_secret_namespaces: tuple[str, ...] = ()
    """Namespaces whose pods' and service accounts' pull secrets may be read (each needs a RoleBinding)."""
    deadline_seconds: float = 4.0
    """Time for a whole look-up, redirects and tokens included."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that the webhook is told at its start."""

    sidecar: Sidecar = Sidecar()
    """The collector container."""
    db_address: str = names.DEFAULT_DB_ADDRESS
    """HOST:PORT of the DB manager that collectors report to."""
    db_ca: str = ""
    """PEM of the CA that the DB manager's certificate chains to; empty: the collector speaks without TLS."""
    token_audience: str = ""
    """Audience of the service-account token that a collector proves itself with; empty: none is mounted."""
    early_stopping_address: str = ""
    """HOST:PORT of the EarlyStopping service; empty: the service of the experiment's suggestion, as with Katib."""
    katib_namespace: str = names.KATIB_NAMESPACE
    """Namespace of the ConfigMap `katib-config`."""
    entrypoint_lookup: EntrypointLookup = EntrypointLookup()
    """Look-ups of an image's entrypoint."""


class SettingsError(ValueError):
    """A settings file cannot be used; the message names the file, the field and what would be right."""


def load(path: Path) -> Settings:
    """Read a settings file.

    Raises:
        SettingsError: the file cannot be read, is no YAML, or a field is unknown or wrong.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError(f"{path}: cannot be read as YAML: {error}") from None
    try:
        return parse(document)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from None


def parse(document: Any) -> Settings:
    """Turn a parsed YAML document (camelCase keys; None: all defaults) into settings.

    Raises:
        SettingsError: a key is unknown or a value has the wrong type; the message names it.
    """
    settings: Settings = _read(Settings, {} if document is None else document, "")
    if settings.sidecar.pull_policy not in {"Always", "IfNotPresent", "Never"}:
        raise SettingsError(
            f"sidecar.pullPolicy: {settings.sidecar.pull_policy!r} is not one of Always, IfNotPresent, Never"
        )
    for path, number in (
        ("sidecar.flushGraceSeconds", settings.sidecar.flush_grace_seconds),
        ("sidecar.keep", settings.sidecar.keep),
        ("entrypointLookup.deadlineSeconds", settings.entrypoint_lookup.deadline_seconds),
    ):
        if number < 0:
            raise SettingsError(f"{path}: {number} is negative")
    return settings


def _camel(name: str) -> str:
    """`db_ca` is `dbCA`, `pull_secret` is `pullSecret`."""
    return re.sub(r"_(\w)", lambda match: match[1].upper(), name).replace("dbCa", "dbCA")


def _read(kind: Any, value: Any, path: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _read_object(kind, value, path)
    origin = typing.get_origin(kind)
    if origin is tuple:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise SettingsError(f"{path}: must be a list of strings, not {value!r}")
        return tuple(value)
    if origin is Mapping:
        if not isinstance(value, dict):
            raise SettingsError(f"{path}: must be a mapping of resource names to quantities, not {value!r}")
        return types.MappingProxyType({str(key): str(item) for key, item in value.items()})
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        raise SettingsError(f"{path}: must be {_WORDS[kind]}, not {value!r}")
    return value


_WORDS: Final = {str: "a string", bool: "true or false", int: "a whole number", float: "a number"}


def _read_object(kind: Any, value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        raise SettingsError(f"{path or 'the document'}: must be a mapping, not {value!r}")
    types_by_name = typing.get_type_hints(kind)
    fields = {_camel(item.name): item.name for item in dataclasses.fields(kind)}
    prefix = f"{path}." if path else ""
    for key in value:
        if key not in fields:
            raise SettingsError(f"{prefix}{key}: unknown; known here are {', '.join(sorted(fields))}")
    return kind(
        **{
            fields[key]: _read(types_by_name[fields[key]], item, f"{prefix}{key}")
            for key, item in value.items()
            if item is not None
        }
    )
