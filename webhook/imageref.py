"""Image references as container runtimes read them: registry, repository, and tag or digest."""

import re
from typing import Final, NamedTuple

DOCKER_HUB: Final = "docker.io"
_HUB_NAMES: Final = frozenset({"docker.io", "index.docker.io", "registry-1.docker.io"})
_HUB_API: Final = "registry-1.docker.io"

_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:.]+\])(?::\d{1,5})?")
_COMPONENT = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
_TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class Image(NamedTuple):
    """Where an image is."""

    registry: str
    """Host, with `:port` where the reference has one; `docker.io` for short names."""
    repository: str
    tag: str
    """`latest` where the reference says neither tag nor digest."""
    digest: str
    """`sha256:…`, or "" """

    @property
    def api_host(self) -> str:
        """Host of the distribution API (Docker Hub's is another than its name)."""
        return _HUB_API if self.registry == DOCKER_HUB else self.registry

    @property
    def reference(self) -> str:
        """What a manifest is asked for by: the digest where there is one."""
        return self.digest or self.tag


def parse(text: str) -> Image:
    """Read a reference (grammar of the OCI distribution specification, short names as Docker completes them).

    The part before the first `/` is a registry when it has a dot or a colon, or is `localhost`.

    Raises:
        ValueError: the text is no such reference.
    """
    rest, _, digest = text.partition("@")
    first, slash, remainder = rest.partition("/")
    named = slash and ("." in first or ":" in first or first == "localhost")
    registry, path = (first, remainder) if named else (DOCKER_HUB, rest)
    repository, colon, tag = path.partition(":")
    if registry in _HUB_NAMES:
        registry = DOCKER_HUB
        repository = repository if "/" in repository else f"library/{repository}"
    if (
        not _HOST.fullmatch(registry)
        or not _REPOSITORY.fullmatch(repository)
        or (colon and not _TAG.fullmatch(tag))
        or ("@" in text and not _DIGEST.fullmatch(digest))
    ):
        raise ValueError(f"{text!r} is no image reference that can be looked up")
    return Image(registry, repository, tag or "latest", digest)
