"""Credentials for a registry out of pull secrets, as the kubelet picks them."""

import base64
import binascii
import json
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from webhook.cluster import Cluster, NotFound, Unreadable
from webhook.imageref import DOCKER_HUB, Image
from webhook.review import JSON

_KEYS: Final = {".dockerconfigjson": "auths", ".dockercfg": None}
_HUB_KEYS: Final = frozenset({"index.docker.io", "registry-1.docker.io", "docker.io"})


class Credentials(NamedTuple):
    """A user of one registry."""

    user: str
    password: str


async def read(pod: JSON, namespace: str, cluster: Cluster) -> list[JSON]:
    """The pull secrets that a pod's images may be pulled with; those that cannot be read are left out.

    They are the pod's; a pod without any has its service account's (which admission copies into the pod).
    """
    wanted = pod["spec"].get("imagePullSecrets") or []
    if not wanted:
        account = pod["spec"].get("serviceAccountName") or "default"
        found = await _get(cluster, "ServiceAccount", namespace, account)
        wanted = (found or {}).get("imagePullSecrets") or []
    secrets = [await _get(cluster, "Secret", namespace, str(item.get("name"))) for item in wanted]
    return [secret for secret in secrets if secret is not None]


def pick(secrets: Iterable[JSON], image: Image) -> Credentials | None:
    """The entry whose registry and path fit the image best (the longest); None: none fits."""
    best: tuple[int, Credentials] | None = None
    for secret in secrets:
        for key, entry in _entries(secret).items():
            host, path = _place(key)
            fits = _same_host(host, image.registry) and (image.repository + "/").startswith(
                path and path + "/"
            )
            credentials = _credentials(entry) if fits else None
            if credentials and (best is None or len(path) > best[0]):
                best = (len(path), credentials)
    return best[1] if best else None


async def _get(cluster: Cluster, kind: str, namespace: str, name: str) -> JSON | None:
    try:
        return await cluster.get("v1", kind, namespace, name)
    except (NotFound, Unreadable):
        return None


def _entries(secret: JSON) -> dict[str, Any]:
    for key, within in _KEYS.items():
        encoded = (secret.get("data") or {}).get(key)
        text = (secret.get("stringData") or {}).get(key)
        try:
            document = json.loads(base64.b64decode(encoded) if encoded else text or "null")
        except (ValueError, TypeError, binascii.Error):
            continue
        entries = document.get(within) if within and isinstance(document, dict) else document
        if isinstance(entries, dict):
            return entries
    return {}


def _place(key: str) -> tuple[str, str]:
    """Host and path of an entry's key, `https://index.docker.io/v1/` or `registry.example.com/team`."""
    host, _, path = key.partition("://")[2 if "://" in key else 0].partition("/")
    path = path.strip("/")
    return (DOCKER_HUB if host in _HUB_KEYS else host), "" if path in ("v1", "v2") else path


def _same_host(pattern: str, host: str) -> bool:
    """By parts between dots, each of which may hold `*`; the ports must be equal."""
    if pattern == host:
        return True
    ours, theirs = pattern.split("."), host.split(".")
    return len(ours) == len(theirs) and all(map(fnmatchcase, theirs, ours))


def _credentials(entry: Any) -> Credentials | None:
    if not isinstance(entry, dict):
        return None
    user, password = entry.get("username"), entry.get("password")
    if not user and isinstance(entry.get("auth"), str):
        try:
            user, _, password = base64.b64decode(entry["auth"]).decode().partition(":")
        except (ValueError, binascii.Error):
            return None
    return Credentials(str(user), str(password)) if user and password else None
