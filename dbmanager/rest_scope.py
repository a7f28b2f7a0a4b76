"""Which trials a request means and may read."""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from sqlalchemy import select

from dbmanager.databases import same_text
from dbmanager.rest_columns import Holdings
from dbmanager.rows import Selection, TrialKey
from dbmanager.schema import LOGS
from dbmanager.store import Store


class ApiError(Exception):
    """A 4xx or 5xx answer; the message names the parameter and the next step."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


@dataclass(frozen=True)
class Scope:
    """What the caller may read: None = everything."""

    namespaces: frozenset[str] | None = None

    def covers(self, namespace: str | None) -> bool:
        """Rows without a namespace are only for those who may read everything."""
        return self.namespaces is None or namespace in self.namespaces

    def check(self, namespace: str | None) -> None:
        """Refuse a namespace that is not the caller's.

        Raises:
            ApiError: 403.
        """
        if namespace is not None and not self.covers(namespace):
            raise ApiError(
                403,
                f"namespace: the token may read {', '.join(sorted(self.namespaces or ()))}, not {namespace}; "
                "send a token of a service account of that namespace",
            )

    def resolve(self, store: Store, name: str, namespace: str | None) -> TrialKey:
        """The one trial that a name and perhaps a namespace mean. It must exist.

        Raises:
            ApiError: 403, 404, or 409 when several namespaces hold that name.
        """
        self.check(namespace)
        if namespace is not None:
            key: TrialKey | None = TrialKey(namespace, name)
        else:
            key = self.only(name, store.namespaces(name))
        if key is None or not _exists(store, key, strict=self.namespaces is not None):
            raise ApiError(404, f"trial: {self._missing(store, name, namespace)}")
        return key

    def only(self, name: str, held: Iterable[str]) -> TrialKey | None:
        """The trial of a name without a namespace; None when it is no business of the caller's.

        Raises:
            ApiError: 409, several namespaces hold it.
        """
        mine = sorted(namespace for namespace in held if self.covers(namespace))
        if len(mine) > 1:
            raise ApiError(409, f"namespace: trial {name} is in {', '.join(mine)}; name one of them")
        if not mine and self.namespaces is not None and len(self.namespaces) == 1:
            mine = list(self.namespaces)  # a writer without streams leaves no other trace of its namespace
        if mine:
            return TrialKey(mine[0], name)
        return TrialKey(None, name) if self.namespaces is None else None

    def choose(self, name: str, namespace: str | None, holdings: Holdings) -> TrialKey | None:
        """Like `resolve` for one of many: None where that raises, existence unseen."""
        if namespace is not None:
            return TrialKey(namespace, name) if self.covers(namespace) else None
        try:
            return self.only(name, holdings.namespaces.get(name, ()))
        except ApiError:
            return None

    def _missing(self, store: Store, name: str, namespace: str | None) -> str:
        keys = [key for key in store.trials() if self.covers(key.namespace)]
        elsewhere = sorted(key.namespace for key in keys if key.name == name and key.namespace)
        where = f" in namespace {namespace}" if namespace else ""
        if elsewhere:
            return f"there is no {name}{where}, but in {', '.join(elsewhere)}"
        near = get_close_matches(name, sorted({key.name for key in keys})[:10_000], n=3)
        hint = f"the nearest are {', '.join(near)}" if near else "GET api/v1/trials lists what is there"
        return f"there is no {name}{where}; {hint}"


def _exists(store: Store, key: TrialKey, *, strict: bool) -> bool:
    """Whether there is a stream or a row; `strict`: a row that names no namespace does not count."""
    if store.streams(key.name, key.namespace):
        return True
    if strict and key.namespace is not None:
        named = [
            same_text(store.database, LOGS.c.trial_name, key.name),
            same_text(store.database, LOGS.c.namespace, key.namespace),
        ]
        with store.reading() as connection:
            return connection.execute(select(LOGS.c.id).where(*named).limit(1)).first() is not None
    return next(store.rows(Selection(key.name, key.namespace, limit=1)), None) is not None
