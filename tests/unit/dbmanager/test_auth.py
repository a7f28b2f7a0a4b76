"""Who may write: tokens, their reviews, TLS and the port that asks nobody."""

import asyncio
import base64
import datetime as dt
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from certs import issue
from dbmanager import tls
from dbmanager.auth import (
    CACHED,
    LONGEST_SECONDS,
    REFUSED_SECONDS,
    Anyone,
    ClusterReviewer,
    ForbiddenError,
    Review,
    Tokens,
    UnauthenticatedError,
    allowed,
    bearer,
    expires,
)
from dbmanager.rows import UnavailableError
from dbmanager.tls import Certificate
from tests.unit.dbmanager.conftest import Process
from trialtap.messages import DELETE, GET, REPORT


def jwt(**claims: Any) -> str:
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{body}.c2ln"


class Reviews:
    """A reviewer that counts; `users` maps tokens to users."""

    def __init__(self, **users: str) -> None:
        self.users = users
        self.asked: list[str] = []
        self.down = False

    async def review(self, token: str, audience: str) -> Review:
        self.asked.append(token)
        if self.down:
            raise UnavailableError("the API server did not answer")
        user = self.users.get(token)
        return Review(user, "" if user else "unknown token")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


GOOD = "system:serviceaccount:ns:default"


def test_a_service_accounts_token_opens_its_namespace() -> None:
    assert asyncio.run(Tokens(Reviews(t=GOOD)).namespace("Bearer t")) == "ns"
    assert asyncio.run(Anyone().namespace(None)) is None


REFUSED = {
    "no header": (None, "no bearer token; send a service-account token of audience trialtap"),
    "another scheme": ("Basic t", "no bearer token"),
    "no token": ("Bearer ", "no bearer token"),
    "an unknown token": ("Bearer x", "does not accept the token for audience trialtap: unknown token"),
    "a person": ("Bearer person", "alice is no service account"),
    "a name that only looks like one": ("Bearer odd", "system:serviceaccount:ns is no service account"),
}


@pytest.mark.parametrize(("header", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_everybody_else_is_refused_with_the_next_step(header: str | None, reason: str) -> None:
    tokens = Tokens(Reviews(t=GOOD, person="alice", odd="system:serviceaccount:ns"))
    with pytest.raises(UnauthenticatedError, match=reason):
        asyncio.run(tokens.namespace(header))


def test_an_answer_is_kept_until_the_token_expires_and_no_longer() -> None:
    clock, token = Clock(), jwt(exp=1500)
    reviews = Reviews(**{token: GOOD})
    tokens = Tokens(reviews, clock=clock)
    for moment, asked in ((1000, 1), (1499, 1), (1500, 2), (1501, 3)):
        clock.now = moment
        asyncio.run(tokens.namespace(f"bearer {token}"))
        assert len(reviews.asked) == asked


@pytest.mark.parametrize("token", [jwt(exp=10**9), jwt(), "opaque"])
def test_no_answer_is_kept_for_more_than_an_hour(token: str) -> None:
    clock, reviews = Clock(), Reviews(**{token: GOOD})
    tokens = Tokens(reviews, clock=clock)
    asyncio.run(tokens.namespace(f"Bearer {token}"))
    clock.now += LONGEST_SECONDS - 1
    asyncio.run(tokens.namespace(f"Bearer {token}"))
    assert len(reviews.asked) == 1
    clock.now += 1
    asyncio.run(tokens.namespace(f"Bearer {token}"))
    assert len(reviews.asked) == 2


def test_a_refusal_is_kept_for_seconds_and_an_outage_not_at_all() -> None:
    clock, reviews = Clock(), Reviews()
    tokens = Tokens(reviews, clock=clock)
    for moment, asked in ((0, 1), (REFUSED_SECONDS - 1, 1), (REFUSED_SECONDS, 2)):
        clock.now = 1000 + moment
        with pytest.raises(UnauthenticatedError):
            asyncio.run(tokens.namespace("Bearer x"))
        assert len(reviews.asked) == asked
    reviews.down = True
    for _ in range(2):
        with pytest.raises(UnavailableError):
            asyncio.run(tokens.namespace("Bearer y"))
    assert reviews.asked[-2:] == ["y", "y"]


def test_what_is_kept_is_bounded_and_holds_no_token() -> None:
    tokens = Tokens(Reviews())
    for index in range(CACHED + 10):
        with pytest.raises(UnauthenticatedError):
            asyncio.run(tokens.namespace(f"Bearer secret{index}"))
    assert len(tokens._known) == CACHED
    assert b"secret" not in b"".join(tokens._known)


@pytest.mark.parametrize(
    ("own", "wanted", "expected"), [(None, "a", "a"), (None, "", ""), ("a", "a", "a"), ("a", "", "a")]
)
def test_a_request_is_for_the_callers_own_namespace(own: str | None, wanted: str, expected: str) -> None:
    assert allowed(own, wanted, "namespace") == expected


def test_another_namespace_is_forbidden_by_name() -> None:
    with pytest.raises(
        ForbiddenError, match=r"origin\.namespace: the token is of namespace a, the request is for b"
    ):
        allowed("a", "b", "origin.namespace")


def test_odd_tokens_have_no_expiry() -> None:
    for token in ("", "a.b", "a.!.c", "a.e30.c", f"a.{base64.urlsafe_b64encode(b'[]').decode()}.c", "a.eA.c"):
        assert expires(token) is None
    assert bearer("BEARER  x ") == "x"


ANSWERS = {
    "authenticated": (
        {"authenticated": True, "audiences": ["trialtap"], "user": {"username": GOOD}},
        Review(GOOD),
    ),
    "not authenticated": ({"authenticated": False, "error": "expired"}, Review(None, "expired")),
    "another audience": (
        {"authenticated": True, "user": {"username": GOOD}},
        Review(None, "the API server did not confirm the audience trialtap"),
    ),
    "no status": (None, Review(None)),
}


@pytest.mark.parametrize(("status", "expected"), ANSWERS.values(), ids=ANSWERS.keys())
def test_a_token_review_is_read_with_suspicion(status: Any, expected: Review) -> None:
    async def call(body: dict[str, Any]) -> dict[str, Any]:
        assert body["spec"] == {"token": "t", "audiences": ["trialtap"]}
        return {**body, "status": status}

    assert asyncio.run(ClusterReviewer(call).review("t", "trialtap")) == expected


# The process, an API server that knows two tokens, and TLS.


class ApiServer:
    """Answers TokenReviews over HTTP as an API server does."""

    def __init__(self, folder: Path, users: dict[str, str]) -> None:
        reviews = self.reviews = []  # type: list[str]

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                user = users.get(body["spec"]["token"])
                reviews.append(self.path)
                body["status"] = (
                    {
                        "authenticated": True,
                        "audiences": body["spec"]["audiences"],
                        "user": {"username": user},
                    }
                    if user
                    else {"authenticated": False, "error": "no such token"}
                )
                data = json.dumps(body).encode()
                self.send_response(201)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "c",
                    "clusters": [
                        {"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.server.server_port}"}}
                    ],
                    "users": [{"name": "u", "user": {"token": "manager"}}],
                    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                }
            )
        )


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    made = ApiServer(
        tmp_path, {"token-a": "system:serviceaccount:a:default", "token-b": "system:serviceaccount:b:x"}
    )
    yield made
    made.server.shutdown()


