"""The CA by which collectors know the DB manager, from a file that changes under way."""

from dataclasses import replace
from pathlib import Path

from webhook.app import Handler
from webhook.cluster import Cluster
from webhook.review import Request, Verdict
from webhook.settings import Settings


class DatabaseCA:
    """A PEM file, read for each pod: the one injected next trusts the CA that comes next."""

    def __init__(self, path: Path) -> None:
        """Read it once.

        Raises:
            OSError: it cannot be read.
        """
        self._path = path
        self._pem = path.read_text(encoding="ascii")

    def pem(self) -> str:
        """What the file holds; while it cannot be read, what it held."""
        try:
            self._pem = self._path.read_text(encoding="ascii") or self._pem
        except (OSError, UnicodeDecodeError):
            return self._pem
        return self._pem

    def given_to(self, handler: Handler) -> Handler:
        """A handler that finds the CA in its settings."""

        async def handle(request: Request, cluster: Cluster, settings: Settings) -> Verdict:
            return await handler(request, cluster, replace(settings, db_ca=self.pem()))

        return handle
