"""The Secret, the webhook configurations and the DB manager's Secret: read, written, watched.

Every write over something that was read names its resourceVersion, so that the API server refuses (409)
what was decided on something that has changed since.
"""

import asyncio
import datetime as dt
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Final

from certs import plan
from trialtap.kube import API, JSON, Follower, Status, path_of, run_all

WISH_ANNOTATION: Final = "trialtap/rotate"
"""On the Secret: `ca` or `leaf`, what a person wants to be renewed."""
_MANAGER: Final = {"fieldManager": "trialtap-certs"}
_MERGE: Final = "application/merge-patch+json"
_STRATEGIC: Final = "application/strategic-merge-patch+json"
_APPLY: Final = "application/apply-patch+yaml"
_REGISTRATION: Final = "admissionregistration.k8s.io/v1"
_REQUEST_SECONDS: Final = 5.0
_DATA: Final = (
    plan.CA_CERTIFICATE,
    plan.CA_KEY,
    plan.CERTIFICATE,
    plan.KEY,
    plan.NEXT_CERTIFICATE,
    plan.NEXT_KEY,
    plan.OLD,
    plan.CHAIN,
)


@dataclass(frozen=True)
class Where:
    """The objects by name."""

    namespace: str
    secret: str
    mutating: tuple[str, ...] = ()
    validating: tuple[str, ...] = ()
    copy: str = ""
    """The DB manager's Secret; empty: it has none."""

    @property
    def configurations(self) -> tuple[str, ...]:
        """Paths of the webhook configurations."""
        kinds = (
            ("mutatingwebhookconfigurations", self.mutating),
            ("validatingwebhookconfigurations", self.validating),
        )
        return tuple(path_of(_REGISTRATION, plural, name=name) for plural, names in kinds for name in names)


@dataclass(frozen=True)
class Look:
    """What was read, with the versions that a write must name."""

    observed: plan.Observed
    versions: Mapping[str, str] = field(repr=False)
    now: dt.datetime
    """By the API server's clock, since it is the one that judges what we serve."""


