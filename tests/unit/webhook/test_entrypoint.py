"""Look-ups of an image's entrypoint, against a real registry and against servers that mean no good."""

import asyncio
import base64
import dataclasses
import datetime as dt
import json
import ssl
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from certs import issue
from tests.support.registry import Registry, digest_of, reply, run_fake, run_registry
from webhook import guard, imageref, pullsecrets
from webhook.cluster import ObjectsCluster
from webhook.command import Entrypoint
from webhook.entrypoint import Entrypoints
from webhook.settings import EntrypointLookup

POD: dict[str, Any] = {"spec": {}}
TRAIN = Entrypoint(("python3", "/opt/train.py"), ("--lr", "0.1"))
CONFIG = {"Entrypoint": list(TRAIN.entrypoint), "Cmd": list(TRAIN.cmd)}


def allowing(*hosts: str, **changes: Any) -> EntrypointLookup:
    base = EntrypointLookup(registries=hosts, private_hosts=hosts, plain_hosts=hosts, deadline_seconds=5)
    return dataclasses.replace(base, **changes)


async def look_up(image: str, settings: EntrypointLookup, **how: Any) -> Entrypoint:
    entrypoints = Entrypoints(settings, **how)
    try:
        return await entrypoints.look_up(POD, "hpo", image)
    finally:
        await entrypoints.close()


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with run_registry() as running:
        yield running


async def test_an_image_says_what_it_runs(registry: Registry) -> None:
    registry.push("team/train", "1", CONFIG)
    assert await look_up(f"{registry.host}/team/train:1", allowing(registry.host)) == TRAIN


async def test_a_digest_names_the_image_whatever_the_tag_is(registry: Registry) -> None:
    digest = registry.push("team/digest", "1", CONFIG)
    registry.push("team/digest", "1", {"Cmd": ["other"]})
    image = f"{registry.host}/team/digest:1@{digest}"
    assert await look_up(image, allowing(registry.host)) == TRAIN
    assert await look_up(f"{registry.host}/team/digest:1", allowing(registry.host)) == Entrypoint(
        (), ("other",)
    )


async def test_an_index_gives_the_image_of_the_node_s_architecture(registry: Registry) -> None:
    parts = {
        "unknown/unknown": registry.push("team/index", "", {"Cmd": ["attestation"]}),
        "linux/arm64": registry.push("team/index", "", {"Cmd": ["arm"]}, arch="arm64"),
        "linux/amd64": registry.push("team/index", "", CONFIG),
    }
    registry.push_index("team/index", "1", parts)
    entrypoints = Entrypoints(allowing(registry.host))
    image = f"{registry.host}/team/index:1"
    arm = {"spec": {"nodeSelector": {"kubernetes.io/arch": "arm64"}}}
    assert await entrypoints.look_up(POD, "hpo", image) == TRAIN
    assert await entrypoints.look_up(arm, "hpo", image) == Entrypoint((), ("arm",))


async def test_a_digest_that_was_seen_is_asked_for_no_more(registry: Registry) -> None:
    digest = registry.push("team/cached", "1", CONFIG)
    entrypoints = Entrypoints(allowing(registry.host))
    image = f"{registry.host}/team/cached"

    def asked() -> list[str]:
        return [line for line in registry.requests() if "team/cached" in line and "manifests/sha256" in line]

    before = len(asked())
    for reference in (f"{image}:1", f"{image}:1", f"{image}@{digest}"):
        assert await entrypoints.look_up(POD, "hpo", reference) == TRAIN
    assert len(asked()) - before <= 1
    assert await entrypoints.look_up(POD, "hpo", f"{image}@{digest}") == TRAIN
    registry.push("team/cached", "1", {"Cmd": ["new"]})
    assert await entrypoints.look_up(POD, "hpo", f"{image}:1") == Entrypoint((), ("new",))