def report(trial: str, value: str, **origin: Any) -> Any:
    request = REPORT.request(trial_name=trial)
    log = request.observation_log.metric_logs.add(time_stamp="2026-01-01T00:00:00Z")
    log.metric.name, log.metric.value = "loss", value
    for name, value_ in origin.items():
        setattr(request.origin, name, value_)
    return request


def code(call: Callable[[], Any]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as error:
        call()
    failed: Any = error.value
    return failed.code(), failed.details()


def as_(token: str) -> dict[str, Any]:
    return {"metadata": [("authorization", f"Bearer {token}")]}


def test_a_token_writes_reads_and_deletes_in_its_own_namespace_only(
    start: Callable[..., Process], api: ApiServer, tmp_path: Path
) -> None:
    served = start(
        f"sqlite:///{tmp_path}/x.db",
        *("--auth", "token", "--kubeconfig", str(api.kubeconfig), "--listen-katib", "127.0.0.1:0"),
    )
    stream = {"namespace": "a", "stream": "s", "end": True}
    assert served.call(REPORT, report("t", "1", **stream), **as_("token-a")).next == 1
    assert code(lambda: served.call(REPORT, report("t", "1", **stream))) == (
        grpc.StatusCode.UNAUTHENTICATED,
        "authorization: no bearer token; send a service-account token of audience trialtap",
    )
    assert (
        code(lambda: served.call(REPORT, report("t", "1", **stream), **as_("guess")))[0]
        == grpc.StatusCode.UNAUTHENTICATED
    )
    assert code(lambda: served.call(REPORT, report("t", "1", **stream), **as_("token-b"))) == (
        grpc.StatusCode.PERMISSION_DENIED,
        "origin.namespace: the token is of namespace b, the request is for a",
    )
    for method, request in (
        (GET, GET.request(trial_name="t", namespace="a")),
        (DELETE, DELETE.request(trial_name="t", namespace="a")),
    ):
        refused = code(lambda method=method, request=request: served.call(method, request, **as_("token-b")))  # type: ignore[misc]
        assert refused == (
            grpc.StatusCode.PERMISSION_DENIED,
            "namespace: the token is of namespace b, the request is for a",
        )

    def values(channel: Process, **options: Any) -> list[str]:
        reply = channel.call(GET, GET.request(trial_name="t"), **options)
        return [log.metric.value for log in reply.observation_log.metric_logs]

    assert values(served, **as_("token-a")) == ["1"]
    assert values(served, **as_("token-b")) == []
    served.call(DELETE, DELETE.request(trial_name="t"), **as_("token-b"))
    assert values(served, **as_("token-a")) == ["1"]
    # A Push client without origin: its token says where it is.
    served.call(REPORT, report("t", "2"), **as_("token-b"))
    assert values(served, **as_("token-b")) == ["2"]
    assert values(served, **as_("token-a")) == ["1"]
    served.call(DELETE, DELETE.request(trial_name="t"), **as_("token-b"))
    assert values(served, **as_("token-b")) == []
    served.call(REPORT, report("t", "3"), **as_("token-b"))
    assert values(served, **as_("token-b")) == ["3"]
    assert len(api.reviews) == 3  # one for each token
    assert set(api.reviews) == {"/apis/authentication.k8s.io/v1/tokenreviews"}
    # Katib's own programs, which have no tokens.
    with grpc.insecure_channel(served.ports["katib"]) as channel:
        call = channel.unary_unary(GET.path, GET.request.SerializeToString, GET.reply.FromString)
        reply = call(GET.request(trial_name="t", namespace="a"), timeout=10)
        assert [log.metric.value for log in reply.observation_log.metric_logs] == ["1"]
        refused = code(lambda: call(GET.request(trial_name="t"), timeout=10))
        assert refused[0] == grpc.StatusCode.FAILED_PRECONDITION
        assert "held by the namespaces a, b" in refused[1]


def test_an_api_server_that_does_not_answer_makes_writing_unavailable(
    start: Callable[..., Process], api: ApiServer, tmp_path: Path
) -> None:
    served = start(f"sqlite:///{tmp_path}/x.db", "--auth", "token", "--kubeconfig", str(api.kubeconfig))
    api.server.shutdown()
    api.server.server_close()
    refused = code(lambda: served.call(REPORT, report("t", "1", namespace="a", stream="s"), **as_("token-a")))
    assert refused[0] == grpc.StatusCode.UNAVAILABLE
    assert "the API server did not answer a TokenReview" in refused[1]


def write_pair(folder: Path, names: list[str]) -> bytes:
    """A new CA and a certificate of it in `folder`; the CA as PEM."""
    now = dt.datetime.now(dt.UTC)
    ca = issue.authority(now)
    pair = issue.leaf(ca, names, now)
    (folder / "tls.crt").write_bytes(pair.certificate)
    (folder / "tls.key").write_bytes(pair.key)
    return bytes(ca.certificate)


def secure_call(address: str, ca: bytes) -> Any:
    with grpc.secure_channel(
        address.replace("127.0.0.1", "localhost"),
        grpc.ssl_channel_credentials(ca),
        [("grpc.use_local_subchannel_pool", 1)],
    ) as channel:
        call = channel.unary_unary(REPORT.path, REPORT.request.SerializeToString, REPORT.reply.FromString)
        return call(report("t", "1", namespace="a", stream="s"), timeout=3)


def test_a_renewed_certificate_serves_without_a_restart(
    start: Callable[..., Process], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = write_pair(tmp_path, ["localhost"])
    served = start(
        f"sqlite:///{tmp_path}/x.db",
        *("--cert", str(tmp_path / "tls.crt"), "--key", str(tmp_path / "tls.key"), "--http-tls"),
    )
    assert secure_call(served.ports["grpc"], old).next == 1
    new = write_pair(tmp_path, ["localhost"])
    for _ in range(40):
        try:
            assert secure_call(served.ports["grpc"], new).next == 1
            break
        except grpc.RpcError:
            threading.Event().wait(0.5)
    else:
        pytest.fail("the new certificate is not served")
    assert code(lambda: secure_call(served.ports["grpc"], old))[0] == grpc.StatusCode.UNAVAILABLE
    port = int(served.ports["http"].rpartition(":")[2])
    context = ssl.create_default_context(cadata=new.decode())

    async def ready() -> bytes:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=context, server_hostname="localhost"
        )
        writer.write(b"GET /readyz HTTP/1.0\r\nHost: localhost\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return answer

    assert b"200 OK" in asyncio.run(ready())


def test_half_a_renewal_keeps_the_certificate_before(tmp_path: Path) -> None:
    write_pair(tmp_path, ["localhost"])
    certificate = Certificate(tmp_path / "tls.crt", tmp_path / "tls.key")
    before = certificate._pair
    assert certificate.reload() is False
    (tmp_path / "other").mkdir()
    write_pair(tmp_path / "other", ["localhost"])
    (tmp_path / "tls.crt").write_bytes((tmp_path / "other" / "tls.crt").read_bytes())
    assert certificate.reload() is False  # the key of the old one
    (tmp_path / "tls.key").unlink()
    assert certificate.reload() is False
    assert certificate._pair == before
    (tmp_path / "tls.key").write_bytes((tmp_path / "other" / "tls.key").read_bytes())
    assert certificate.reload() is True
    assert tls.LOOK_SECONDS <= 10
