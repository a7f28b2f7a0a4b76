"""Where a command reads trials from: a database file, a database URL, the REST API or Katib's gRPC API."""

import argparse
import os
import re
import sys
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote

import httpx
import orjson

from dbmanager.records import Record
from dbmanager.rest_read import PointReader
from dbmanager.rows import AmbiguousError, RefusedError, Selection, StoreError, TrialKey
from dbmanager.store import Store
from trialtap import names

DB_ENV: Final = "TRIALTAP_DB"
TOKEN_ENV: Final = "TRIALTAP_TOKEN"  # noqa: S105 - a variable's name
_HOST_PORT: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^/\s:]+):(\d{1,5})")
_SQLITE_MAGIC: Final = b"SQLite format 3\0"
_PAGE: Final = 1000


class CommandError(Exception):
    """What a command tells its user in one line before it ends with status 1 (or `status`)."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


class Reader(Protocol):
    """Trials and their points, wherever they are."""

    def trials(self, namespace: str | None = None) -> list[TrialKey] | None:
        """What is there; None when this kind of address cannot tell."""

    def records(self, trial: str, namespace: str | None, metrics: Sequence[str] = ()) -> Iterator[Record]:
        """A trial's points in the order of time; of an unknown trial none.

        Raises:
            CommandError: the address does not answer, or needs a namespace to do so.
        """

    def stored(self, trial: str, namespace: str | None, after: int | None = None) -> Iterator[Record]:
        """A trial's points in the order of storing with their ordinals; `after`: those of a greater id.

        Raises:
            CommandError: the address does not answer, or needs a namespace to do so.
        """

    def close(self) -> None:
        """Let go of what was opened."""


class StoreReader:
    """A database of our own, read directly."""

    def __init__(self, url: str, shown: str) -> None:
        try:
            self.store = Store.open(url, migrate=False)
        except RefusedError as error:
            raise CommandError(
                f"--db {shown}: its tables are not those of this version's DB manager; start the DB manager on it "
                "once, which brings them up to date (of a backup, on a copy)"
            ) from error
        except StoreError as error:
            raise CommandError(f"--db {shown}: {error}") from error

    def trials(self, namespace: str | None = None) -> list[TrialKey]:
        """See Reader."""
        return self.store.trials(namespace)

    def records(self, trial: str, namespace: str | None, metrics: Sequence[str] = ()) -> Iterator[Record]:
        """See Reader."""
        return self._read(Selection(trial, namespace, metrics=metrics))

    def stored(self, trial: str, namespace: str | None, after: int | None = None) -> Iterator[Record]:
        """See Reader."""
        return self._read(Selection(trial, namespace, after=after, by_id=True))

    def _read(self, selection: Selection) -> Iterator[Record]:
        trial = selection.trial_name
        try:
            for chunk in PointReader(self.store, selection).chunks():
                yield from chunk
        except AmbiguousError as error:
            raise CommandError(_ambiguous(trial, error.namespaces)) from error
        except StoreError as error:
            raise CommandError(str(error)) from error

    def close(self) -> None:
        """See Reader."""
        self.store.close()


class RestReader:
    """The REST API of a DB manager."""

    def __init__(self, address: str) -> None:
        token = os.environ.get(TOKEN_ENV)
        self.address = address.rstrip("/")
        self.client = httpx.Client(
            base_url=self.address + "/api/v1/",
            timeout=30,
            headers={"Authorization": f"Bearer {token}"} if token else {},
        )

    def trials(self, namespace: str | None = None) -> list[TrialKey]:
        """See Reader."""
        found: list[TrialKey] = []
        params: dict[str, Any] = {"limit": _PAGE} | ({"namespace": namespace} if namespace else {})
        while True:
            answer = self._get("trials", params)
            found += [TrialKey(trial["namespace"], trial["name"]) for trial in answer["trials"]]
            if not answer["next"]:
                return found
            params["cursor"] = answer["next"]

    def records(self, trial: str, namespace: str | None, metrics: Sequence[str] = ()) -> Iterator[Record]:
        """See Reader."""
        return self._read(trial, namespace, {"metric": list(metrics)})

    def stored(self, trial: str, namespace: str | None, after: int | None = None) -> Iterator[Record]:
        """See Reader."""
        return self._read(trial, namespace, {"order": "stored"} | ({} if after is None else {"after": after}))

    def _read(self, trial: str, namespace: str | None, params: dict[str, Any]) -> Iterator[Record]:
        params = params | {"format": "ndjson"}
        if namespace:
            params["namespace"] = namespace
        path = f"trials/{quote(trial, safe='')}/metrics"
        try:
            with self.client.stream("GET", path, params=params) as response:
                if response.status_code == httpx.codes.NOT_FOUND:
                    return
                if response.is_error:
                    response.read()
                    raise self._refused(response)
                for line in response.iter_lines():
                    yield Record(**orjson.loads(line))
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def close(self) -> None:
        """See Reader."""
        self.client.close()

    def _get(self, path: str, params: dict[str, Any]) -> Any:
        try:
            response = self.client.get(path, params=params)
            if response.is_error:
                raise self._refused(response)
            return response.json()
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        except ValueError as error:
            raise CommandError(
                f"{self.address}: what answers there is no DB manager of trialtap; give the address of its REST API"
            ) from error

    def _refused(self, response: httpx.Response) -> CommandError:
        try:
            detail = response.json()["detail"]
        except (ValueError, KeyError, TypeError):
            detail = f"answered HTTP {response.status_code}; give the address of the DB manager's REST API"
        if response.status_code == httpx.codes.UNAUTHORIZED:
            detail = f"{detail} (the token is read from the variable {TOKEN_ENV})"
        return CommandError(f"{self.address}: {detail}")

    def _unreachable(self, error: httpx.HTTPError) -> CommandError:
        return CommandError(
            f"{self.address}: {error or type(error).__name__}; is the DB manager running there, "
            "and is this its --http address?"
        )


class GrpcReader:
    """The gRPC API of any DB manager, Katib's own included: it tells neither trials nor pods."""

    def __init__(self, address: str) -> None:
        import grpc  # noqa: PLC0415 - 100 ms that the other readers need not pay

        self._grpc = grpc
        self.address = address
        self.channel = grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)])

    def trials(self, namespace: str | None = None) -> None:  # noqa: ARG002 - the seam's
        """See Reader: Katib's API has no list of trials."""
        return

    def records(self, trial: str, namespace: str | None, metrics: Sequence[str] = ()) -> Iterator[Record]:
        """See Reader. Names are filtered here: a read by name is Katib's own view, empty while training runs."""
        from trialtap import messages  # noqa: PLC0415

        call = self.channel.unary_unary(
            messages.GET.path,
            request_serializer=messages.GET.request.SerializeToString,
            response_deserializer=messages.GET.reply.FromString,
        )
        try:
            reply, done = call.with_call(
                messages.GET.request(trial_name=trial, namespace=namespace or ""), timeout=30
            )
        except self._grpc.RpcError as error:
            raise CommandError(f"{self.address}: {_grpc_fault(error)}") from error
        thinned = dict(done.trailing_metadata()).get("trialtap-thinned")
        if thinned:
            print(
                f"{self.address}: the trial is too large for one gRPC answer, {thinned} points came; "
                "REST (http://…) gives all",
                file=sys.stderr,
            )
        for log in reply.observation_log.metric_logs:
            if not metrics or log.metric.name in metrics:
                step = log.step if log.HasField("step") else None
                yield Record(
                    trial,
                    namespace,
                    log.metric.name,
                    log.metric.value,
                    log.time_stamp,
                    step,
                    None,
                    None,
                    None,
                    None,
                )

    def stored(self, trial: str, namespace: str | None, after: int | None = None) -> Iterator[Record]:
        """See Reader: Katib's API numbers no rows."""
        if after is not None:
            raise CommandError(
                f"{self.address}: gRPC cannot tell what is new; give the REST API or the database"
            )
        return self.records(trial, namespace)

    def close(self) -> None:
        """See Reader."""
        self.channel.close()