async def test_many_pods_at_once_ask_once(registry: Registry) -> None:
    registry.push("team/many", "1", CONFIG)
    entrypoints = Entrypoints(allowing(registry.host))
    image = f"{registry.host}/team/many:1"
    answers = await asyncio.gather(*(entrypoints.look_up(POD, "hpo", image) for _ in range(200)))
    assert set(answers) == {TRAIN}
    assert (
        len([line for line in registry.requests() if "HEAD" in line and "team/many/manifests/1" in line]) == 1
    )


@pytest.mark.parametrize(
    ("image", "said"),
    [
        ("team/absent:1", "answered 404"),
        ("team/train:absent", "answered 404"),
    ],
)
async def test_what_is_not_there_is_said(registry: Registry, image: str, said: str) -> None:
    with pytest.raises(LookupError, match=said):
        await look_up(f"{registry.host}/{image}", allowing(registry.host))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (b"[]", "no JSON object"),
        (b"{", "no JSON"),
        (b'{"config": {"Entrypoint": "python"}}', "no list of strings"),
        (b'{"config": {"Cmd": [1]}}', "no list of strings"),
    ],
)
async def test_a_configuration_that_is_none_is_said(registry: Registry, config: bytes, said: str) -> None:
    registry.push("team/odd", "1", config)
    with pytest.raises(LookupError, match=said):
        await look_up(f"{registry.host}/team/odd:1", allowing(registry.host))


@pytest.mark.parametrize("config", [b"{}", b'{"config": null}', b'{"config": {"Entrypoint": null}}'])
async def test_a_configuration_may_say_nothing(registry: Registry, config: bytes) -> None:
    registry.push("team/nothing", "1", config)
    assert await look_up(f"{registry.host}/team/nothing:1", allowing(registry.host)) == Entrypoint()


REFUSED = [
    ("off", {"enabled": False}, "entrypointLookup.enabled"),
    ("registry not listed", {"registries": ()}, "not among entrypointLookup.registries"),
    ("loopback not listed", {"private_hosts": ()}, "not public; entrypointLookup.privateHosts"),
]


