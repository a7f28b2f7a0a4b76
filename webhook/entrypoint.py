"""What an image runs by itself, asked of its registry within the administrator's guards and cached by digest."""

import asyncio
import hashlib
import ssl
from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import httpx

from trialtap import __version__
from webhook import guard, imageref, pullsecrets
from webhook.cluster import Cluster, seconds_left
from webhook.command import Entrypoint
from webhook.imageref import Image
from webhook.registry import Answer, Session
from webhook.review import JSON
from webhook.settings import EntrypointLookup

MAX_CACHED: Final = 2_000
_MANIFESTS: Final = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_INDEXES: Final = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_ACCEPT: Final = ", ".join((*_MANIFESTS, *_INDEXES))
_ARCH_LABEL: Final = "kubernetes.io/arch"
_DEFAULT_ARCH: Final = "amd64"


class Entrypoints:
    """Looks images up. An image that was seen under its digest is answered from memory."""

    def __init__(
        self,
        settings: EntrypointLookup,
        cluster: Cluster | None = None,
        *,
        resolver: guard.Resolve = guard.resolve,
        client: Callable[[], httpx.AsyncClient] | None = None,
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._resolver = resolver
        self._client = (client or _client)()
        self._cache: OrderedDict[tuple[str, ...], Entrypoint] = OrderedDict()
        self._running: dict[tuple[str, ...], asyncio.Task[Entrypoint]] = {}

    async def look_up(self, pod: JSON, namespace: str, image: str) -> Entrypoint:
        """ENTRYPOINT and CMD of an image that a pod of this namespace would run.

        Requests for the same image at the same time share one conversation with its registry.

        Raises:
            LookupError: it was not allowed, not answered in time, or not had; the message says which.
        """
        if not self._settings.enabled:
            raise LookupError("look-ups are off; entrypointLookup.enabled turns them on")
        try:
            parsed = imageref.parse(image)
        except ValueError as error:
            raise LookupError(str(error)) from None
        if parsed.registry not in self._settings.registries:
            raise LookupError(f"registry {parsed.registry} is not among entrypointLookup.registries")
        arch = (pod["spec"].get("nodeSelector") or {}).get(_ARCH_LABEL) or _DEFAULT_ARCH
        secrets = [item.get("name") for item in pod["spec"].get("imagePullSecrets") or ()]
        owner = namespace if namespace in self._settings.pull_secret_namespaces else ""
        key = (image, arch, owner, *(map(str, secrets) if owner else ()))
        task = self._running.get(key)
        if task is None:
            task = asyncio.create_task(self._bounded(pod, owner, parsed, arch))
            self._running[key] = task
            task.add_done_callback(lambda done: self._ended(key, done))
        try:
            async with asyncio.timeout(seconds_left(self._settings.deadline_seconds)):
                return await asyncio.shield(task)
        except TimeoutError:
            raise LookupError(self._late(parsed)) from None

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _bounded(self, pod: JSON, owner: str, image: Image, arch: str) -> Entrypoint:
        try:
            async with asyncio.timeout(self._settings.deadline_seconds):
                return await self._ask(pod, owner, image, arch)
        except TimeoutError:
            raise LookupError(self._late(image)) from None

    def _ended(self, key: tuple[str, ...], task: asyncio.Task[Entrypoint]) -> None:
        self._running.pop(key, None)
        if not task.cancelled():
            task.exception()  # seen: whoever asked may have gone before the answer came

    def _late(self, image: Image) -> str:
        return f"registry {image.registry} did not answer within {self._settings.deadline_seconds:g} s"

    async def _ask(self, pod: JSON, owner: str, image: Image, arch: str) -> Entrypoint:
        if image.digest and (known := self._remembered(owner, image, image.digest, arch)):
            return known
        secrets: list[JSON] = []
        if owner and self._cluster is not None:
            secrets = await pullsecrets.read(pod, owner, self._cluster)
        session = Session(
            self._client, image, self._settings, pullsecrets.pick(secrets, image), resolver=self._resolver
        )
        digest = image.digest or await _digest_of_tag(session, image.tag)
        if known := self._remembered(owner, image, digest, arch):
            return known
        found = await _entrypoint(session, digest or image.tag, arch)
        if digest:
            self._remember(owner, image, digest, arch, found)
        return found

    def _remembered(self, owner: str, image: Image, digest: str, arch: str) -> Entrypoint | None:
        """What is known of a digest; what a namespace saw with its secrets is that namespace's alone."""
        key = (owner, image.registry, image.repository, digest, arch)
        if key in self._cache:
            self._cache.move_to_end(key)
        return self._cache.get(key)

    def _remember(self, owner: str, image: Image, digest: str, arch: str, found: Entrypoint) -> None:
        self._cache[(owner, image.registry, image.repository, digest, arch)] = found
        while len(self._cache) > MAX_CACHED:
            self._cache.popitem(last=False)


def _client() -> httpx.AsyncClient:
    """Connections of one request each, and nothing from the environment.

    Proxies and .netrc would take requests where the guards do not see them. A connection kept for one host
    could serve another at the same address whose certificate nobody looked at.
    """
    return httpx.AsyncClient(
        verify=_trust(),
        headers={"User-Agent": f"trialtap/{__version__}"},
        trust_env=False,
        limits=httpx.Limits(max_keepalive_connections=0),
        timeout=None,  # noqa: S113 - the whole look-up has one deadline
    )


@cache
def _trust() -> ssl.SSLContext:
    """The certificates that are trusted: reading them takes tens of milliseconds, so it is done once."""
    return httpx.create_ssl_context()


async def _digest_of_tag(session: Session, tag: str) -> str:
    """The digest that a tag stands for now; "" where the registry does not tell it."""
    answer = await session.get(f"manifests/{tag}", _ACCEPT, method="HEAD")
    digest = answer.headers.get("docker-content-digest", "")
    return digest if digest.startswith("sha256:") else ""


async def _entrypoint(session: Session, reference: str, arch: str) -> Entrypoint:
    manifest = await _manifest(session, reference)
    if "manifests" in manifest:
        manifest = await _manifest(session, _choose(manifest["manifests"], arch))
    digest = (manifest.get("config") or {}).get("digest")
    if not isinstance(digest, str) or not digest.startswith("sha256:"):
        raise LookupError("its manifest is of a form that names no configuration")
    blob = await session.get(f"blobs/{digest}")
    _verify(blob, digest)
    config = blob.json().get("config") or {}
    return Entrypoint(_words(config.get("Entrypoint")), _words(config.get("Cmd")))


async def _manifest(session: Session, reference: str) -> JSON:
    answer = await session.get(f"manifests/{reference}", _ACCEPT)
    if reference.startswith("sha256:"):
        _verify(answer, reference)
    return answer.json()


def _choose(manifests: Any, arch: str) -> str:
    """Digest of the manifest for Linux on this architecture, else of any for Linux."""
    linux = [
        item
        for item in (manifests if isinstance(manifests, list) else ())
        if isinstance(item, dict) and (item.get("platform") or {}).get("os") == "linux"
    ]
    linux.sort(key=lambda item: item["platform"].get("architecture") != arch)
    if not linux or not isinstance(linux[0].get("digest"), str):
        raise LookupError("its index holds no image for Linux")
    return str(linux[0]["digest"])


def _verify(answer: Answer, digest: str) -> None:
    """Raise LookupError unless the body is what the digest says: anybody on the way may have changed it."""
    if f"sha256:{hashlib.sha256(answer.body).hexdigest()}" != digest:
        raise LookupError(f"the registry's answer is not what {digest} stands for")


def _words(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise LookupError("its configuration's Entrypoint or Cmd is no list of strings")
    return tuple(value)