def _grpc_fault(error: Any) -> str:
    details = error.details() or error.code().name
    if error.code().name == "UNAVAILABLE":
        return (
            f"no gRPC answer ({details}); is a DB manager running there? "
            "Its REST API is given as http://HOST:PORT, a database file as a path"
        )
    return str(details)


def _ambiguous(trial: str, namespaces: Sequence[str]) -> str:
    return f"trial {trial} is in the namespaces {', '.join(namespaces)}: choose one with --namespace"


def add_database_argument(parser: argparse.ArgumentParser) -> None:
    """The option `--db` that `open_reader` reads."""
    parser.add_argument(
        "--db",
        metavar="ADDRESS|PATH",
        default=os.environ.get(DB_ENV) or names.DEFAULT_DB_ADDRESS,
        help="an SQLite file, a database URL, the REST API as http(s)://HOST:PORT, or HOST:PORT of gRPC "
        f"(default: the variable {DB_ENV}, else %(default)s)",
    )


def database_url(address: str) -> str | None:
    """The SQLAlchemy URL that an address means, None when it is no database but a server's address.

    Raises:
        CommandError: it is neither; the message says what can be given.
    """
    if address.startswith(("sqlite:", "postgresql", "mysql", "mariadb")) and ":" in address:
        if address.startswith("sqlite:") and not Path(address.partition("///")[2]).is_file():
            raise CommandError(f"--db {address}: there is no such file")
        return address
    if address.startswith(("http://", "https://")):
        return None
    path = Path(address)
    if path.is_file():
        with path.open("rb") as file:
            head = file.read(len(_SQLITE_MAGIC))
        if head != _SQLITE_MAGIC:
            raise CommandError(
                f"--db {address}: is no SQLite database{' but an empty file' if not head else ''}"
            )
        return f"sqlite:///{path.resolve()}"
    if path.is_dir():
        raise CommandError(f"--db {address}: is a directory; give the database file in it")
    if _HOST_PORT.fullmatch(address):
        return None
    raise CommandError(
        f"--db {address}: there is no such file, and it is no address either; give an SQLite file, a database URL, "
        "http(s)://HOST:PORT of the REST API, or HOST:PORT of gRPC"
    )


def open_reader(address: str) -> Reader:
    """The reader that an address asks for.

    Raises:
        CommandError: no such file, or it holds something else.
    """
    url = database_url(address)
    if url is not None:
        return StoreReader(url, address)
    return RestReader(address) if "://" in address else GrpcReader(address)


def closest(trial: str, known: Sequence[TrialKey] | None) -> str:
    """The end of a 'not found' message: names like it, or what to do."""
    if known is None:
        return "; its name is that of the Trial object"
    if not known:
        return "; the database holds no trial yet"
    near = get_close_matches(trial, sorted({key.name for key in known}), n=3, cutoff=0.5)
    near += sorted({key.name for key in known if key.name.startswith(trial) and key.name not in near})[
        : 3 - len(near)
    ]
    if near:
        return f"; did you mean {', '.join(near)}?"
    return f"; the database holds {len(known)} other trials, such as {known[0].name}"