class Cluster:
    """One cluster's objects."""

    def __init__(self, api: API, where: Where) -> None:
        self._api = api
        self._where = where
        self._secret = path_of("v1", "secrets", where.namespace, where.secret)
        self._copy = path_of("v1", "secrets", where.namespace, where.copy) if where.copy else ""

    async def look(self, memory: plan.Memory, *, leading: bool) -> Look:
        """Read everything anew.

        Raises:
            Status: an object cannot be read, for another reason than that it does not exist.
            Unreachable: no answer.
        """
        paths = [self._secret, *self._where.configurations, *([self._copy] if self._copy else [])]
        found = dict(zip(paths, await asyncio.gather(*map(self._get, paths)), strict=True))
        secret, copy = found.pop(self._secret), found.pop(self._copy, None)
        observed = plan.Observed(
            secret=None if secret is None else data_of(secret),
            configurations={path: _bundles(item) for path, item in found.items() if item is not None},
            identities=frozenset(item["metadata"]["uid"] for item in found.values() if item is not None),
            wish=_annotation(secret or {}),
            copy=(data_of(copy) if copy else {}) if self._copy else None,
            leading=leading,
            memory=memory,
        )
        known = {self._secret: secret, self._copy: copy, **found}
        versions = {path: item["metadata"]["resourceVersion"] for path, item in known.items() if item}
        return Look(observed, versions, _date(self._api.date))

    async def perform(self, action: plan.Action, look: Look) -> None:
        """Write; not for `Serve`.

        Raises:
            Status: refused; 409 when the object changed since `look`.
            Unreachable: no answer; whether it was written will be seen at the next look.
        """
        match action:
            case plan.MakeSecret():
                await self._make(self._secret, self._where.secret)
            case plan.WriteSecret():
                metadata = self._metadata(self._secret, look)
                if action.granted:
                    metadata["annotations"] = {WISH_ANNOTATION: None}
                await self._patch(self._secret, _MERGE, {"metadata": metadata, "data": _encode(action.data)})
            case plan.WriteCopy():
                if self._copy not in look.versions:
                    await self._make(self._copy, self._where.copy)
                    return
                body = {"metadata": self._metadata(self._copy, look), "data": _encode(action.data)}
                await self._patch(self._copy, _MERGE, body)
            case plan.Publish():
                path = action.configuration
                bundle = b64encode(action.bundle).decode()
                webhooks = [
                    {"name": name, "clientConfig": {"caBundle": bundle}}
                    for name in look.observed.configurations[path]
                ]
                await self._patch(
                    path, _STRATEGIC, {"metadata": self._metadata(path, look), "webhooks": webhooks}
                )

    async def follow(self, changed: Callable[[], None], log: Callable[[str], None]) -> None:
        """Call `changed` whenever one of the objects did, for ever."""
        paths = [self._secret, *self._where.configurations, *([self._copy] if self._copy else [])]
        await run_all(self._follower(path, changed, log) for path in paths)

    def _follower(self, path: str, changed: Callable[[], None], log: Callable[[str], None]) -> Follower:
        collection, _, name = path.rpartition("/")
        query = {"fieldSelector": f"metadata.name={name}"}
        return Follower(self._api, collection, _Bell(changed), query, log)

    async def _get(self, path: str) -> JSON | None:
        try:
            return await self._api.request("GET", path, seconds=_REQUEST_SECONDS)
        except Status as status:
            if status.code == 404:
                return None
            raise

    async def _patch(self, path: str, content_type: str, body: JSON) -> None:
        await self._api.request(
            "PATCH", path, query=_MANAGER, body=body, content_type=content_type, seconds=_REQUEST_SECONDS
        )

    async def _make(self, path: str, name: str) -> None:
        """Server-side apply creates it, or leaves what another replica just created: RBAC can hold it to a name."""
        labels = {"app.kubernetes.io/name": "trialtap", "app.kubernetes.io/component": "certificates"}
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "namespace": self._where.namespace, "labels": labels},
        }
        query = {**_MANAGER, "force": "true"}
        await self._api.request(
            "PATCH", path, query=query, body=body, content_type=_APPLY, seconds=_REQUEST_SECONDS
        )

    @staticmethod
    def _metadata(path: str, look: Look) -> JSON:
        return {"resourceVersion": look.versions[path]}


class _Bell:
    """A sink that only says that something changed."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed

    def put(self, item: JSON) -> None:  # noqa: ARG002 - what it is now is read anew
        self._changed()

    def delete(self, uid: str) -> None:  # noqa: ARG002
        self._changed()

    def retain(self, uids: set[str]) -> None:  # noqa: ARG002
        self._changed()


def data_of(secret: JSON) -> dict[str, bytes]:
    """A Secret's data, decoded."""
    data: dict[str, bytes] = {}
    for key, value in (secret.get("data") or {}).items():
        with suppress(NotBase64, TypeError, ValueError):
            data[key] = b64decode(value or "", validate=True)
    return data


def _bundles(configuration: JSON) -> dict[str, bytes]:
    webhooks: Iterable[JSON] = configuration.get("webhooks") or ()
    return {w["name"]: b64decode((w.get("clientConfig") or {}).get("caBundle") or "") for w in webhooks}


def _annotation(secret: JSON) -> str:
    annotations = secret.get("metadata", {}).get("annotations") or {}
    return str(annotations.get(WISH_ANNOTATION) or "")


def _encode(data: Mapping[str, bytes]) -> dict[str, str | None]:
    """Every key of ours: null takes away what is not there."""
    return {key: b64encode(data[key]).decode() if key in data else None for key in _DATA}


def _date(header: str) -> dt.datetime:
    try:
        return parsedate_to_datetime(header).astimezone(dt.UTC)
    except (TypeError, ValueError):
        return dt.datetime.now(dt.UTC)