@pytest.mark.parametrize(
    ("changes", "said"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
async def test_what_the_administrator_does_not_allow_is_not_asked(
    registry: Registry, changes: dict[str, Any], said: str
) -> None:
    before = len(registry.requests())
    with pytest.raises(LookupError, match=said):
        await look_up(f"{registry.host}/team/train:1", allowing(registry.host, **changes))
    assert len(registry.requests()) == before


async def test_plain_http_is_spoken_only_where_it_is_listed(registry: Registry) -> None:
    """Unlisted, the registry is asked over TLS, which it does not speak."""
    with pytest.raises(LookupError, match="cannot be asked"):
        await look_up(f"{registry.host}/team/train:1", allowing(registry.host, plain_hosts=()))


@pytest.fixture(scope="module")
def secure() -> Iterator[tuple[Registry, ssl.SSLContext]]:
    """A registry that speaks TLS as `registry.test`, and what trusts its CA."""
    now = dt.datetime.now(dt.UTC)
    ca = issue.authority(now)
    serving = issue.leaf(ca, ["registry.test"], now)
    trusting = ssl.create_default_context(cadata=ca.certificate.decode())
    lenient = ssl.create_default_context(cadata=ca.certificate.decode())
    lenient.check_hostname = False  # the test pushes to 127.0.0.1
    files = {"tls.crt": serving.certificate, "tls.key": serving.key}
    environment = {
        "REGISTRY_HTTP_TLS_CERTIFICATE": "{folder}/tls.crt",
        "REGISTRY_HTTP_TLS_KEY": "{folder}/tls.key",
    }
    with run_registry(environment, files) as running:
        running.scheme, running.verify = "https", lenient
        running.push("team/train", "1", CONFIG)
        yield running, trusting


@pytest.mark.parametrize("name", ["registry.test", "other.test"])
async def test_a_certificate_is_checked_for_the_name_though_the_address_is_pinned(
    secure: tuple[Registry, ssl.SSLContext], name: str
) -> None:
    running, trusting = secure
    host = f"{name}:{running.host.rpartition(':')[2]}"
    entrypoints = Entrypoints(
        allowing(host, plain_hosts=()),
        resolver=_loopback,
        client=lambda: httpx.AsyncClient(verify=trusting, trust_env=False),
    )
    if name == "registry.test":
        assert await entrypoints.look_up(POD, "hpo", f"{host}/team/train:1") == TRAIN
    else:
        with pytest.raises(LookupError, match=r"certificate is not valid for .other\.test."):
            await entrypoints.look_up(POD, "hpo", f"{host}/team/train:1")
    await entrypoints.close()


def auth_file(user: str, password: str, host: str) -> dict[str, Any]:
    entry = {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}
    return {"auths": {host: entry}}


def secret(name: str, document: dict[str, Any], namespace: str = "hpo") -> dict[str, Any]:
    data = {".dockerconfigjson": base64.b64encode(json.dumps(document).encode()).decode()}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}


@pytest.fixture(scope="module")
def locked() -> Iterator[Registry]:
    environment = {
        "REGISTRY_AUTH": "htpasswd",
        "REGISTRY_AUTH_HTPASSWD_REALM": "locked",
        "REGISTRY_AUTH_HTPASSWD_PATH": "{folder}/htpasswd",
    }
    with run_registry(environment) as running:
        running.auth = ("someone", "password")
        running.push("team/train", "1", CONFIG)
        yield running


async def test_a_registry_that_wants_credentials_and_gets_none_is_said(locked: Registry) -> None:
    with pytest.raises(LookupError, match=r"wants credentials for team/train \(401\)"):
        await look_up(f"{locked.host}/team/train:1", allowing(locked.host))


@pytest.mark.parametrize("by", ["pod", "service account"])
async def test_pull_secrets_are_used_where_the_administrator_allows_it(locked: Registry, by: str) -> None:
    objects = [secret("pull", auth_file("someone", "password", locked.host))]
    pod: dict[str, Any] = {"spec": {"imagePullSecrets": [{"name": "pull"}]}}
    if by == "service account":
        account = {"name": "default", "namespace": "hpo"}
        objects.append(
            {
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": account,
                "imagePullSecrets": [{"name": "pull"}],
            }
        )
        pod = POD
    image = f"{locked.host}/team/train:1"
    allowed = Entrypoints(allowing(locked.host, pull_secret_namespaces=("hpo",)), ObjectsCluster(objects))
    assert await allowed.look_up(pod, "hpo", image) == TRAIN
    with pytest.raises(LookupError, match="401"):
        await allowed.look_up(pod, "other", image)
    with pytest.raises(LookupError, match="401"):
        await Entrypoints(allowing(locked.host), ObjectsCluster(objects)).look_up(pod, "hpo", image)


async def test_what_one_namespace_saw_with_its_secret_is_not_told_to_another(locked: Registry) -> None:
    objects = [secret("pull", auth_file("someone", "password", locked.host))]
    settings = allowing(locked.host, pull_secret_namespaces=("hpo", "other"))
    entrypoints = Entrypoints(settings, ObjectsCluster(objects))
    pod = {"spec": {"imagePullSecrets": [{"name": "pull"}]}}
    image = f"{locked.host}/team/train:1"
    assert await entrypoints.look_up(pod, "hpo", image) == TRAIN
    with pytest.raises(LookupError, match="401"):
        await entrypoints.look_up(pod, "other", image)


async def test_a_wrong_password_is_said(locked: Registry) -> None:
    objects = [secret("pull", auth_file("someone", "guess", locked.host))]
    entrypoints = Entrypoints(allowing(locked.host, pull_secret_namespaces=("hpo",)), ObjectsCluster(objects))
    with pytest.raises(LookupError, match="401"):
        await entrypoints.look_up(
            {"spec": {"imagePullSecrets": [{"name": "pull"}]}}, "hpo", f"{locked.host}/team/train:1"
        )


async def test_a_server_that_hangs_costs_no_more_than_the_deadline() -> None:
    async def hang(request: str, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(30)

    async with run_fake(hang) as host:
        with pytest.raises(LookupError, match=r"did not answer within 0\.2 s"):
            await look_up(f"{host}/a/b:1", allowing(host, deadline_seconds=0.2))


async def test_a_server_that_drips_costs_no_more_than_the_deadline() -> None:
    async def drip(request: str, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.02)

    async with run_fake(drip) as host:
        with pytest.raises(LookupError, match="did not answer within"):
            await look_up(f"{host}/a/b@sha256:{'0' * 64}", allowing(host, deadline_seconds=0.3))


async def test_an_answer_of_a_gigabyte_is_not_read() -> None:
    sent = 0

    async def flood(request: str, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n")
        for _ in range(1024):
            writer.write(bytes(1 << 20))
            await writer.drain()
            sent += 1

    async with run_fake(flood) as host:
        with pytest.raises(LookupError, match="more than 4194304 bytes"):
            await look_up(f"{host}/a/b@sha256:{'0' * 64}", allowing(host))
    assert sent < 64


async def test_a_redirect_to_a_link_local_address_is_not_followed() -> None:
    async def redirect(request: str, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
        await reply(writer, 307, Location="https://169.254.169.254/latest/meta-data")

    async with run_fake(redirect) as host:
        with pytest.raises(LookupError, match=r"169\.254\.169\.254 is at an address that is not public"):
            await look_up(f"{host}/a/b:1", allowing(host))


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("http://example.com/x", "plain HTTP"),
        ("file:///etc/passwd", "neither https nor http"),
        ("https://[::ffff:127.0.0.1]/", "not public"),
        ("https://[fe80::1]/", "not public"),
        ("https://10.0.0.1/", "not public"),
        ("https://localhost/", "not public"),
        ("https://metadata.internal/", "does not resolve"),
        ("https://h:port/", "Invalid URL in location header"),
    ],
)
async def test_a_redirect_is_guarded_as_the_registry_is(location: str, said: str) -> None:
    async def redirect(request: str, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
        await reply(writer, 302, Location=location)

    async def resolver(host: str, port: int) -> list[str]:
        if host == "metadata.internal":
            raise OSError(-2, "Name or service not known")
        return ["127.0.0.1"] if host == "localhost" else [host]

    async with run_fake(redirect) as host:
        with pytest.raises(LookupError, match=said):
            await look_up(f"{host}/a/b:1", allowing(host), resolver=resolver)


async def test_a_circle_of_redirects_ends() -> None:
    async def redirect(request: str, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
        await reply(writer, 302, Location=request.split(" ")[1])

    async with run_fake(redirect) as host:
        with pytest.raises(LookupError, match="more than 5 times"):
            await look_up(f"{host}/a/b:1", allowing(host))


def fake_registry(tokens: str, seen: list[tuple[str, str]], blobs: str = "") -> Any:
    """A registry that wants a token of `tokens` and serves one image, its blob elsewhere if told so."""
    blob = json.dumps({"config": CONFIG}).encode()
    manifest = json.dumps({"schemaVersion": 2, "config": {"digest": digest_of(blob)}}).encode()

    async def serve(request: str, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
        seen.append((request, headers.get("authorization", "")))
        if headers.get("authorization") != "Bearer good" and "/blobs/elsewhere" not in request:
            challenge = f'Bearer realm="{tokens}/token",service="s",scope="repository:a/b:pull"'
            await reply(writer, 401, WWW_Authenticate=challenge)
        elif "/manifests/" in request:
            head = request.startswith("HEAD")
            await reply(writer, 200, b"" if head else manifest, Docker_Content_Digest=digest_of(manifest))
        elif blobs:
            await reply(writer, 307, Location=f"{blobs}/blobs/elsewhere")
        else:
            await reply(writer, 200, blob)

    return serve


async def test_a_token_is_had_from_the_realm_that_the_registry_names() -> None:
    asked: list[tuple[str, str]] = []
    seen: list[tuple[str, str]] = []

    async def realm(request: str, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
        asked.append((request, headers.get("authorization", "")))
        await reply(writer, 200, b'{"token": "good"}')

    async with run_fake(realm) as tokens, run_fake(fake_registry(f"http://{tokens}", seen)) as host:
        settings = allowing(host, private_hosts=("127.0.0.1",), plain_hosts=("127.0.0.1",))
        assert await look_up(f"{host}/a/b:1", settings) == TRAIN
    assert asked == [("GET /token?scope=repository%3Aa%2Fb%3Apull&service=s", "")]
    assert [authorization for _, authorization in seen] == ["", "Bearer good", "Bearer good", "Bearer good"]


async def test_a_realm_at_a_private_address_is_not_asked() -> None:
    seen: list[tuple[str, str]] = []
    async with run_fake(fake_registry("https://192.168.0.1", seen)) as host:
        with pytest.raises(LookupError, match="not public"):
            await look_up(f"{host}/a/b:1", allowing(host))


async def test_credentials_go_to_no_host_but_theirs() -> None:
    """Neither the password to a foreign realm, nor the token to where a blob really lies."""
    blob = json.dumps({"config": CONFIG}).encode()
    asked: list[tuple[str, str]] = []
    seen: list[tuple[str, str]] = []

    async def foreign(request: str, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
        asked.append((request.split("?", maxsplit=1)[0], headers.get("authorization", "")))
        await reply(writer, 200, b'{"access_token": "good"}' if "/token" in request else blob)

    async with run_fake(foreign) as other:
        port = other.rpartition(":")[2]
        place = f"http://localhost:{port}"
        async with run_fake(fake_registry(place, seen, blobs=place)) as host:
            local = ("127.0.0.1", "localhost")
            settings = allowing(host, private_hosts=local, plain_hosts=local, pull_secret_namespaces=("hpo",))
            objects = [secret("pull", auth_file("someone", "password", host))]
            entrypoints = Entrypoints(settings, ObjectsCluster(objects), resolver=_loopback)
            pod = {"spec": {"imagePullSecrets": [{"name": "pull"}]}}
            assert await entrypoints.look_up(pod, "hpo", f"{host}/a/b:1") == TRAIN
    assert asked == [("GET /token", ""), ("GET /blobs/elsewhere", "")]


REALMS = [
    ("busybox", "https://auth.docker.io/token", True),
    ("busybox", "https://docker.io.evil.example/token", False),
    ("h.io/a", "https://h.io/token", True),
    ("h.io:5000/a", "https://h.io/token", True),
    ("r.h.io/a", "https://h.io/token", True),
    ("r.h.io/a", "http://h.io/token", False),
    ("registry.gitlab.com/a/b", "https://gitlab.com/jwt/auth", True),
    ("registry.gitlab.com/a/b", "https://com/jwt/auth", False),
    ("ghcr.io/a", "https://hcr.io/token", False),
    ("ghcr.io/a", "https://evil.ghcr.io/token", False),
]


@pytest.mark.parametrize(("image", "realm", "seen"), REALMS)
async def test_a_password_goes_to_the_registry_s_own_realm_alone(image: str, realm: str, seen: bool) -> None:
    """Docker Hub's realm is another host, GitLab's the domain above; a scheme in the clear is nobody's own."""
    asked: list[httpx.Request] = []

    def serve(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        if request.url.path.startswith("/v2/"):
            challenge = {"WWW-Authenticate": f'Bearer realm="{realm}",service="s"'}
            return httpx.Response(401, headers=challenge, stream=httpx.ByteStream(b""))
        return httpx.Response(200, stream=httpx.ByteStream(b'{"token": "good"}'))

    async def public(host: str, port: int) -> list[str]:
        return ["8.8.8.8"]

    registry = imageref.parse(image).registry
    settings = EntrypointLookup(
        registries=(registry,), plain_hosts=("h.io",), pull_secret_namespaces=("hpo",)
    )
    if image.startswith("h.io"):
        settings = dataclasses.replace(settings, plain_hosts=())
    objects = [secret("pull", auth_file("someone", "password", registry))]
    entrypoints = Entrypoints(
        settings,
        ObjectsCluster(objects),
        resolver=public,
        client=lambda: httpx.AsyncClient(transport=httpx.MockTransport(serve)),
    )
    pod = {"spec": {"imagePullSecrets": [{"name": "pull"}]}}
    with pytest.raises(LookupError, match="401"):
        await entrypoints.look_up(pod, "hpo", image)
    to_realm = [request for request in asked if not request.url.path.startswith("/v2/")]
    assert [bool(request.headers.get("authorization")) for request in to_realm] == [seen]


async def _loopback(host: str, port: int) -> list[str]:
    return ["127.0.0.1"]


async def test_a_body_that_is_not_what_its_digest_says_is_not_believed() -> None:
    async def lie(request: str, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
        await reply(writer, 200, b'{"config": {"digest": "sha256:0"}}')

    async with run_fake(lie) as host:
        with pytest.raises(LookupError, match=r"not what sha256:0+ stands for"):
            await look_up(f"{host}/a/b@sha256:{'0' * 64}", allowing(host))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("busybox", ("docker.io", "library/busybox", "latest", "")),
        ("team/train:1", ("docker.io", "team/train", "1", "")),
        ("index.docker.io/busybox", ("docker.io", "library/busybox", "latest", "")),
        ("localhost/a:b", ("localhost", "a", "b", "")),
        ("registry.example.com:5000/a/b/c:v1.2", ("registry.example.com:5000", "a/b/c", "v1.2", "")),
        (f"a/b@sha256:{'1' * 64}", ("docker.io", "a/b", "latest", f"sha256:{'1' * 64}")),
        (f"h.io/a:t@sha256:{'1' * 64}", ("h.io", "a", "t", f"sha256:{'1' * 64}")),
        ("[::1]:5000/a", ("[::1]:5000", "a", "latest", "")),
    ],
)
def test_references_are_read_as_runtimes_do(text: str, expected: tuple[str, ...]) -> None:
    assert imageref.parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "A/b",
        "h.io/../secret",
        "h.io/a:",
        "h.io/a@sha256:12",
        "h.io/a?x=1",
        "user@h.io/a",
        "h.io/a b",
        "h.io//a",
        "h.io/%2e",
    ],
)
def test_what_is_no_reference_is_never_asked_for(text: str) -> None:
    with pytest.raises(ValueError, match="no image reference"):
        imageref.parse(text)


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),  # noqa: S104
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("fe80::1%eth0", False),
        ("fc00::1", False),
        ("::ffff:10.0.0.1", False),
        ("64:ff9b::a00:1", False),
        ("2002:a00:1::", False),
    ],
)
def test_only_addresses_of_the_public_internet_are_public(address: str, public: bool) -> None:
    assert guard.is_public(address) is public


PICKED = [
    ("[::1]:5000/a", {"[::1]:5000": "1"}, "1"),
    ("h.io/team/a", {"h.io": "1"}, "1"),
    ("h.io/team/a", {"https://h.io/v2/": "1"}, "1"),
    ("h.io/team/a", {"h.io": "1", "h.io/team": "2"}, "2"),
    ("h.io/teams/a", {"h.io/team": "2"}, None),
    ("h.io:5000/a", {"h.io": "1"}, None),
    ("h.io:5000/a", {"h.io:5000": "1"}, "1"),
    ("x.h.io/a", {"*.h.io": "1"}, "1"),
    ("x.y.h.io/a", {"*.h.io": "1"}, None),
    ("busybox", {"https://index.docker.io/v1/": "1"}, "1"),
    ("evil.io/a", {"h.io": "1"}, None),
]


@pytest.mark.parametrize(("image", "entries", "password"), PICKED)
def test_credentials_are_those_of_the_registry_and_path(
    image: str, entries: dict[str, str], password: str | None
) -> None:
    auths = {key: {"username": "u", "password": value} for key, value in entries.items()}
    picked = pullsecrets.pick([secret("s", {"auths": auths})], imageref.parse(image))
    assert (picked.password if picked else None) == password


@pytest.mark.parametrize(
    "data", [{}, {".dockerconfigjson": "%%%"}, {".dockerconfigjson": "W10="}, {".dockercfg": "e30="}]
)
def test_a_damaged_pull_secret_holds_nothing(data: dict[str, str]) -> None:
    assert pullsecrets.pick([{"data": data}], imageref.parse("h.io/a")) is None
